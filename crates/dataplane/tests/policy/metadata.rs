//! OpenStack's metadata service with real packets: the host answers requests of virtual machines to 169.254.169.254.

use crate::namespace::{OpenNetns, TestNamespace, plan, pod, start, workload};
use crate::plans::{POD_ONE_ADDRESSES, policy_id, tier};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tortie_plan::{
    DataplaneSettings, MetadataService, NodePlan, PlannedPolicy, PlannedRule, PolicySettings, RuleAction,
    TierDefaultAction,
};
use tortie_testkit::bind_when_free;

/// Longer than TCP's first retransmission timeout.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves `name` on an address of the node.
fn serve(node: &TestNamespace, address: &str, name: &'static str) {
    let listener = node.open().run(|| bind_when_free(|| TcpListener::bind(address)).unwrap()).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(name.as_bytes());
        }
    });
}

fn asks(pod: &TestNamespace, address: &str) -> Option<String> {
    let to: SocketAddr = address.parse().unwrap();
    let mut stream = pod.open().run(|| TcpStream::connect_timeout(&to, METADATA_TIMEOUT)).unwrap().ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn with(metadata: Option<MetadataService>) -> DataplaneSettings {
    DataplaneSettings {
        policy: PolicySettings { metadata, ..PolicySettings::default() },
        ..DataplaneSettings::default()
    }
}

/// Returns a plan with a workload whose egress is denied.
fn closed() -> NodePlan {
    let mut plan = plan(&[("one", workload("cali1", &POD_ONE_ADDRESSES))], &[]);
    let nothing = PlannedPolicy {
        tier: "default".into(),
        egress: vec![PlannedRule::new(RuleAction::Deny)],
        ..PlannedPolicy::default()
    };
    plan.policies.insert(policy_id("nothing"), Arc::new(nothing));
    for policy in plan.workload_policies.values_mut() {
        policy.tiers = vec![tier("default", TierDefaultAction::Deny, &[], &["nothing"])];
    }
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn workloads_reach_only_the_metadata_service() {
    let node = TestNamespace::new("node");
    let pod = pod(&node, "cali1", &POD_ONE_ADDRESSES).await;
    node.ip("addr add 192.0.2.1/32 dev lo");
    serve(&node, "127.0.0.1:8775", "metadata");
    serve(&node, "192.0.2.1:9000", "elsewhere");
    serve(&node, "192.0.2.1:80", "the host");
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(closed()).await.unwrap();
    assert_eq!(asks(&pod, "169.254.169.254:80"), None, "nobody has asked for it");

    let loopback = MetadataService { address: "127.0.0.1".parse().unwrap(), port: 8775 };
    assert_eq!(dataplane.configure(with(Some(loopback))).await.unwrap().failures, []);
    let ruleset = || node.exec("nft list ruleset");
    assert_eq!(asks(&pod, "169.254.169.254:80").as_deref(), Some("metadata"), "{}", ruleset());
    for other in ["169.254.169.254:8775", "127.0.0.1:8775", "192.0.2.1:8775", "192.0.2.1:80"] {
        assert_eq!(asks(&pod, other), None, "{other}\n{}", ruleset());
    }

    // It also works where another chain of the host drops, and with another target address.
    node.exec(&["iptables-nft", "-P", "INPUT", "DROP"]);
    let elsewhere = MetadataService { address: "192.0.2.1".parse().unwrap(), port: 9000 };
    assert_eq!(dataplane.configure(with(Some(elsewhere))).await.unwrap().failures, []);
    crate::namespace::eventually("the other place answers", || {
        asks(&pod, "169.254.169.254:80").as_deref() == Some("elsewhere")
    })
    .await;

    assert_eq!(dataplane.configure(with(None)).await.unwrap().failures, []);
    assert_eq!(asks(&pod, "169.254.169.254:80"), None, "{}", ruleset());
}
