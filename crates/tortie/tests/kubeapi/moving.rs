//! calicoctl and `tortie diff` on the Kubernetes datastore: reading, writing, comparing, and migrating from etcd and
//! back.

use crate::world::{KubernetesNodeFixture, NODE_NAME};
use serde_json::{Value, json};
use std::process::Command;
use tortie_testkit::{CalicoGroup, Etcd};

/// Kinds that are migrated; each is read back from the target.
const MIGRATED_KINDS: [&str; 9] = [
    "ippools",
    "tiers",
    "globalnetworkpolicies",
    "networkpolicies",
    "globalnetworksets",
    "stagednetworkpolicies",
    "bgpfilters",
    "felixconfigurations",
    "ipreservations",
];

fn documents() -> String {
    let object = |kind: &str, namespace: &str, name: &str, spec: Value| {
        let mut object = json!({"apiVersion": "projectcalico.org/v3", "kind": kind,
            "metadata": {"name": name, "labels": {"kept": "yes"}}, "spec": spec});
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = namespace.into();
        }
        object.to_string()
    };
    let allow =
        json!([{"action": "Allow", "protocol": "TCP", "destination": {"ports": [80, "8000:8080", "web"]}}]);
    [
        object("IPPool", "", "pods", json!({"cidr": "10.65.0.0/16", "ipipMode": "CrossSubnet"})),
        object("Tier", "", "platform", json!({"order": 7.5})),
        object(
            "GlobalNetworkPolicy",
            "",
            "platform.web",
            json!({"tier": "platform", "order": 3, "selector": "a == 'b'", "ingress": allow}),
        ),
        object("NetworkPolicy", "shop", "own", json!({"selector": "all()", "egress": [{"action": "Deny"}]})),
        object("GlobalNetworkSet", "", "outside", json!({"nets": ["192.0.2.0/24", "2001:db8::/32"]})),
        object("StagedNetworkPolicy", "shop", "maybe", json!({"selector": "all()", "ingress": allow})),
        object("BGPFilter", "", "some", json!({"exportV4": [{"action": "Accept"}]})),
        object("FelixConfiguration", "", "default", json!({"logSeverityScreen": "Warning"})),
        object("IPReservation", "", "kept", json!({"reservedCIDRs": ["10.65.1.0/30"]})),
        object(
            "Node",
            "",
            NODE_NAME,
            json!({"bgp": {"ipv4Address": "192.0.2.7/24", "asNumber": 64512},
                "orchRefs": [{"nodeName": NODE_NAME, "orchestrator": "k8s"}]}),
        ),
    ]
    .join("\n---\n")
}

/// Returns the objects without the metadata that each datastore assigns.
fn objects(text: &str) -> Vec<Value> {
    let list: Value = serde_json::from_str(text).unwrap();
    let mut items = list["items"].as_array().cloned().unwrap_or_default();
    for item in &mut items {
        let meta = item["metadata"].as_object_mut().unwrap();
        ["uid", "resourceVersion", "creationTimestamp", "generation"]
            .iter()
            .for_each(|field| drop(meta.remove(*field)));
    }
    items
}

