//! Live migrations of machines between nodes: which routes lead to them at which time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use serde_json::json;
use tortie_compute::{BgpEnvironment, ParameterEnvironment, PlanCompute};
use tortie_model::{Kind, StoreKey, StoreValue};
use tortie_plan::{MigrationState, NodePlan, Route, RouteKey, WorkloadId};
use tortie_testkit::samples::stored;

type MigrationEntry = (StoreKey, StoreValue);

fn resource(kind: Kind, namespace: &str, name: &str, spec: serde_json::Value) -> MigrationEntry {
    stored(
        kind,
        json!({"metadata": {"name": name, "namespace": namespace, "labels": {"job": name}}, "spec": spec}),
    )
}

/// Returns the machine `vm` on a node, as the OpenStack plugin writes it.
fn endpoint(node: &str) -> MigrationEntry {
    let spec = json!({
        "orchestrator": "openstack", "node": node, "workload": "vm", "endpoint": "port",
        "interfaceName": "tap1", "ipNetworks": ["10.65.0.2/32", "fd65::2/128"],
    });
    resource(Kind::WorkloadEndpoint, "stack", &format!("{node}-openstack-vm-port"), spec)
}

fn party(node: &str) -> serde_json::Value {
    json!({"workloadEndpoint": {
        "hostname": node, "orchestratorID": "openstack", "workloadID": "stack/vm", "endpointID": "port",
    }})
}

fn migration(name: &str, from: &str, to: &str) -> MigrationEntry {
    resource(Kind::LiveMigration, "stack", name, json!({"source": party(from), "target": party(to)}))
}

/// The node `n1` and its plan.
struct MigrationNode {
    compute: PlanCompute,
    plan: NodePlan,
}

impl MigrationNode {
    fn new() -> MigrationNode {
        let mut compute = PlanCompute::new("n1", ParameterEnvironment::default());
        compute.speak_bgp(BgpEnvironment::default());
        MigrationNode { compute, plan: NodePlan::default() }
    }

    fn put(&mut self, entry: &MigrationEntry) {
        self.compute.put(&entry.0, &entry.1);
        self.flush();
    }

    fn delete(&mut self, entry: &MigrationEntry) {
        self.compute.delete(&entry.0);
        self.flush();
    }

    fn flush(&mut self) {
        self.compute.flush().into_iter().for_each(|update| self.plan.apply(update));
    }

    fn announced(&mut self) {
        self.compute.announced(&id());
        self.flush();
    }

    fn settled(&mut self) {
        self.compute.settled(&id());
        self.flush();
    }

    fn is(&self) -> MigrationState {
        self.plan.workloads[&id()].migration
    }
}

fn id() -> WorkloadId {
    WorkloadId { orchestrator: "openstack".into(), workload: "stack/vm".into(), endpoint: "port".into() }
}

#[test]
fn arriving_machine_gets_routes_when_announced() {
    let (come, here) = (migration("m", "n2", "n1"), endpoint("n1"));
    let mut node = MigrationNode::new();
    node.put(&come);
    node.put(&here);
    assert_eq!(node.is(), MigrationState::Arriving);
    assert_eq!(node.plan.workloads[&id()].routed().count(), 0, "it runs elsewhere");
    node.settled();
    assert_eq!(node.is(), MigrationState::Arriving, "nothing has to settle yet");
    node.announced();
    assert_eq!((node.is(), node.plan.workloads[&id()].routed().count()), (MigrationState::Arrived, 2));
    node.put(&here);
    assert_eq!(node.is(), MigrationState::Arrived, "nothing has changed");
    node.delete(&come);
    assert_eq!(node.is(), MigrationState::Settling);
    node.announced();
    assert_eq!(node.is(), MigrationState::Settling);
    node.settled();
    assert_eq!(node.is(), MigrationState::None);
}

#[test]
fn end_of_migration_replaces_a_missed_announcement() {
    let (come, here) = (migration("m", "n2", "n1"), endpoint("n1"));
    let mut node = MigrationNode::new();
    node.put(&here);
    assert_eq!(node.is(), MigrationState::None);
    node.put(&come);
    assert_eq!(node.is(), MigrationState::Arriving, "its routes go, although they were there");
    node.delete(&come);
    assert_eq!(node.is(), MigrationState::Settling);
    // A failed migration leaves no state: the next one starts from the beginning.
    node.delete(&here);
    node.put(&here);
    assert_eq!(node.is(), MigrationState::None);
    node.put(&come);
    assert_eq!(node.is(), MigrationState::Arriving);
}

#[test]
fn target_that_migrates_again_is_a_source() {
    let (come, leave, here) = (migration("m1", "n2", "n1"), migration("m2", "n1", "n2"), endpoint("n1"));
    let mut node = MigrationNode::new();
    node.put(&come);
    node.put(&here);
    node.announced();
    node.put(&leave);
    assert_eq!(node.is(), MigrationState::Arrived, "the first migration is not over");
    node.delete(&come);
    assert_eq!(node.is(), MigrationState::None, "without waiting for routes");
    node.delete(&leave);
    assert_eq!(node.is(), MigrationState::None, "a migration that failed");
}

#[test]
fn migrations_of_others_do_not_matter() {
    let mut node = MigrationNode::new();
    node.put(&endpoint("n1"));
    node.put(&migration("there", "n2", "n3"));
    assert_eq!(node.is(), MigrationState::None);
    let mut other = party("n1");
    other["workloadEndpoint"]["endpointID"] = "another".into();
    node.put(&resource(Kind::LiveMigration, "stack", "other", json!({"target": other})));
    assert_eq!(node.is(), MigrationState::None);
    let whole = json!({"hostname": "n1", "orchestratorID": "openstack", "workloadID": "stack/vm"});
    node.put(&resource(Kind::LiveMigration, "stack", "whole", json!({"source": {"workload": whole}})));
    assert_eq!(node.is(), MigrationState::None);
}

