//! Kubernetes with the manifests of `deploy/` and our API server with the validation of `model` accept and reject the
//! same objects.

use super::admission::collection;
use super::{CustomResourceCluster, manifest, object};
use serde_json::{Value, json};
use std::path::Path;
use tortie_model::{Kind, Resource, codec};
use tortie_testkit::conformance;

/// Decodes, defaults and validates an object as our API server does before storing it.
fn check_types(object: &Value) -> Result<(), String> {
    let mut resource = Resource::from_user(object.clone()).map_err(|error| error.to_string())?;
    resource.set_defaults();
    resource.validate().map_err(|error| error.to_string())
}

/// Returns whether Kubernetes would store the object; an existing object of the same name does not matter.
fn check_kubernetes(custom: &CustomResourceCluster, object: &Value) -> Result<(), String> {
    let kind = Kind::from_name(object["kind"].as_str().unwrap()).unwrap();
    let path = format!("{}?dryRun=All", collection(kind));
    match custom.cluster.server.send("POST", &path, Some(object)) {
        Err(refusal) if !refusal.contains("AlreadyExists") => Err(refusal),
        _ => Ok(()),
    }
}

pub fn both_are_of_one_opinion(custom: &CustomResourceCluster) -> Vec<String> {
    // With client-side apply, as an administrator does: the whole object goes into an annotation, whose size is
    // limited.
    custom.cluster.must(&["apply", "-f", "-"], &manifest("00-crds.yaml"));
    let mut problems = Vec::new();
    for (kind, spec) in wrong() {
        let name = if kind == "KubeControllersConfiguration" { "default" } else { "wrong" };
        let sent = object(kind, name, spec);
        if check_types(&sent).is_ok() {
            problems.push(format!("the types accept {sent}"));
        }
        if check_kubernetes(custom, &sent).is_ok() {
            problems.push(format!("Kubernetes accepts {sent}"));
        }
    }
    let right = right();
    assert!(right.len() > 60, "{} examples and policies of conformance cases", right.len());
    for sent in right {
        problems
            .extend(check_types(&sent).err().map(|refusal| format!("the types refuse {sent}: {refusal}")));
        let refusal = check_kubernetes(custom, &sent).err();
        problems.extend(refusal.map(|refusal| format!("Kubernetes refuses {sent}: {refusal}")));
    }
    problems
}

/// Returns all examples and all objects of the conformance cases, of kinds that Kubernetes stores.
fn right() -> Vec<Value> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let files =
        [examples.clone(), examples.join("quickstart")].map(|folder| std::fs::read_dir(folder).unwrap());
    let files = files.into_iter().flatten().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let documents = files.flat_map(|file| codec::documents(&std::fs::read(file).unwrap()).unwrap());
    let cases = conformance::cases().into_iter().flat_map(|case| case.steps).flat_map(|step| step.applied());
    let cases = conformance::world().into_iter().chain(cases).map(|resource| resource.to_value());
    let stored = |object: &Value| {
        let kind = object["kind"].as_str().and_then(Kind::from_name);
        kind.is_some_and(|kind| {
            !matches!(kind, Kind::WorkloadEndpoint | Kind::Node | Kind::Profile | Kind::LiveMigration)
        })
    };
    let placed = |mut object: Value| {
        if object["metadata"].get("namespace").is_some() {
            object["metadata"]["namespace"] = json!("shop");
        }
        object
    };
    documents.chain(cases).filter(stored).map(placed).collect()
}

