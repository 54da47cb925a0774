//! Routes learned over BGP: how they look in the kernel, and when routes of an earlier BGP speaker are removed.

use crate::namespace::{addresses, eventually, node_pair, start};
use tortie_plan::{LearntNextHop, LearntRouteEntry, NodePlan, PlanUpdate};

fn learnt(net: &str, next_hops: &[&str], metric: u32) -> PlanUpdate {
    let next_hops = addresses(next_hops).into_iter().map(LearntNextHop::from).collect();
    PlanUpdate::Learnt(net.parse().unwrap(), Some(LearntRouteEntry { next_hops, metric }))
}

#[tokio::test(flavor = "multi_thread")]
async fn learnt_routes_look_like_those_of_bird() {
    let (node, _other) = node_pair();
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(NodePlan::default()).await.unwrap();
    let updates = vec![
        learnt("10.65.0.0/26", &[], 1024),
        learnt("10.65.1.0/26", &["192.168.77.2"], 1024),
        learnt("10.65.2.0/26", &["192.168.77.3", "192.168.77.2"], 1024),
        learnt("fd65:1::/122", &["fd77::2"], 1024),
        learnt("fd65:2::/122", &["fd77::3", "fd77::2"], 1024),
        PlanUpdate::LearntComplete,
    ];
    assert_eq!(dataplane.apply(updates).await.unwrap().failures, []);
    assert_eq!(node.routes("10.65.0.0/26"), ["blackhole 10.65.0.0/26 proto bird scope global metric 1024"]);
    assert_eq!(
        node.routes("10.65.1.0/26"),
        ["unicast 10.65.1.0/26 via 192.168.77.2 dev eth0 proto bird scope global metric 1024 onlink"]
    );
    assert_eq!(
        node.routes("10.65.2.0/26"),
        [
            "unicast 10.65.2.0/26 proto bird scope global metric 1024",
            "nexthop via 192.168.77.2 dev eth0 weight 1 onlink",
            "nexthop via 192.168.77.3 dev eth0 weight 1 onlink",
        ]
    );
    assert_eq!(
        node.routes("fd65:1::/122"),
        ["unicast fd65:1::/122 via fd77::2 dev eth0 proto bird scope global metric 1024 onlink pref medium"]
    );
    assert_eq!(
        node.routes("fd65:2::/122"),
        [
            "unicast fd65:2::/122 proto bird scope global metric 1024 pref medium",
            "nexthop via fd77::2 dev eth0 weight 1 onlink",
            "nexthop via fd77::3 dev eth0 weight 1 onlink",
        ]
    );
    // Remove a next hop, then the route, then delete routes behind the dataplane's back.
    dataplane.apply(vec![learnt("10.65.2.0/26", &["192.168.77.3"], 1024)]).await.unwrap();
    assert_eq!(node.routes("10.65.2.0/26").len(), 1);
    dataplane.apply(vec![learnt("fd65:2::/122", &["fd77::3"], 1024)]).await.unwrap();
    eventually("one next hop is left", || node.routes("fd65:2::/122").len() == 1).await;
    let gone = "10.65.2.0/26".parse().unwrap();
    dataplane.apply(vec![PlanUpdate::Learnt(gone, None)]).await.unwrap();
    assert_eq!(node.routes("10.65.2.0/26"), [""; 0]);
    node.ip("route del 10.65.1.0/26");
    node.ip("-6 route del fd65:1::/122");
    eventually("restored", || {
        node.routes("10.65.1.0/26").len() == 1 && node.routes("fd65:1::/122").len() == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_of_an_earlier_speaker_outlast_convergence() {
    let (node, _other) = node_pair();
    for net in ["10.65.1.0/26", "10.65.2.0/26"] {
        node.ip(&format!("route add {net} via 192.168.77.2 onlink dev eth0 proto bird metric 1024"));
    }
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(NodePlan::default()).await.unwrap();
    assert_eq!(node.routes("10.65.1.0/26").len(), 1);
    dataplane.apply(vec![learnt("10.65.1.0/26", &["192.168.77.2"], 1024)]).await.unwrap();
    assert_eq!(node.routes("10.65.2.0/26").len(), 1, "nobody has said yet that it is old");
    dataplane.apply(vec![PlanUpdate::LearntComplete]).await.unwrap();
    assert_eq!(node.routes("10.65.1.0/26").len(), 1);
    assert_eq!(node.routes("10.65.2.0/26"), [""; 0]);
}
