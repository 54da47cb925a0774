//! Tests that need several datastores, several processes or another kind of connection.

use crate::lab::{CalicoctlLab, CommandOutput, LabBackend, repository};
use std::collections::BTreeMap;

/// Returns all keys of a datastore except the ClusterInformation.
fn contents(lab: &CalicoctlLab) -> BTreeMap<String, String> {
    let keys = lab.keys("/calico").into_iter().filter(|key| !key.contains("/clusterinformations/"));
    keys.map(|key| {
        let value = lab.stored(&key);
        (key, crate::round_trip::normalised(&value))
    })
    .collect()
}

fn put(lab: &CalicoctlLab, key: &str, value: &str) {
    let ran: CommandOutput = lab.command("etcdctl").args(["put", key, value]).output().unwrap().into();
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// Stores the examples that are exported.
fn fill(lab: &CalicoctlLab) {
    for plural in ["tiers", "bgpfilters"] {
        lab.must(&["apply", "-f", &format!("{}/examples/{plural}.yaml", repository().display())]);
    }
    for plural in [
        "ippools",
        "bgppeers",
        "globalnetworkpolicies",
        "stagedglobalnetworkpolicies",
        "globalnetworksets",
        "hostendpoints",
        "kubecontrollersconfigurations",
        "networkpolicies",
        "stagednetworkpolicies",
        "stagedkubernetesnetworkpolicies",
        "networksets",
        "nodes",
        "bgpconfigurations",
        "felixconfigurations",
        "ipreservations",
    ] {
        lab.must(&["apply", "-f", &format!("{}/examples/{plural}.yaml", repository().display())]);
    }
    put(lab, "/calico/ipam/v2/config", r#"{"strict_affinity":true,"auto_allocate_blocks":true}"#);
    put(
        lab,
        "/calico/ipam/v2/host/rack1-n7/ipv4/block/10.65.3.0-26",
        r#"{"state":"confirmed","deleted":false}"#,
    );
    put(lab, "/calico/ipam/v2/virtual/lb/ipv4/block/10.65.4.0-26", r#"{"state":"pending","deleted":false}"#);
}

#[test]
fn migration_between_etcd_and_the_embedded_store() {
    let etcd = CalicoctlLab::on(LabBackend::Etcd);
    fill(&etcd);
    etcd.must(&["datastore", "migrate", "lock"]);
    let exported = etcd.must(&["datastore", "migrate", "export"]);
    let embedded = CalicoctlLab::on(LabBackend::Embedded);
    let ran = embedded.calicoctl_with(&["datastore", "migrate", "import", "-f", "-"], exported.as_bytes());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(contents(&embedded), contents(&etcd));
    let back = embedded.must(&["datastore", "migrate", "export"]);
    let fresh = CalicoctlLab::on(LabBackend::Etcd);
    let ran = fresh.calicoctl_with(&["datastore", "migrate", "import", "-f", "-"], back.as_bytes());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(contents(&fresh), contents(&etcd));
    let guid = |lab: &CalicoctlLab| {
        lab.must(&["get", "clusterinfo", "-o", "custom-columns=CLUSTERGUID,DATASTOREREADY"])
    };
    assert_eq!(guid(&fresh), guid(&etcd));
}

/// Without any configuration, calicoctl uses the socket of the embedded datastore if it exists.
#[test]
fn the_embedded_store_is_found_by_its_socket() {
    let lab = CalicoctlLab::on_socket();
    let socket = lab.endpoint();
    let path = socket.strip_prefix("unix://").unwrap();
    let mut command = lab.command(lab.program("calicoctl"));
    command.env_remove("ETCD_ENDPOINTS").env("TORTIE_DATASTORE_SOCKET", path).args(["get", "profiles"]);
    let ran: CommandOutput = command.output().unwrap().into();
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    // The socket can also be configured as an endpoint.
    lab.must(&["get", "profiles"]);
}

/// Concurrent writers retry on conflict, so that no label is lost.
#[test]
fn concurrent_labels_are_all_kept() {
    let lab = CalicoctlLab::on(LabBackend::Etcd);
    let set = "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: s}}";
    assert_eq!(lab.calicoctl_with(&["create", "-f", "-"], set.as_bytes()).code, Some(0));
    std::thread::scope(|scope| {
        for writer in ["a", "b", "c", "d"] {
            let lab = &lab;
            scope.spawn(move || {
                for round in 0..3 {
                    lab.must(&["label", "gnetsets", "s", &format!("{writer}{round}=x")]);
                }
            });
        }
    });
    let stored = lab.stored("/calico/resources/v3/projectcalico.org/globalnetworksets/s");
    for label in ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2", "d0", "d1", "d2"] {
        assert!(stored.contains(&format!("\"{label}\":\"x\"")), "{label} is not in {stored}");
    }
}
