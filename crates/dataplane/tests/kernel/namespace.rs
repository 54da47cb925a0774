//! Fixtures for the tests against a real kernel: node and pod namespaces, plans, and a running dataplane.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use tortie_dataplane::pod::{self, AttachRequest};
use tortie_dataplane::{DataplaneHandle, Netns, ReportReceiver};
use tortie_plan::{
    DataplaneSettings, EndpointToHostAction, NodePlan, PlannedRule, PlannedWorkload, ProfileRules, Route,
    RouteKey, RuleAction, WorkloadId, WorkloadPolicy,
};

pub use tortie_testkit::TestNamespace;

/// Opens a test namespace as the `Netns` that the dataplane uses.
pub trait OpenNetns {
    fn open(&self) -> Netns;
}

impl OpenNetns for TestNamespace {
    fn open(&self) -> Netns {
        Netns::open(self.path()).unwrap()
    }
}

/// Returns a node with `eth0` (192.168.77.1/24, fd77::1/64) and the node that it is connected to, 192.168.77.2.
pub fn node_pair() -> (TestNamespace, TestNamespace) {
    TestNamespace::pair([192, 168, 77, 0].into(), "fd77::".parse().unwrap())
}

/// Waits until the condition holds; the dataplane's task keeps running.
pub async fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    tortie_testkit::eventually_async(what, async || so()).await;
}

pub async fn start(node: &TestNamespace) -> (DataplaneHandle, ReportReceiver) {
    let mut settings = DataplaneSettings::default();
    // Calico's manifests set DefaultEndpointToHostAction to Accept.
    settings.policy.endpoint_to_host = EndpointToHostAction::Accept;
    DataplaneHandle::start(node.open(), settings).await.unwrap()
}

pub fn id(name: &str) -> WorkloadId {
    WorkloadId { orchestrator: "cni".into(), workload: format!("default/{name}"), endpoint: "eth0".into() }
}

pub fn addresses(addresses: &[&str]) -> Vec<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

pub fn workload(interface: &str, with: &[&str]) -> PlannedWorkload {
    PlannedWorkload { interface: interface.into(), addresses: addresses(with), ..PlannedWorkload::default() }
}

pub fn plan(workloads: &[(&str, PlannedWorkload)], routes: &[(&str, Route)]) -> NodePlan {
    let workload_policies =
        workloads.iter().map(|(name, workload)| (id(name), workload_policy(workload))).collect();
    let workloads: BTreeMap<_, _> = workloads.iter().map(|(name, w)| (id(name), w.clone())).collect();
    let routes = routes.iter().map(|(net, route)| (key(net), *route)).collect();
    let profiles = BTreeMap::from([("open".to_owned(), Arc::new(open_profile()))]);
    NodePlan { workloads, routes, workload_policies, profiles, ..NodePlan::default() }
}

/// Returns the key of a route in the main table.
pub fn key(net: &str) -> RouteKey {
    net.parse::<ipnet::IpNet>().unwrap().into()
}

/// Returns a profile that allows all traffic in both directions.
pub fn open_profile() -> ProfileRules {
    let everything = vec![PlannedRule::new(RuleAction::Allow)];
    ProfileRules { ingress: everything.clone(), egress: everything }
}

/// Returns a workload policy that allows all traffic.
pub fn workload_policy(workload: &PlannedWorkload) -> WorkloadPolicy {
    WorkloadPolicy {
        interface: workload.interface.clone(),
        up: true,
        addresses: workload.addresses.clone(),
        profiles: vec!["open".into()],
        ..WorkloadPolicy::default()
    }
}

pub fn request(pod: &TestNamespace, host_interface: &str, with: &[&str]) -> AttachRequest {
    AttachRequest {
        netns: pod.path().into(),
        container_interface: "eth0".into(),
        host_interface: host_interface.into(),
        addresses: addresses(with),
        routes: Vec::new(),
        mtu: None,
        mac: None,
        queues: 0,
        allow_ip_forwarding: false,
    }
}

/// Creates a pod namespace and attaches it to the node.
pub async fn pod(node: &TestNamespace, host_interface: &str, with: &[&str]) -> TestNamespace {
    let pod = TestNamespace::new("pod");
    pod::attach(&node.open(), &request(&pod, host_interface, with)).await.unwrap();
    pod
}
