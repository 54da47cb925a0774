//! Assignment of addresses.

use crate::support::{IpamTestStore, TestBackend, ip, net, request, texts};
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tortie_ipam::pool::AddressUse;
use tortie_ipam::{AddressHolder, ConfigChange, IpamError, SpecificRequest};
use tortie_model::Kind;

const BLOCK_PATH: &str = "/calico/ipam/v2/assignment/ipv4/block/10.65.3.0-26";
const AFFINITY_PATH: &str = "/calico/ipam/v2/host/n1/ipv4/block/10.65.3.0-26";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_allocation_is_stored_as_in_calico() {
    for backend in TestBackend::ALL {
        let store = IpamTestStore::with(backend, &[("p", json!({"cidr": "10.65.3.0/26"}))], &["n1"]).await;
        let before = jiff::Timestamp::now();
        let mut wanted = request("k8s-pod-network.6f1d0a", "n1", 1, 0);
        let pod = [("namespace", "prod"), ("pod", "web-0")];
        wanted.holder.attributes.extend(pod.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let assigned = store.allocator("n1").auto_assign(&wanted).await.unwrap();
        assert_eq!(texts(&assigned.v4.addresses), ["10.65.3.0/26"]);
        assert_eq!(assigned.v4.shortfall(), None);

        let block = store.raw(BLOCK_PATH).await.unwrap();
        let read: Json = serde_json::from_str(&block).unwrap();
        let sequence = read["sequenceNumber"].as_u64().unwrap();
        assert!(i128::from(sequence) > before.as_nanosecond(), "{sequence} is the time of creation");
        let claimed: jiff::Timestamp = read["affinity_claim_time"].as_str().unwrap().parse().unwrap();
        assert!(claimed.as_second() >= before.as_second());
        let expected = format!(
            concat!(
                r#"{{"cidr":"10.65.3.0/26","affinity":"host:n1","affinity_claim_time":"{}","allocations":[0{}],"#,
                r#""unallocated":[{}],"attributes":[{{"handle_id":"k8s-pod-network.6f1d0a","#,
                r#""secondary":{{"namespace":"prod","node":"n1","pod":"web-0"}}}}],"sequenceNumber":{},"#,
                r#""sequenceNumberForAllocation":{{"0":{}}},"deleted":false}}"#
            ),
            read["affinity_claim_time"].as_str().unwrap(),
            ",null".repeat(63),
            (1..64).map(|n| n.to_string()).collect::<Vec<_>>().join(","),
            sequence,
            sequence - 1
        );
        assert_eq!(block, expected);
        assert_eq!(
            store.raw(AFFINITY_PATH).await.as_deref(),
            Some(r#"{"state":"confirmed","deleted":false}"#)
        );
        assert_eq!(
            store.raw("/calico/ipam/v2/handle/k8s-pod-network.6f1d0a").await.as_deref(),
            Some(r#"{"block":{"10.65.3.0/26":1},"deleted":false}"#)
        );
        store.assert_consistent(&BTreeSet::from([ip("10.65.3.0")])).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owned_block_needs_one_operation_per_allocation() {
    for backend in TestBackend::WITH_TRANSACTIONS {
        let pools = [("p4", json!({"cidr": "10.0.0.0/16"})), ("p6", json!({"cidr": "fd00::/48"}))];
        let store = IpamTestStore::with(backend, &pools, &["n1"]).await;
        let allocator = store.following("n1");
        allocator.auto_assign(&request("first", "n1", 1, 1)).await.unwrap();
        let before = allocator.operations();
        for n in 0..50 {
            allocator.auto_assign(&request(&format!("pod-{n}"), "n1", 1, 0)).await.unwrap();
        }
        assert_eq!(allocator.operations() - before, 50);
        let before = allocator.operations();
        allocator.auto_assign(&request("dual", "n1", 1, 1)).await.unwrap();
        assert_eq!(allocator.operations() - before, 1, "both families at once");
        let before = allocator.operations();
        allocator.release_by_handle("dual").await.unwrap();
        assert_eq!(allocator.operations() - before, 1, "both families and the handle at once");
        store.allocator("n1").release_by_handle("pod-7").await.unwrap();
        let gone = allocator.release_by_handle("pod-7").await.unwrap_err();
        assert!(matches!(gone, IpamError::DoesNotExist { .. }), "what is remembered may be gone: {gone}");
        assert_eq!(texts(&allocator.addresses_of("first").await.unwrap()).len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_one_node_is_batched() {
    for backend in TestBackend::WITH_TRANSACTIONS {
        let store =
            IpamTestStore::with(backend, &[("p", json!({"cidr": "10.0.0.0/16", "blockSize": 24}))], &["n1"])
                .await;
        let allocator = Arc::new(store.following("n1"));
        allocator.auto_assign(&request("first", "n1", 1, 0)).await.unwrap();
        let before = allocator.operations();
        let burst = |handles: std::ops::Range<u32>| {
            let tasks: JoinSet<BTreeSet<IpAddr>> = handles
                .map(|n| {
                    let allocator = allocator.clone();
                    async move {
                        let assigned = allocator.auto_assign(&request(&format!("pod-{n}"), "n1", 1, 0)).await;
                        assigned.unwrap().addresses().map(|net| net.addr()).collect()
                    }
                })
                .collect();
            tasks
        };
        let assigned = burst(0..200).join_all().await;
        let operations = allocator.operations() - before;
        assert!(operations < 100, "{operations} operations for 200 addresses");
        let addresses: BTreeSet<IpAddr> = assigned.into_iter().flatten().collect();
        assert_eq!(addresses.len(), 200, "each its own");
        let mut in_use = addresses.clone();
        in_use.insert(allocator.addresses_of("first").await.unwrap()[0].addr());
        store.assert_consistent(&in_use).await;

        // Concurrent assignments, releases, and requests cancelled before their response.
        let mut leaving: JoinSet<()> = (0..200)
            .map(|n| {
                let allocator = allocator.clone();
                async move { drop(allocator.release_by_handle(&format!("pod-{n}")).await.unwrap()) }
            })
            .collect();
        let mut coming = burst(300..340);
        tokio::time::sleep(Duration::from_millis(1)).await;
        coming.abort_all();
        while coming.join_next().await.is_some() {}
        while let Some(done) = leaving.join_next().await {
            done.unwrap();
        }
        for n in 300..340 {
            let _ = allocator.release_by_handle(&format!("pod-{n}")).await;
        }
        allocator.release_by_handle("first").await.unwrap();
        store.assert_consistent(&BTreeSet::new()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_claimed_up_to_the_limit() {
    for backend in TestBackend::ALL {
        let store =
            IpamTestStore::with(backend, &[("p", json!({"cidr": "10.0.0.0/24", "blockSize": 30}))], &["n1"])
                .await;
        let allocator = store.allocator("n1");
        let mut wanted = request("a", "n1", 10, 0);
        wanted.max_blocks = Some(2);
        let failed = allocator.auto_assign(&wanted).await.unwrap_err();
        assert!(failed.to_string().contains("cannot allocate new block due to per host block limit"));
        assert_eq!(failed.assigned.v4.addresses.len(), 8);
        // The default limit is 20 blocks.
        let failed = allocator.auto_assign(&request("b", "n1", 100, 0)).await.unwrap_err();
        assert!(matches!(failed.error, IpamError::BlockLimit { limit: 20 }), "{failed}");
        assert_eq!(failed.assigned.v4.addresses.len(), 72);
        let in_use = (0..=255).map(|n| ip(&format!("10.0.0.{n}")));
        let held: BTreeSet<_> = failed.assigned.addresses().map(|net| net.addr()).collect();
        assert_eq!(in_use.filter(|address| held.contains(address)).count(), 72);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_pool_lends_and_then_says_so() {
    for backend in TestBackend::ALL {
        let pools = [("p", json!({"cidr": "10.0.0.0/28", "blockSize": 29}))];
        let store = IpamTestStore::with(backend, &pools, &["n1", "n2", "n3"]).await;
        let (first, second, third) = (store.allocator("n1"), store.allocator("n2"), store.allocator("n3"));
        first.auto_assign(&request("a", "n1", 5, 0)).await.unwrap();
        second.auto_assign(&request("b", "n2", 8, 0)).await.unwrap();
        let borrowed = third.auto_assign(&request("c", "n3", 2, 0)).await.unwrap();
        assert_eq!(borrowed.v4.addresses.len(), 2);
        let cidr = borrowed.v4.addresses[0].trunc();
        let block = store.block(&cidr.to_string()).await.unwrap();
        assert_eq!(block.affinity.as_deref(), Some("host:n1"), "borrowing changes no owner");
        let partial = third.auto_assign(&request("d", "n3", 4, 0)).await.unwrap();
        assert_eq!(
            partial.v4.shortfall().unwrap(),
            "Assigned 1 out of 4 requested IPv4 addresses; No IPs available in pools: [10.0.0.0/28]"
        );
        store.assert_consistent(&(0..16).map(|n| ip(&format!("10.0.0.{n}"))).collect()).await;

        let strict = ConfigChange { strict_affinity: Some(true), ..ConfigChange::default() };
        third.configure(&strict).await.unwrap();
        first.release_by_handle("a").await.unwrap();
        let none = third.auto_assign(&request("e", "n3", 1, 0)).await.unwrap();
        assert_eq!(
            none.v4.shortfall().unwrap(),
            "Assigned 0 out of 1 requested IPv4 addresses; No more free affine blocks and strict affinity enabled"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_cannot_be_met_say_why() {
    let store = IpamTestStore::start(TestBackend::Etcd).await;
    let allocator = store.following("n1");
    let text = async |wanted| allocator.auto_assign(&wanted).await.unwrap_err().to_string();
    let missing = text(request("a", "n1", 1, 0)).await;
    assert!(missing.starts_with("resource does not exist: Node(n1) with error:"), "{missing}");
    store.put(Kind::Node, "n1", json!({"metadata": {"labels": {"rack": "1"}}, "spec": {}})).await;
    assert_eq!(text(request("a", "n1", 1, 0)).await, "cannot find a qualified ippool for IPv4");
    store
        .put(Kind::IPPool, "p", json!({"spec": {"cidr": "10.0.0.0/24", "nodeSelector": "rack == '2'"}}))
        .await;
    assert_eq!(text(request("a", "n1", 1, 0)).await, "no configured Calico pools for node n1");
    let mut by_name = request("a", "n1", 1, 0);
    by_name.v4_pools = vec![net("10.9.0.0/24")];
    assert_eq!(text(by_name).await, "the given pool (10.9.0.0/24) does not exist, or is not enabled");
    let mut load_balancer = request("a", "n1", 1, 0);
    load_balancer.v4_pools = vec![net("10.0.0.0/24")];
    load_balancer.intended = AddressUse::LoadBalancer;
    assert_eq!(
        text(load_balancer).await,
        "cannot find a qualified ippool for IPv4 with allowed use LoadBalancer"
    );
    store.assert_consistent(&BTreeSet::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserved_addresses_are_passed_over() {
    let store = IpamTestStore::with(
        TestBackend::Etcd,
        &[("p", json!({"cidr": "10.0.0.0/29", "blockSize": 30}))],
        &["n1"],
    )
    .await;
    store
        .put(Kind::IPReservation, "r", json!({"spec": {"reservedCIDRs": ["10.0.0.0/30", " ", "10.0.0.4"]}}))
        .await;
    let assigned = store.allocator("n1").auto_assign(&request("a", "n1", 9, 0)).await.unwrap();
    assert_eq!(texts(&assigned.v4.addresses), ["10.0.0.5/30", "10.0.0.6/30", "10.0.0.7/30"]);
    assert!(store.block("10.0.0.0/30").await.is_none(), "a wholly reserved block is not claimed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_and_no_other() {
    for backend in TestBackend::ALL {
        let pools = [
            ("p", json!({"cidr": "10.0.0.0/24", "nodeSelector": "has(nothing)", "assignmentMode": "Manual"})),
            ("off", json!({"cidr": "10.1.0.0/24", "disabled": true})),
        ];
        let store = IpamTestStore::with(backend, &pools, &["n1", "n2"]).await;
        let allocator = store.following("n1");
        let holder = |handle: &str| AddressHolder::new(Some(handle), BTreeMap::new());
        let want = |address: &str, handle: &str| SpecificRequest::new(ip(address), holder(handle));
        let assigned = allocator.assign_address(&want("10.0.0.77", "a")).await.unwrap();
        assert_eq!(assigned, net("10.0.0.77/32"));
        assert_eq!(store.block("10.0.0.64/26").await.unwrap().affinity.as_deref(), Some("host:n1"));
        for (address, text) in [
            ("10.0.0.77", "resource already exists: 10.0.0.77 with error: the address is already assigned"),
            ("10.1.0.7", "The provided IP address 10.1.0.7 is not in a configured pool"),
            ("192.0.2.1", "The provided IP address 192.0.2.1 is not in a configured pool"),
        ] {
            let error = allocator.assign_address(&want(address, "b")).await.unwrap_err();
            assert_eq!(error.to_string(), text);
        }
        let lb = SpecificRequest { intended: Some(AddressUse::LoadBalancer), ..want("10.0.0.9", "b") };
        assert!(matches!(allocator.assign_address(&lb).await.unwrap_err(), IpamError::UseNotAllowed { .. }));
        // Another host may get an address of a block of n1 unless affinity is strict.
        let other = store.allocator("n2");
        other.assign_address(&want("10.0.0.78", "c")).await.unwrap();
        let strict = ConfigChange { strict_affinity: Some(true), ..ConfigChange::default() };
        other.configure(&strict).await.unwrap();
        let error = other.assign_address(&want("10.0.0.79", "c")).await.unwrap_err();
        assert!(matches!(error, IpamError::StrictAffinity { .. }), "{error}");
        let limited = SpecificRequest { max_per_handle: Some(1), ..want("10.0.0.77", "a") };
        assert_eq!(allocator.assign_address(&limited).await.unwrap(), net("10.0.0.77/32"));
        store.assert_consistent(&BTreeSet::from([ip("10.0.0.77"), ip("10.0.0.78")])).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limited_handle_keeps_what_it_has() {
    let store =
        IpamTestStore::with(TestBackend::Etcd, &[("p", json!({"cidr": "10.0.0.0/24"}))], &["n1", "n2"]).await;
    let mut wanted = request("vm", "n1", 1, 0);
    wanted.max_per_handle = Some(1);
    let first = store.allocator("n1").auto_assign(&wanted).await.unwrap();
    let again = store.allocator("n2").auto_assign(&wanted).await.unwrap();
    assert_eq!(first.v4.addresses, again.v4.addresses);
    wanted.v4 = 2;
    let failed = store.allocator("n1").auto_assign(&wanted).await.unwrap_err();
    assert!(matches!(failed.error, IpamError::HandleLimit { limit: 1, .. }), "{failed}");
}
