//! The same document applied by calicoctl and by kubectl: the same object is stored, and errors name the same field.

use crate::world::{ApiserverFixture, DatastoreKind};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Output;
use tortie_model::Kind;
use tortie_testkit::{Etcd, samples};

/// Runs a program with arguments and input.
type RunProgram<'a> = &'a dyn Fn(&[&str], &str) -> Output;

#[test]
fn calicoctl_and_kubectl_write_the_same_in_kubernetes() {
    calicoctl_and_kubectl_write_the_same(&ApiserverFixture::new(DatastoreKind::Kubernetes));
}

#[test]
fn calicoctl_and_kubectl_write_the_same_in_etcd() {
    calicoctl_and_kubectl_write_the_same(&ApiserverFixture::new(DatastoreKind::Etcd(Etcd::start().unwrap())));
}

fn calicoctl_and_kubectl_write_the_same(world: &ApiserverFixture) {
    let mut objects = samples::all();
    if world.keeps_in_etcd() {
        objects.push(samples::profile());
    }
    for object in &objects {
        if object["kind"] == "BlockAffinity" {
            // calicoctl leaves IPAM records to `calicoctl ipam`.
            continue;
        }
        the_same_is_stored(world, object);
        if object["kind"] == "Tier" {
            // Other objects refer to the tier.
            must(&world.kubectl(&["create", "-f", "-"], &object.to_string()));
        }
    }
    for (kind, spec, fields) in wrong() {
        the_same_is_wrong(world, kind, &spec, fields);
    }
    policy_changes_are_audited(world);
}

/// kube-apiserver's audit log names user, verb and object of each change through the API server.
fn policy_changes_are_audited(world: &ApiserverFixture) {
    let policy = json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy",
        "metadata": {"name": "audited"}, "spec": {"selector": "all()", "types": ["Ingress"]}});
    must(&world.kubectl(&["create", "-f", "-"], &policy.to_string()));
    let patch = r#"{"spec": {"selector": "app == 'web'"}}"#;
    must(&world.kubectl(&["patch", "gnp", "audited", "--type=merge", "--patch", patch], ""));
    must(&world.kubectl(&["delete", "gnp", "audited"], ""));
    let verbs = || -> Vec<String> {
        let events = world.server.audited("admin").into_iter();
        let ours = events.filter(|event| {
            let object = &event["objectRef"];
            object["apiGroup"] == "projectcalico.org"
                && object["resource"] == "globalnetworkpolicies"
                && (object["name"] == "audited" || event["verb"] == "create")
        });
        ours.map(|event| event["verb"].as_str().unwrap().to_owned()).collect()
    };
    let expected = ["create", "patch", "delete"].map(str::to_owned);
    let has_all = || verbs().ends_with(&expected);
    tortie_testkit::eventually_showing("the changes are audited", has_all, || format!("{:?}", verbs()));
}

/// Creates and changes the object with each program and deletes it with the other.
fn the_same_is_stored(world: &ApiserverFixture, object: &Value) {
    let kind = Kind::from_name(object["kind"].as_str().unwrap()).unwrap();
    let mut changed = object.clone();
    changed["metadata"]["labels"] = json!({"kept": "no", "added": "yes"});
    changed["metadata"]["annotations"] = json!({"note": "short"});
    let before = world.stored(kind.plural());
    let programs: [(&str, RunProgram<'_>); 2] = [
        ("calicoctl", &|words, input| world.calicoctl(words, input)),
        ("kubectl", &|words, input| world.kubectl(words, input)),
    ];
    let written = [0, 1].map(|writer| {
        let (name, write) = programs[writer];
        let (_, delete) = programs[1 - writer];
        let found = [object, &changed].map(|document| {
            must(&write(&["apply", "-f", "-"], &document.to_string()));
            let mut stored = world.stored(kind.plural());
            stored.retain(|key, _| !before.contains_key(key));
            assert_eq!(stored.len(), 1, "{name} has written {stored:?}");
            stored.into_iter().map(|(key, value)| (key, comparable(&value))).collect::<Vec<_>>()
        });
        assert_ne!(found[0], found[1], "{name}: the change is stored");
        must(&delete(&["delete", "-f", "-"], &changed.to_string()));
        assert_eq!(world.stored(kind.plural()).len(), before.len(), "{kind} by {name} is deleted");
        found
    });
    assert_eq!(written[0], written[1], "{kind}: calicoctl's first");
}

/// Removes the metadata that differs in every object and kubectl's last-applied annotation.
fn comparable(stored: &Value) -> Value {
    let mut object = stored.clone();
    let metadata = object["metadata"].as_object_mut().unwrap();
    strip(metadata);
    // In the crd.projectcalico.org group Calico stores the metadata of its objects in an annotation.
    let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
    let wrapped = annotations.and_then(|all| all.get_mut("projectcalico.org/metadata"));
    if let Some(wrapped) = wrapped {
        let mut inner: Value = serde_json::from_str(wrapped.as_str().unwrap()).unwrap();
        strip(inner.as_object_mut().unwrap());
        *wrapped = inner;
    }
    object
}

fn strip(metadata: &mut serde_json::Map<String, Value>) {
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
        metadata.remove(field);
    }
    let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
}

