//! Intermediate states that interrupted Calico nodes leave in the store, and how the allocator recovers from them.

use crate::support::{IpamTestStore, TestBackend, ip, request};
use serde_json::json;
use std::collections::BTreeSet;

const BLOCK_PATH: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30";

fn affinity(host: &str) -> String {
    format!("/calico/ipam/v2/host/{host}/ipv4/block/10.0.0.0-30")
}

fn block(owner: &str, claimed: &str) -> String {
    format!(
        concat!(
            r#"{{"cidr":"10.0.0.0/30","affinity":"host:{}","affinity_claim_time":"{}","allocations":[null,null,null,null],"#,
            r#""unallocated":[0,1,2,3],"attributes":[],"sequenceNumber":5,"sequenceNumberForAllocation":{{}},"#,
            r#""deleted":false}}"#
        ),
        owner, claimed
    )
}

async fn store(backend: TestBackend) -> IpamTestStore {
    IpamTestStore::with(backend, &[("p", json!({"cidr": "10.0.0.0/30", "blockSize": 30}))], &["n1", "n2"])
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_was_never_finished_is_finished() {
    for backend in TestBackend::ALL {
        for state in
            [r#"{"state":"pending","deleted":false}"#, r#"{"state":"pendingDeletion"}"#, r#"{"state":""}"#]
        {
            for with_block in [false, true] {
                let store = store(backend).await;
                store.put_raw(&affinity("n1"), state).await;
                if with_block {
                    store.put_raw(BLOCK_PATH, &block("n1", "2026-03-01T10:20:30Z")).await;
                }
                let assigned = store.allocator("n1").auto_assign(&request("a", "n1", 1, 0)).await.unwrap();
                assert_eq!(assigned.v4.addresses.len(), 1, "{state} {with_block}");
                let confirmed = r#"{"state":"confirmed","deleted":false}"#;
                assert_eq!(store.raw(&affinity("n1")).await.as_deref(), Some(confirmed));
                store.assert_consistent(&BTreeSet::from([ip("10.0.0.0")])).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_claim_on_foreign_blocks_is_withdrawn() {
    for backend in TestBackend::ALL {
        let store = store(backend).await;
        store.put_raw(&affinity("n1"), r#"{"state":"pending"}"#).await;
        store.put_raw(&affinity("n2"), r#"{"state":"confirmed"}"#).await;
        let recent = jiff::Timestamp::now();
        store.put_raw(BLOCK_PATH, &block("n2", &format!("{recent:.0}"))).await;
        let assigned = store.allocator("n1").auto_assign(&request("a", "n1", 1, 0)).await.unwrap();
        assert_eq!(assigned.v4.addresses.len(), 1, "borrowed");
        assert_eq!(store.raw(&affinity("n1")).await, None);
        assert_eq!(store.block("10.0.0.0/30").await.unwrap().affinity.as_deref(), Some("host:n2"));
        store.assert_consistent(&BTreeSet::from([ip("10.0.0.0")])).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_empty_block_is_taken_over() {
    for backend in TestBackend::ALL {
        let store = store(backend).await;
        store.put_raw(&affinity("n2"), r#"{"state":"confirmed"}"#).await;
        store.put_raw(BLOCK_PATH, &block("n2", "2026-03-01T10:20:30Z")).await;
        let assigned = store.allocator("n1").auto_assign(&request("a", "n1", 1, 0)).await.unwrap();
        assert_eq!(assigned.v4.addresses.len(), 1);
        assert_eq!(store.block("10.0.0.0/30").await.unwrap().affinity.as_deref(), Some("host:n1"));
        assert_eq!(store.raw(&affinity("n2")).await, None);
        store.assert_consistent(&BTreeSet::from([ip("10.0.0.0")])).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_own_block_without_claim_is_found() {
    let store = store(TestBackend::Etcd).await;
    store.put_raw(BLOCK_PATH, &block("n1", "2026-03-01T10:20:30Z")).await;
    let assigned = store.allocator("n1").auto_assign(&request("a", "n1", 1, 0)).await.unwrap();
    assert_eq!(assigned.v4.addresses.len(), 1);
    store.assert_consistent(&BTreeSet::from([ip("10.0.0.0")])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_with_excessive_counts_is_released() {
    for backend in TestBackend::ALL {
        let store = store(backend).await;
        let allocator = store.allocator("n1");
        allocator.auto_assign(&request("a", "n1", 1, 0)).await.unwrap();
        // A node that crashes after counting in the handle and before writing the block leaves this state.
        store
            .put_raw(
                "/calico/ipam/v2/handle/a",
                r#"{"block":{"10.0.0.0/30":4,"10.9.9.0/30":1,"nonsense":2},"deleted":false}"#,
            )
            .await;
        assert_eq!(allocator.release_by_handle("a").await.unwrap(), [ip("10.0.0.0")]);
        assert_eq!(store.raw("/calico/ipam/v2/handle/a").await, None);
        store.put_raw("/calico/ipam/v2/handle/b", r#"{"block":{"10.0.0.0/30":1}}"#).await;
        assert_eq!(allocator.release_by_handle("b").await.unwrap(), Vec::<std::net::IpAddr>::new());
        store.assert_consistent(&BTreeSet::new()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_concurrent_withdrawal_rejects_a_cached_write() {
    for backend in TestBackend::WITH_TRANSACTIONS {
        let store = store(backend).await;
        let allocator = store.following("n1");
        allocator.auto_assign(&request("a", "n1", 1, 0)).await.unwrap();
        store.put_raw(&affinity("n1"), r#"{"state":"pendingDeletion","deleted":false}"#).await;
        allocator.auto_assign(&request("b", "n1", 1, 0)).await.unwrap();
        let confirmed = r#"{"state":"confirmed","deleted":false}"#;
        assert_eq!(store.raw(&affinity("n1")).await.as_deref(), Some(confirmed), "claimed back before use");
        store.assert_consistent(&BTreeSet::from([ip("10.0.0.0"), ip("10.0.0.1")])).await;
    }
}