fn wrong() -> Vec<(&'static str, Value)> {
    let mut cases = Vec::new();
    for rule in [
        json!({"action": "Nod"}),
        json!({}),
        json!({"action": "Allow", "ipVersion": 5}),
        json!({"action": "Allow", "protocol": "tcp"}),
        json!({"action": "Allow", "protocol": "bogus"}),
        json!({"action": "Allow", "protocol": 256}),
        json!({"action": "Allow", "notProtocol": "0"}),
        json!({"action": "Allow", "protocol": "TCP", "destination": {"ports": [800_000]}}),
        json!({"action": "Allow", "protocol": "TCP", "destination": {"ports": [0]}}),
        json!({"action": "Allow", "protocol": "TCP", "destination": {"ports": ["1:65536"]}}),
        json!({"action": "Allow", "protocol": "TCP", "destination": {"notPorts": ["90:80"]}}),
        json!({"action": "Allow", "protocol": "TCP", "source": {"ports": ["WEB"]}}),
        json!({"action": "Allow", "destination": {"ports": [80]}}),
        json!({"action": "Allow", "destination": {"ports": ["80"]}}),
        json!({"action": "Allow", "source": {"notPorts": ["web", "1:2"]}}),
        json!({"action": "Allow", "protocol": "ICMP", "source": {"ports": ["web"]}}),
        json!({"action": "Allow", "protocol": "ICMP", "icmp": {"type": 255}}),
        json!({"action": "Allow", "protocol": "ICMP", "icmp": {"type": 1, "code": 256}}),
        json!({"action": "Allow", "protocol": "1", "ipVersion": 6}),
        json!({"action": "Allow", "source": {"nets": ["10.0.0.0/33"]}}),
        json!({"action": "Allow", "source": {"nets": ["10.0.0.1/8"]}}),
        json!({"action": "Allow", "source": {"nets": ["10.0.0.1"]}}),
        json!({"action": "Allow", "source": {"nets": ["fd00::1/8"]}}),
        json!({"action": "Allow", "source": {"nets": ["::ffff:10.0.0.0/104"]}}),
        json!({"action": "Allow", "source": {"nets": ["10.0.0.0/8"]}, "destination": {"notNets": ["fd00::/8"]}}),
        json!({"action": "Allow", "ipVersion": 6, "source": {"nets": ["10.0.0.0/8"]}}),
        json!({"action": "Allow", "source": {"notNets": ["0.0.0.0/0"]}}),
        json!({"action": "Allow", "source": {"selector": "role =="}}),
        json!({"action": "Allow", "source": {"selector": "global()"}}),
        json!({"action": "Allow", "source": {"notSelector": "(has(x)"}}),
        json!({"action": "Allow", "source": {"namespaceSelector": "global() || has(x)"}}),
        json!({"action": "Allow", "source": {"serviceAccounts": {"selector": "a in {'b'"}}}),
        json!({"action": "Allow", "source": {"serviceAccounts": {"names": ["A"]}}}),
        json!({"action": "Allow", "source": {"services": {"name": "A_"}}}),
        json!({"action": "Allow", "http": {"paths": [{"exact": "a"}]}}),
        json!({"action": "Allow", "http": {"methods": ["GET", "GET"]}}),
        json!({"action": "Allow", "metadata": {"annotations": {"no good": ""}}}),
    ] {
        for kind in ["NetworkPolicy", "StagedGlobalNetworkPolicy"] {
            cases.push((kind, json!({"ingress": [rule]})));
        }
    }
    let nested = format!("{}all(){}", "(".repeat(32), ")".repeat(32));
    for spec in [
        json!({"selector": "role =="}),
        json!({"selector": "&& has(x)"}),
        json!({"selector": "has(x) &&"}),
        json!({"selector": nested}),
        json!({"selector": format!("has({})", "x".repeat(513))}),
        json!({"serviceAccountSelector": "!"}),
        json!({"order": "high"}),
        json!({"tier": "a.b"}),
        json!({"types": ["Both"]}),
        json!({"types": ["Ingress", "Ingress"]}),
    ] {
        cases.push(("NetworkPolicy", spec));
    }
    for spec in [json!({"stagedAction": "Delete", "types": ["Ingress"]}), json!({"stagedAction": "Drop"})] {
        cases.push(("StagedNetworkPolicy", spec));
    }
    for (kind, spec) in [
        ("Tier", json!({"order": "high"})),
        ("Tier", json!({"defaultAction": "Allow"})),
        ("IPPool", json!({"cidr": "10.65.0.0/16", "blockSize": 19})),
        ("IPPool", json!({"cidr": "10.65.0.0/16", "nodeSelector": "rack =="})),
        ("GlobalNetworkSet", json!({"nets": ["web"]})),
        ("NetworkSet", json!({"nets": ["10.0.0.0/33"]})),
        ("IPReservation", json!({"reservedCIDRs": ["x"]})),
        ("HostEndpoint", json!({"node": "N1", "interfaceName": "eth0"})),
        ("HostEndpoint", json!({"node": "n1", "interfaceName": "not an interface"})),
        ("HostEndpoint", json!({"node": "n1", "expectedIPs": ["192.0.2.0/24"]})),
        (
            "HostEndpoint",
            json!({"node": "n1", "interfaceName": "*", "ports": [{"name": "a", "protocol": "ICMP", "port": 1}]}),
        ),
        ("BGPPeer", json!({"peerIP": "192.0.2.1:0"})),
        ("BGPPeer", json!({"peerIP": "192.0.2.1", "filters": ["B"]})),
        ("BGPPeer", json!({"nodeSelector": "rack ==", "peerIP": "192.0.2.1"})),
        ("BGPFilter", json!({"exportV4": [{"action": "Accept", "cidr": "fd00::/8", "matchOperator": "In"}]})),
        ("BGPFilter", json!({"importV6": [{"action": "Accept", "communities": {"values": ["65536:1"]}}]})),
        (
            "BGPConfiguration",
            json!({"prefixAdvertisements": [{"cidr": "10.0.0.0/8", "communities": ["undefined"]}]}),
        ),
        ("BGPConfiguration", json!({"ignoredInterfaces": ["*"]})),
        ("FelixConfiguration", json!({"openstackRegion": "north/1"})),
        ("FelixConfiguration", json!({"externalNodesList": ["fd00::/8"]})),
        ("FelixConfiguration", json!({"kubeNodePortRanges": ["http"]})),
        ("FelixConfiguration", json!({"bpfConntrackTimeouts": {"udpTimeout": "soon"}})),
        ("CalicoNodeStatus", json!({"node": "n1", "classes": ["Weather"], "updatePeriodSeconds": 0})),
        ("BlockAffinity", json!({"node": "n1", "state": "confirmed", "cidr": "10.65.3.1/26"})),
        (
            "KubeControllersConfiguration",
            json!({"controllers": {"node": {"hostEndpoint": {"templates": [
                {"generateName": "t", "interfacePattern": "x", "labels": {"-a": "b"}}]}}}}),
        ),
        (
            "StagedKubernetesNetworkPolicy",
            json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
        ),
        (
            "StagedKubernetesNetworkPolicy",
            json!({"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}]}]}),
        ),
    ] {
        cases.push((kind, spec));
    }
    cases
}