/// Returns invalid specs of every kind, with the fields that the error must name.
fn wrong() -> Vec<(&'static str, Value, &'static [&'static str])> {
    let rule = |rule: Value| json!({"tier": "platform", "selector": "all()", "ingress": [rule]});
    vec![
        ("Tier", json!({"order": 3, "defaultAction": "Maybe"}), &["Spec.DefaultAction"]),
        ("GlobalNetworkPolicy", json!({"selector": "a ="}), &["Spec.Selector"]),
        (
            "GlobalNetworkPolicy",
            rule(json!({"action": "Allow", "source": {"nets": ["10.0.0.0/33"], "selector": "b ="}})),
            &["Source.Nets", "Source.Selector"],
        ),
        ("NetworkPolicy", rule(json!({"action": "Maybe"})), &["Action"]),
        ("NetworkPolicy", rule(json!({"action": "Allow", "destination": {"ports": [80]}})), &["Ingress[0]"]),
        ("StagedGlobalNetworkPolicy", json!({"stagedAction": "Never"}), &["StagedAction"]),
        ("StagedNetworkPolicy", json!({"selector": "has("}), &["Selector"]),
        ("StagedKubernetesNetworkPolicy", json!({"stagedAction": "Never"}), &["StagedAction"]),
        ("GlobalNetworkSet", json!({"nets": ["192.0.2.0/24", "nonsense"]}), &["Nets"]),
        ("NetworkSet", json!({"nets": ["10.0.0.0/33"]}), &["Nets"]),
        (
            "HostEndpoint",
            json!({"node": "n1", "interfaceName": "eth0", "expectedIPs": ["x"]}),
            &["ExpectedIPs"],
        ),
        ("IPPool", json!({"cidr": "10.0.0.0/33"}), &["Spec.CIDR"]),
        ("IPPool", json!({"cidr": "10.66.0.0/16", "blockSize": 12}), &["Spec.BlockSize"]),
        ("IPReservation", json!({"reservedCIDRs": ["x"]}), &["ReservedCIDRs"]),
        ("BGPConfiguration", json!({"logSeverityScreen": "Loud"}), &["LogSeverityScreen"]),
        ("BGPFilter", json!({"exportV4": [{"action": "Maybe"}]}), &["Action"]),
        ("BGPPeer", json!({"peerIP": "nonsense", "asNumber": 64512}), &["PeerIP"]),
        ("FelixConfiguration", json!({"logSeverityScreen": "Loud"}), &["LogSeverityScreen"]),
        ("CalicoNodeStatus", json!({"node": "n1", "classes": ["Nonsense"]}), &["Classes"]),
        (
            "KubeControllersConfiguration",
            json!({"logSeverityScreen": "Loud", "controllers": {}}),
            &["LogSeverityScreen"],
        ),
    ]
}

/// Field, value and reason of a validation error.
type ValidationComplaint = (String, String, String);

fn the_same_is_wrong(world: &ApiserverFixture, kind: &str, spec: &Value, fields: &[&str]) {
    let mut object = json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": "wrong"}, "spec": spec});
    if Kind::from_name(kind).unwrap().is_namespaced() {
        object["metadata"]["namespace"] = "shop".into();
    }
    let text = object.to_string();
    let [by_calicoctl, by_kubectl] =
        [world.calicoctl(&["create", "-f", "-"], &text), world.kubectl(&["create", "-f", "-"], &text)].map(
            |output| {
                assert!(!output.status.success(), "{text} is taken: {output:?}");
                String::from_utf8_lossy(&output.stderr).into_owned()
                    + &String::from_utf8_lossy(&output.stdout)
            },
        );
    let calicoctl: BTreeSet<ValidationComplaint> = by_calicoctl.lines().filter_map(of_calicoctl).collect();
    let kubectl: BTreeSet<ValidationComplaint> = by_kubectl.lines().filter_map(of_kubectl).collect();
    assert_eq!(calicoctl, kubectl, "{text}\n{by_calicoctl}\n{by_kubectl}");
    for field in fields {
        let named = calicoctl.iter().any(|(name, ..)| name.contains(field));
        assert!(named, "{field} of {text}: {by_calicoctl}");
    }
}

/// Parses `... error with field Spec.CIDR = 'x' (invalid CIDR)`, or the same after a dash.
fn of_calicoctl(line: &str) -> Option<ValidationComplaint> {
    let message =
        line.split_once("error with field ").map_or(line.trim_start_matches("-  "), |(_, rest)| rest);
    let (name, rest) = message.split_once(" = '")?;
    let (value, reason) = rest.split_once("' (")?;
    Some((name.to_owned(), value.to_owned(), reason.trim_end_matches(']').strip_suffix(')')?.to_owned()))
}

/// Parses `The IPPool "wrong" is invalid: Spec.CIDR: Invalid value: "x": invalid CIDR`, or the same after an
/// asterisk.
fn of_kubectl(line: &str) -> Option<ValidationComplaint> {
    let message = line.split_once(" is invalid: ").map_or(line, |(_, rest)| rest).trim_start_matches("* ");
    let (name, rest) = message.split_once(": Invalid value: ")?;
    let mut parts = serde_json::Deserializer::from_str(rest).into_iter::<String>();
    let value = parts.next()?.ok()?;
    let reason = rest.get(parts.byte_offset()..)?.strip_prefix(": ")?;
    Some((name.to_owned(), value, reason.to_owned()))
}

#[track_caller]
fn must(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}