#[test]
fn a_target_can_be_selected_by_its_labels() {
    let pod = json!({
        "orchestrator": "k8s", "node": "n1", "pod": "virt-launcher", "endpoint": "eth0",
        "interfaceName": "cali1", "ipNetworks": ["10.65.0.2/32"],
    });
    let pod = resource(Kind::WorkloadEndpoint, "vms", "n1-k8s-virt--launcher-eth0", pod);
    let id = WorkloadId {
        orchestrator: "k8s".into(),
        workload: "vms/virt-launcher".into(),
        endpoint: "eth0".into(),
    };
    let mut node = MigrationNode::new();
    node.put(&pod);
    for (selector, expected) in [
        ("job == 'other'", MigrationState::None),
        ("job == 'n1-k8s-virt--launcher-eth0'", MigrationState::Arriving),
    ] {
        node.put(&resource(Kind::LiveMigration, "vms", "m", json!({"target": {"selector": selector}})));
        assert_eq!(node.plan.workloads[&id].migration, expected, "{selector}");
    }
    // The host of the source does not matter: the name of a pod is enough.
    node.put(&resource(Kind::LiveMigration, "vms", "m", json!({})));
    assert_eq!(node.plan.workloads[&id].migration, MigrationState::Settling);
    let source = json!({"hostname": "", "orchestratorID": "k8s", "workloadID": "vms/virt-launcher"});
    node.put(&resource(Kind::LiveMigration, "vms", "m", json!({"source": {"workload": source}})));
    assert_eq!(node.plan.workloads[&id].migration, MigrationState::None);
}

#[test]
fn traffic_follows_the_machine_until_it_arrives() {
    let mut compute = PlanCompute::new("n1", ParameterEnvironment::default());
    let pool = resource(Kind::IPPool, "", "p", json!({"cidr": "10.65.0.0/16"}));
    let node =
        |name: &str, address: &str| resource(Kind::Node, "", name, json!({"bgp": {"ipv4Address": address}}));
    let key = StoreKey::Block { cidr: "10.65.0.0/26".parse().unwrap() };
    let text = json!({"cidr": "10.65.0.0/26", "affinity": "host:n1", "allocations": [null, null, 0],
        "attributes": [{"handle_id": "h", "secondary": {"node": "n2"}}]});
    let block = StoreValue::decode(&key, text.to_string().as_bytes()).unwrap();
    let (one, two) = (node("n1", "192.0.2.1/24"), node("n2", "192.0.2.2/24"));
    let mut plan = NodePlan::default();
    for (key, value) in [pool, one, two, (key, block), migration("m", "n2", "n1"), endpoint("n1")] {
        compute.put(&key, &value);
    }
    let address: ipnet::IpNet = "10.65.0.2/32".parse().unwrap();
    let mut route = |compute: &mut PlanCompute| -> Option<Route> {
        compute.flush().into_iter().for_each(|update| plan.apply(update));
        plan.routes.get(&RouteKey::from(address)).copied()
    };
    assert_eq!(route(&mut compute), Some(Route::via("192.0.2.2".parse().unwrap())));
    compute.announced(&id());
    assert_eq!(route(&mut compute), None, "it is the workload's own");
}

#[test]
fn bgp_exports_the_elevated_metric() {
    let mut node = MigrationNode::new();
    node.put(&resource(Kind::Node, "", "n1", json!({"bgp": {"ipv4Address": "192.0.2.1/24"}})));
    let export = |node: &MigrationNode| {
        let export = &node.plan.bgp.as_ref().unwrap().export;
        (export.elevated_v4, export.elevated_v6)
    };
    assert_eq!(export(&node), (512, 512));
    let spec = json!({"ipv4ElevatedRoutePriority": 100, "ipv6ElevatedRoutePriority": 200});
    node.put(&resource(Kind::FelixConfiguration, "", "default", spec));
    assert_eq!(export(&node), (100, 200));
    let settings = node.compute.settings();
    assert_eq!((settings.ipv4_elevated_priority, settings.ipv6_elevated_priority), (100, 200));
}

proptest! {
    /// In any order of events, routes lead to a machine unless a migration is still arriving, and all state is
    /// removed when no machine migrates any more.
    #[test]
    fn nothing_stays_of_migrations(events in proptest::collection::vec(0..8u8, 0..40)) {
        let (come, leave, here) = (migration("m1", "n2", "n1"), migration("m2", "n1", "n2"), endpoint("n1"));
        let mut node = MigrationNode::new();
        node.put(&here);
        for event in events {
            match event {
                0 => node.put(&come),
                1 => node.delete(&come),
                2 => node.put(&leave),
                3 => node.delete(&leave),
                4 => node.put(&here),
                5 => node.announced(),
                6 => node.settled(),
                _ => {
                    node.delete(&here);
                    node.put(&here);
                }
            }
            let known = node.plan.workloads[&id()].routed().count();
            prop_assert_eq!(known == 0, node.is() == MigrationState::Arriving);
        }
        node.delete(&come);
        node.delete(&leave);
        prop_assert!(matches!(node.is(), MigrationState::None | MigrationState::Settling));
        node.settled();
        prop_assert_eq!(node.is(), MigrationState::None);
    }
}