fn on_etcd(etcd: &Etcd, args: &[&str], input: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
    command.arg("ctl").args(args).env("DATASTORE_TYPE", "etcdv3").env("ETCD_ENDPOINTS", etcd.endpoint());
    let output = tortie_testkit::output(&mut command, input);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn migration_between_etcd_and_kubernetes() {
    let etcd = Etcd::start().unwrap();
    on_etcd(&etcd, &["apply", "-f", "-"], &documents());
    for (key, value) in [
        ("/calico/ipam/v2/host/n1/ipv4/block/10.65.3.0-26", r#"{"state":"confirmed","deleted":false}"#),
        (
            "/calico/ipam/v2/assignment/ipv4/block/10.65.3.0-26",
            r#"{"cidr":"10.65.3.0/26","affinity":"host:n1","allocations":[],"unallocated":[],"attributes":[],"deleted":false}"#,
        ),
        ("/calico/ipam/v2/handle/k8s-pod-network.x", r#"{"block":{"10.65.3.0/26":1},"deleted":false}"#),
    ] {
        etcd.ctl(&["put", key, value]).unwrap();
    }
    on_etcd(&etcd, &["datastore", "migrate", "lock"], "");
    let exported = on_etcd(&etcd, &["datastore", "migrate", "export"], "");

    for group in CalicoGroup::BOTH {
        let world = KubernetesNodeFixture::without_node(group);
        let said = world.tool("calicoctl", &["datastore", "migrate", "import", "-f", "-"], &exported);
        assert!(said.contains("Successfully applied 3 IPAM resource(s)"), "{said}");
        let again = world.try_tool("calicoctl", &["datastore", "migrate", "import", "-f", "-"], &exported);
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(!again.status.success() && said.contains("already has Calico resources"), "{said}");
        for kind in MIGRATED_KINDS {
            let get: Vec<&str> = ["get", kind, "-o", "json"].into_iter().chain(scope(kind)).collect();
            let there = objects(&world.tool("calicoctl", &get, ""));
            assert_eq!(there, objects(&on_etcd(&etcd, &get, "")), "{kind}");
        }
        let node: Value =
            serde_json::from_str(&world.tool("calicoctl", &["get", "node", NODE_NAME, "-o", "json"], ""))
                .unwrap();
        assert_eq!(node["spec"]["bgp"]["asNumber"], 64512);
        assert!(world.tool("calicoctl", &["ipam", "show", "--show-blocks"], "").contains("10.65.3.0/26"));
        world.tool("calicoctl", &["datastore", "migrate", "unlock"], "");

        // Migrate back to etcd.
        world.tool("calicoctl", &["datastore", "migrate", "lock"], "");
        let back = world.tool("calicoctl", &["datastore", "migrate", "export"], "");
        let fresh = Etcd::start().unwrap();
        on_etcd(&fresh, &["datastore", "migrate", "import", "-f", "-"], &back);
        for kind in MIGRATED_KINDS {
            let get: Vec<&str> = ["get", kind, "-o", "json"].into_iter().chain(scope(kind)).collect();
            assert_eq!(objects(&on_etcd(&fresh, &get, "")), objects(&on_etcd(&etcd, &get, "")), "{kind}");
        }
        let profiles = on_etcd(&fresh, &["get", "profiles"], "");
        assert!(profiles.contains("kns.shop"), "{profiles}");
    }
}

fn scope(kind: &str) -> Option<&'static str> {
    ["networkpolicies", "stagednetworkpolicies"].contains(&kind).then_some("-A")
}

#[test]
fn tools_read_write_and_compare() {
    let world = KubernetesNodeFixture::without_node(CalicoGroup::V3);
    let ctl = |args: &[&str], input: &str| world.tool("calicoctl", args, input);
    ctl(&["apply", "-f", "-"], &documents());
    ctl(&["label", "globalnetworksets", "outside", "seen=yes"], "");
    let set = ctl(&["get", "globalnetworkset", "outside", "-o", "yaml"], "");
    assert!(set.contains("seen: \"yes\"") && set.contains("kept: \"yes\""), "{set}");
    ctl(&["patch", "globalnetworkset", "outside", "-p", r#"{"spec": {"nets": ["198.51.100.0/24"]}}"#], "");
    assert!(ctl(&["get", "globalnetworkset", "outside", "-o", "yaml"], "").contains("198.51.100.0/24"));
    let profiles = ctl(&["get", "profiles"], "");
    assert!(profiles.contains("kns.shop") && profiles.contains("kns.other"), "{profiles}");
    let refused = world.try_tool("calicoctl", &["delete", "profile", "kns.shop"], "");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("profiles are made from namespaces and service accounts"), "{said}");
    ctl(&["delete", "globalnetworkset", "outside"], "");

    // Show the effect of a policy change on pods of Kubernetes.
    for (pod, address) in [("web", "10.65.0.9"), ("client", "10.65.0.10")] {
        world.server.add_pod("shop", pod, NODE_NAME, json!({"app": pod}), json!([]));
        world.server.set_pod_addresses("shop", pod, &[address.to_owned()]);
    }
    let closing = json!({"apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": "shop"},
        "spec": {"selector": "app == 'web'", "types": ["Ingress"]}});
    let compared = world.try_tool("tortie", &["diff", "-f", "-"], &closing.to_string());
    let said = String::from_utf8_lossy(&compared.stdout).into_owned();
    assert!(said.contains("shop/web"), "{said} {compared:?}");
}
