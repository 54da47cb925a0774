//! Release of addresses.

use crate::support::{IpamTestStore, TestBackend, ip, net, request};
use serde_json::json;
use std::collections::BTreeSet;
use tortie_ipam::block::ReleaseRequest;
use tortie_ipam::{BlockOwner, ConfigChange, IpamError};
use tortie_model::Kind;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_address_is_reused_last() {
    for backend in TestBackend::ALL {
        let store = IpamTestStore::with(backend, &[("p", json!({"cidr": "10.65.3.0/26"}))], &["n1"]).await;
        let allocator = store.allocator("n1");
        allocator.auto_assign(&request("a", "n1", 1, 0)).await.unwrap();
        let sequence = store.block("10.65.3.0/26").await.unwrap().sequence_number;
        assert_eq!(allocator.release_by_handle("a").await.unwrap(), [ip("10.65.3.0")]);
        let block = store.block("10.65.3.0/26").await.unwrap();
        assert_eq!(block.unallocated, (1..64).chain([0]).collect::<Vec<_>>());
        assert_eq!(block.sequence_number, sequence + 1);
        assert!(block.attributes.is_empty() && block.sequence_number_for_allocation.is_empty());
        assert_eq!(store.raw("/calico/ipam/v2/handle/a").await, None);
        let error = allocator.release_by_handle("a").await.unwrap_err();
        assert!(matches!(error, IpamError::DoesNotExist { .. }), "{error}");
        store.assert_consistent(&BTreeSet::new()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_protect_an_address() {
    for backend in TestBackend::ALL {
        let store = IpamTestStore::with(backend, &[("p", json!({"cidr": "10.65.3.0/26"}))], &["n1"]).await;
        let allocator = store.following("n1");
        allocator.auto_assign(&request("a", "n1", 2, 0)).await.unwrap();
        let before = store.block("10.65.3.0/26").await.unwrap();
        let sequence = before.sequence_number_for_allocation[&0];
        let ask = |address: &str, handle: Option<&str>, sequence_number| ReleaseRequest {
            address: ip(address),
            handle: handle.map(str::to_owned),
            sequence_number,
        };
        for wanted in [
            ask("10.65.3.0", None, Some(sequence + 5)),
            ask("10.65.3.0", Some("b"), None),
            ask("10.65.3.9", None, Some(sequence)),
        ] {
            let report = allocator.release(&[wanted, ReleaseRequest::of(ip("10.65.3.1"))]).await.unwrap();
            assert!(report.error.unwrap().to_string().starts_with("update conflict: "));
            assert!(report.released.is_empty());
            assert_eq!(store.block("10.65.3.0/26").await.unwrap(), before);
        }
        let wanted = [
            ask("10.65.3.0", Some("a"), Some(sequence)),
            ReleaseRequest::of(ip("10.65.3.40")),
            ReleaseRequest::of(ip("192.0.2.1")),
        ];
        let report = allocator.release(&wanted).await.unwrap();
        assert!(report.error.is_none());
        assert_eq!(report.released, [ip("10.65.3.0")]);
        assert_eq!(report.unallocated, [ip("192.0.2.1"), ip("10.65.3.40")]);
        store.assert_consistent(&BTreeSet::from([ip("10.65.3.1")])).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_addresses_of_many_handles_at_once() {
    for backend in TestBackend::ALL {
        let store =
            IpamTestStore::with(backend, &[("p", json!({"cidr": "10.65.0.0/22", "blockSize": 22}))], &["n1"])
                .await;
        let allocator = store.following("n1");
        let mut wanted = Vec::new();
        for n in 0..250 {
            let assigned = allocator.auto_assign(&request(&format!("pod-{n}"), "n1", 1, 0)).await.unwrap();
            wanted.push(ReleaseRequest::of(assigned.v4.addresses[0].addr()));
        }
        let report = store.allocator("n2").release(&wanted).await.unwrap();
        assert!(report.error.is_none());
        assert_eq!(report.released.len(), 250);
        store.assert_consistent(&BTreeSet::new()).await;
        // The cached block is stale now, which costs another read and nothing else.
        allocator.auto_assign(&request("again", "n1", 1, 0)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_cools_down_before_its_reuse() {
    let store = IpamTestStore::with(
        TestBackend::Etcd,
        &[("p", json!({"cidr": "10.0.0.0/31", "blockSize": 31}))],
        &["n1"],
    )
    .await;
    let allocator = store.allocator("n1");
    let cooldown = ConfigChange { ip_cooldown_seconds: Some(1000), ..ConfigChange::default() };
    allocator.configure(&cooldown).await.unwrap();
    allocator.auto_assign(&request("a", "n1", 2, 0)).await.unwrap();
    allocator.release_by_handle("a").await.unwrap();
    let assigned = allocator.auto_assign(&request("b", "n1", 1, 0)).await.unwrap();
    assert_eq!(assigned.v4.addresses, []);
    store.assert_consistent(&BTreeSet::new()).await;
    let report = allocator.release(&[ReleaseRequest::of(ip("10.0.0.0"))]).await.unwrap();
    assert_eq!(report.unallocated, [ip("10.0.0.0")]);
    let off = ConfigChange { ip_cooldown_seconds: Some(0), ..ConfigChange::default() };
    allocator.configure(&off).await.unwrap();
    assert_eq!(allocator.auto_assign(&request("b", "n1", 2, 0)).await.unwrap().v4.addresses.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unselected_block_goes_with_its_last_address() {
    for backend in TestBackend::ALL {
        let store = IpamTestStore::with(backend, &[("p", json!({"cidr": "10.65.3.0/26"}))], &["n1"]).await;
        let allocator = store.allocator("n1");
        allocator.auto_assign(&request("a", "n1", 1, 0)).await.unwrap();
        store
            .put(Kind::IPPool, "p", json!({"spec": {"cidr": "10.65.3.0/26", "nodeSelector": "has(x)"}}))
            .await;
        allocator.release_by_handle("a").await.unwrap();
        assert!(store.block("10.65.3.0/26").await.is_none());
        store.assert_consistent(&BTreeSet::new()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_gone_leaves_nothing() {
    for backend in TestBackend::ALL {
        let pools =
            [("p", json!({"cidr": "10.0.0.0/24", "blockSize": 29})), ("q", json!({"cidr": "fd00::/64"}))];
        let store = IpamTestStore::with(backend, &pools, &["n1", "n2"]).await;
        let (gone, left) = (store.allocator("n1"), store.allocator("n2"));
        gone.auto_assign(&request("a", "n1", 20, 3)).await.unwrap();
        left.auto_assign(&request("b", "n2", 1, 0)).await.unwrap();

        let full = left.release_owner_affinities(&BlockOwner::host("n1"), None, true).await;
        assert!(matches!(full, Err(IpamError::NotEmpty { .. })), "{full:?}");
        left.remove_host("n1").await.unwrap();
        let blocks = store.records().blocks(None).await.unwrap();
        let orphans = blocks.iter().filter(|found| found.value.affinity.is_none()).count();
        assert_eq!(orphans, 4, "what is still used is nobody's");

        let report = left.release_host_addresses("n1").await.unwrap();
        assert_eq!((report.released.len(), report.unallocated.len()), (23, 0));
        assert_eq!(
            store.records().blocks(None).await.unwrap().len(),
            1,
            "the last address takes the block along"
        );
        let kept = left.records().handles().await.unwrap();
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["b"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_is_given_up_on_all_hosts() {
    let pools =
        [("p", json!({"cidr": "10.0.0.0/24", "blockSize": 29})), ("q", json!({"cidr": "10.1.0.0/24"}))];
    let store = IpamTestStore::with(TestBackend::Etcd, &pools, &["n1", "n2"]).await;
    for node in ["n1", "n2"] {
        let mut wanted = request(node, node, 1, 0);
        wanted.v4_pools = vec![net("10.0.0.0/24")];
        store.allocator(node).auto_assign(&wanted).await.unwrap();
    }
    let mut other = request("q", "n1", 1, 0);
    other.v4_pools = vec![net("10.1.0.0/24")];
    store.allocator("n1").auto_assign(&other).await.unwrap();
    store.allocator("n1").release_by_handle("n1").await.unwrap();
    store.allocator("n1").release_pool_affinities(net("10.0.0.0/24")).await.unwrap();
    let left: Vec<_> = store
        .records()
        .blocks(None)
        .await
        .unwrap()
        .into_iter()
        .map(|standing| (standing.value.affinity, standing.value.cidr.prefix_len()))
        .collect();
    assert_eq!(left.len(), 2);
    assert!(left.contains(&(None, 29)) && left.contains(&(Some("host:n1".to_owned()), 26)), "{left:?}");
}
