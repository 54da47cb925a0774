//! Addresses of tunnels.

use crate::support::{IpamTestStore, TestBackend, ip, net, request};
use serde_json::json;
use std::collections::BTreeSet;
use tortie_ipam::TunnelType;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_keeps_its_address_while_needed() {
    for backend in TestBackend::ALL {
        let pools = [("p", json!({"cidr": "10.0.0.0/26"})), ("q", json!({"cidr": "10.1.0.0/26"}))];
        let store = IpamTestStore::with(backend, &pools, &["n1"]).await;
        let allocator = store.following("n1");
        let (p, q) = ([net("10.0.0.0/26")], [net("10.1.0.0/26")]);
        let first = allocator.ensure_tunnel(TunnelType::VxlanV4, None, &p).await.unwrap();
        assert_eq!(first, Some(ip("10.0.0.0")));
        assert_eq!(allocator.ensure_tunnel(TunnelType::VxlanV4, first, &p).await.unwrap(), first);
        let record = allocator.record_of(ip("10.0.0.0")).await.unwrap().unwrap();
        assert_eq!(record.handle(), Some("vxlan-tunnel-addr-n1"));
        assert_eq!(record.secondary["type"], "vxlanTunnelAddress");
        assert_eq!(record.secondary["node"], "n1");

        let moved = allocator.ensure_tunnel(TunnelType::VxlanV4, first, &q).await.unwrap();
        assert_eq!(moved, Some(ip("10.1.0.0")));
        assert_eq!(allocator.record_of(ip("10.0.0.0")).await.unwrap(), None);

        // The Node records an address that was assigned to a workload since.
        let mut pod = request("pod", "n1", 1, 0);
        pod.v4_pools = q.to_vec();
        let pods = allocator.auto_assign(&pod).await.unwrap().v4.addresses[0].addr();
        let another = allocator.ensure_tunnel(TunnelType::Ipip, Some(pods), &q).await.unwrap();
        assert_ne!(another, Some(pods));
        assert!(allocator.record_of(pods).await.unwrap().is_some());

        assert_eq!(allocator.ensure_tunnel(TunnelType::VxlanV4, moved, &[]).await.unwrap(), None);
        assert_eq!(allocator.record_of(ip("10.1.0.0")).await.unwrap(), None);
        allocator.release_tunnel(TunnelType::VxlanV4, Some(pods)).await.unwrap();
        assert!(allocator.record_of(pods).await.unwrap().is_some(), "not ours to give back");

        // Several addresses at once, from two blocks and from outside of all pools.
        let asked = [pods, another.unwrap(), ip("10.0.0.0"), ip("192.0.2.1")];
        let records = allocator.records_of(&asked).await.unwrap();
        assert_eq!(records.keys().copied().collect::<BTreeSet<_>>(), [pods, asked[1]].into());
        for (address, record) in &records {
            assert_eq!(Some(record), allocator.record_of(*address).await.unwrap().as_ref());
        }
    }
}
