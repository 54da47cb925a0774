//! Tier permissions for every verb, in addition to RBAC on the resources, with real users, bindings and kubectl.

use crate::world::{ApiServerWorld, rule};
use serde_json::{Value, json};
use tortie_model::{StoreKey, StoreValue};
use tortie_testkit::{eventually, eventually_showing};

fn policy(name: &str, tier: &str) -> Value {
    json!({"apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"tier": tier, "selector": "all()"}})
}

const ALL: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
const POLICIES: &[&str] =
    &["networkpolicies", "globalnetworkpolicies", "stagednetworkpolicies", "stagedglobalnetworkpolicies"];
const TIER_RESOURCES: &[&str] = &[
    "tier.networkpolicies",
    "tier.globalnetworkpolicies",
    "tier.stagednetworkpolicies",
    "tier.stagedglobalnetworkpolicies",
];

#[test]
fn tiers_say_who_may_do_what() {
    let world = ApiServerWorld::with_rules();
    let tier = |name: &str| json!({"apiVersion": "projectcalico.org/v3", "kind": "Tier", "metadata": {"name": name}, "spec": {"order": 5}});
    world.must(
        &["apply", "-f", "-"],
        &[tier("net"), tier("sec"), policy("n1", "net"), policy("n2", "net"), policy("s1", "sec")]
            .map(|object| object.to_string())
            .join("\n---\n"),
    );
    // Jane has tier net, Joe may read one policy of tier sec, Jim has only permissions on the resources.
    world.grant(
        "jane",
        &[
            rule(POLICIES, ALL, &[]),
            rule(&["tiers"], &["get"], &["net"]),
            rule(TIER_RESOURCES, ALL, &["net.*"]),
        ],
    );
    world.grant(
        "joe",
        &[
            rule(POLICIES, ALL, &[]),
            rule(&["tiers"], &["get"], &["sec", "net"]),
            rule(TIER_RESOURCES, &["get"], &["s1"]),
        ],
    );
    world.grant("jim", &[rule(POLICIES, ALL, &[])]);
    // Bindings take effect with a delay.
    eventually("the rules are in force", || world.said("jane", &["get", "cnp", "-n", "shop", "n1"], "").0);
    let refusal = |user: &str, verb: &str, tier: &str, more: &str| {
        format!(
            "User \"{user}\" cannot {verb} networkpolicies.projectcalico.org in tier \"{tier}\" and namespace \"shop\"{more}"
        )
    };
    let in_shop = |words: &[&'static str]| [words, &["-n", "shop"]].concat();
    let (net3, sec3) = (policy("n3", "net").to_string(), policy("s3", "sec").to_string());
    let moved = r#"{"spec":{"tier":"sec"}}"#;
    let labelled = r#"{"metadata":{"labels":{"a":"b"}}}"#;
    for (user, words, input, outcome) in [
        ("jane", in_shop(&["get", "cnp", "n1"]), "", Ok("n1")),
        (
            "jane",
            in_shop(&["get", "cnp", "s1"]),
            "",
            Err(refusal("jane", "get", "sec", " (user cannot get tier)")),
        ),
        ("jane", vec!["create", "-f", "-"], net3.as_str(), Ok("created")),
        (
            "jane",
            vec!["create", "-f", "-"],
            sec3.as_str(),
            Err(refusal("jane", "create", "sec", " (user cannot get tier)")),
        ),
        ("jane", in_shop(&["patch", "cnp", "n1", "--type=merge", "-p", labelled]), "", Ok("patched")),
        // kubectl gets an object before it patches it.
        (
            "jane",
            in_shop(&["patch", "cnp", "s1", "--type=merge", "-p", labelled]),
            "",
            Err(refusal("jane", "get", "sec", " (user cannot get tier)")),
        ),
        // A policy cannot be moved to a tier without permission on it either.
        (
            "jane",
            in_shop(&["patch", "cnp", "n1", "--type=merge", "-p", moved]),
            "",
            Err(refusal("jane", "patch", "sec", " (user cannot get tier)")),
        ),
        (
            "jane",
            in_shop(&["delete", "cnp", "s1"]),
            "",
            Err(refusal("jane", "delete", "sec", " (user cannot get tier)")),
        ),
        ("jane", in_shop(&["delete", "cnp", "n3"]), "", Ok("deleted")),
        (
            "jane",
            in_shop(&["get", "cnp", "--field-selector=spec.tier=sec"]),
            "",
            Err(refusal("jane", "list", "sec", " (user cannot get tier)")),
        ),
        ("joe", in_shop(&["get", "cnp", "s1"]), "", Ok("s1")),
        ("joe", in_shop(&["get", "cnp", "n1"]), "", Err(refusal("joe", "get", "net", ""))),
        ("joe", in_shop(&["delete", "cnp", "s1"]), "", Err(refusal("joe", "delete", "sec", ""))),
        (
            "joe",
            in_shop(&["get", "cnp"]),
            "",
            Err("operation on Calico tiered policy is forbidden".to_owned()),
        ),
        (
            "jim",
            in_shop(&["get", "cnp", "n1"]),
            "",
            Err(refusal("jim", "get", "net", " (user cannot get tier)")),
        ),
        (
            "jim",
            in_shop(&["get", "cnp"]),
            "",
            Err("operation on Calico tiered policy is forbidden".to_owned()),
        ),
        ("jim", in_shop(&["get", "tiers"]), "", Err("cannot list resource \"tiers\"".to_owned())),
    ] {
        let (good, text) = world.said(user, &words, input);
        match outcome {
            Ok(part) => assert!(good && text.contains(part), "{user} {words:?}: {text}"),
            Err(part) => assert!(!good && text.contains(&part), "{user} {words:?}: {text}\n{part}"),
        }
    }
    let nowhere = r#"{"spec":{"tier":"gone"}}"#;
    let refused = world.refused(&["patch", "cnp", "n1", "-n", "shop", "--type=merge", "-p", nowhere], "");
    assert!(refused.contains("the tier does not exist: resource does not exist: Tier(gone)"), "{refused}");
    lists_and_watches_show_what_may_be_seen(&world);
    a_collection_is_deleted_as_far_as_permitted(&world);
    for kind in ["GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy", "NetworkPolicy"] {
        every_verb_of_every_kind(&world, kind);
    }
}

#[test]
fn pools_in_use_are_deleted_only_by_force() {
    let world = ApiServerWorld::with_rules();
    let pool = json!({"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": "pods"},
        "spec": {"cidr": "10.65.0.0/24", "blockSize": 29}});
    world.must(&["apply", "-f", "-"], &pool.to_string());
    let block = json!({"cidr": "10.65.0.0/29", "affinity": "host:n1", "allocations": [0, null, null, null, null, null, null, null],
        "unallocated": [1, 2, 3, 4, 5, 6, 7], "attributes": [{"handle_id": "net.web", "secondary": {"node": "n1"}}],
        "sequenceNumber": 1});
    let key = StoreKey::Block { cidr: "10.65.0.0/29".parse().unwrap() };
    let value = StoreValue::decode(&key, block.to_string().as_bytes()).unwrap();
    world.block_on(async |resources| resources.client().create(&key, &value).await.map(drop)).unwrap();
    let refused = world.refused(&["delete", "ippool", "pods"], "");
    assert!(refused.contains("1 addresses are assigned from 10.65.0.0/24"), "{refused}");
    world.refused(&["delete", "ippools", "--all"], "");
    world.must(&["get", "ippool", "pods"], "");
    world.must(&["delete", "ippool", "pods", "--force", "--grace-period=0"], "");
    world.refused(&["get", "ippool", "pods"], "");
}

/// User, request, and the verb and tier in the expected error.
type RequestCase<'a> = (&'a str, &'a str, String, &'a str, Value, Option<(&'a str, &'a str, &'a str)>);

/// Checks every verb of a request. Jane has tier net, Joe may read s1 of tier sec, Jim has only permissions on the
/// resources.
fn every_verb_of_every_kind(world: &ApiServerWorld, kind: &str) {
    let plural = tortie_model::Kind::from_name(kind).unwrap().plural();
    let is_global = kind.contains("Global");
    let base = match is_global {
        true => format!("/apis/projectcalico.org/v3/{plural}"),
        false => format!("/apis/projectcalico.org/v3/namespaces/shop/{plural}"),
    };
    let object = |name: &str, tier: &str| {
        let mut object = policy(name, tier);
        object["kind"] = kind.into();
        if is_global {
            object["metadata"].as_object_mut().unwrap().remove("namespace");
        }
        object
    };
    let mut current = std::collections::BTreeMap::new();
    for (name, tier) in [("v1", "net"), ("s1", "sec")] {
        world.must(&["apply", "-f", "-"], &object(name, tier).to_string());
        current.insert(name, world.server.must("GET", &format!("{base}/{name}"), None));
    }
    let within = if is_global { "" } else { " and namespace \"shop\"" };
    let unseen = " (user cannot get tier)";
    let json = "application/json";
    let merge = "application/merge-patch+json";
    let labelled = json!({"metadata": {"labels": {"seen": "yes"}}});
    let operations = json!([{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}]);
    let applied = |name: &str, tier: &str| {
        let mut object = object(name, tier);
        object["spec"] = json!({"tier": tier, "order": 3});
        object
    };
    let apply = "application/apply-patch+yaml";
    let one = |name: &str| format!("{base}/{name}");
    let manager = |name: &str| format!("{base}/{name}?fieldManager=tests&force=true");
    let cases: Vec<RequestCase> = vec![
        ("jane", "GET", one("v1"), json, Value::Null, None),
        ("jane", "GET", one("s1"), json, Value::Null, Some(("get", "sec", unseen))),
        ("jane", "PUT", one("v1"), json, current["v1"].clone(), None),
        ("jane", "PUT", one("s1"), json, current["s1"].clone(), Some(("update", "sec", unseen))),
        ("jane", "PATCH", one("v1"), merge, labelled.clone(), None),
        ("jane", "PATCH", one("s1"), merge, labelled.clone(), Some(("patch", "sec", unseen))),
        ("jane", "PATCH", one("v1"), "application/json-patch+json", operations.clone(), None),
        (
            "jane",
            "PATCH",
            one("s1"),
            "application/json-patch+json",
            operations,
            Some(("patch", "sec", unseen)),
        ),
        ("jane", "PATCH", manager("v1"), apply, applied("v1", "net"), None),
        ("jane", "PATCH", manager("s1"), apply, applied("s1", "sec"), Some(("patch", "sec", unseen))),
        ("jane", "PATCH", one("v1"), merge, json!({"spec": {"tier": "sec"}}), Some(("patch", "sec", unseen))),
        ("jane", "POST", base.clone(), json, object("v2", "net"), None),
        ("jane", "POST", base.clone(), json, object("v3", "sec"), Some(("create", "sec", unseen))),
        ("jane", "DELETE", one("v2"), json, Value::Null, None),
        ("jane", "DELETE", one("s1"), json, Value::Null, Some(("delete", "sec", unseen))),
        (
            "jane",
            "DELETE",
            format!("{base}?fieldSelector=spec.tier%3Dsec"),
            json,
            Value::Null,
            Some(("deletecollection", "sec", unseen)),
        ),
        ("joe", "GET", one("s1"), json, Value::Null, None),
        ("joe", "PUT", one("s1"), json, current["s1"].clone(), Some(("update", "sec", ""))),
        ("joe", "PATCH", one("s1"), merge, labelled.clone(), Some(("patch", "sec", ""))),
        ("joe", "DELETE", one("s1"), json, Value::Null, Some(("delete", "sec", ""))),
        (
            "joe",
            "DELETE",
            format!("{base}?labelSelector=projectcalico.org%2Ftier%3Dsec"),
            json,
            Value::Null,
            Some(("deletecollection", "sec", "")),
        ),
        ("jim", "PATCH", one("v1"), merge, labelled, Some(("patch", "net", unseen))),
        ("jim", "PUT", one("v1"), json, current["v1"].clone(), Some(("update", "net", unseen))),
    ];
    for (user, method, path, form, body, refused) in cases {
        let body = Some(&body).filter(|body| !body.is_null());
        let answer = world.server.send_as(&format!("secret-{user}"), method, &path, form, body);
        match refused {
            None => assert!(answer.is_ok(), "{user} {method} {path}: {answer:?}"),
            Some((verb, tier, more)) => {
                let said = answer.unwrap_err().replace("\\\"", "\"");
                let expected = format!(
                    "User \"{user}\" cannot {verb} {plural}.projectcalico.org in tier \"{tier}\"{within}{more}"
                );
                assert!(
                    said.contains(" 403 ") && said.contains(&expected),
                    "{method} {path}: {said}\n{expected}"
                );
            }
        }
    }
    for user in ["joe", "jim"] {
        let said = world.server.send_as(&format!("secret-{user}"), "DELETE", &base, json, None).unwrap_err();
        assert!(said.contains("operation on Calico tiered policy is forbidden"), "{said}");
    }
    world.server.send_as("secret-jane", "DELETE", &base, json, None).unwrap();
    let left = world.server.must("GET", &base, None);
    let names: Vec<&Value> =
        left["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(names, ["s1"], "{kind}");
}

fn lists_and_watches_show_what_may_be_seen(world: &ApiServerWorld) {
    let (good, names) = world.said("jane", &["get", "cnp", "-n", "shop", "-o", "name"], "");
    assert!(good && names.contains("/n1") && names.contains("/n2") && !names.contains("/s1"), "{names}");
    // A watch returns no more objects than a list.
    let path = world.server.path("watched");
    let mut command = world.server.program("kubectl");
    command.arg("--kubeconfig").arg(world.server.kubeconfig_of("jane"));
    command
        .args(["get", "cnp", "-n", "shop", "-o", "name", "-w"])
        .stdout(std::fs::File::create(&path).unwrap());
    let _watch = tortie_testkit::TestProcess::start(&mut command);
    let seen = || std::fs::read_to_string(&path).unwrap();
    eventually_showing("what is there is seen", || seen().contains("/n2"), seen);
    world.must(&["label", "cnp", "-n", "shop", "s1", "changed=yes"], "");
    world.must(&["label", "cnp", "-n", "shop", "n1", "changed=yes"], "");
    eventually_showing("what changes is seen", || seen().matches("/n1").count() == 2, seen);
    assert!(!seen().contains("/s1"), "{}", seen());
    what_moves_out_of_sight_was_deleted(world);
}

/// A policy that moves to a hidden tier is reported as deleted, with its last visible content.
fn what_moves_out_of_sight_was_deleted(world: &ApiServerWorld) {
    let policies = "/apis/projectcalico.org/v3/namespaces/shop/networkpolicies";
    let created = world.server.create(policies, &policy("moved", "net"));
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    let path = world.server.path("moved");
    let mut command = std::process::Command::new("curl");
    command.args(["-skN", "-H", "Authorization: Bearer secret-jane"]);
    command.arg(format!("{}{policies}?watch=1&resourceVersion={version}", world.server.url()));
    let _watch = tortie_testkit::TestProcess::start(command.stdout(std::fs::File::create(&path).unwrap()));
    let seen = || std::fs::read_to_string(&path).unwrap();
    let hidden = json!({"spec": {"tier": "sec", "selector": "hidden == 'yes'"}});
    let moved = world.server.merge(&format!("{policies}/moved"), &hidden);
    // Later changes and the deletion in the other tier are not visible either.
    world.server.merge(&format!("{policies}/moved"), &json!({"metadata": {"labels": {"hidden": "yes"}}}));
    world.server.must("DELETE", &format!("{policies}/moved"), None);
    world.must(&["label", "cnp", "-n", "shop", "n2", "changed=yes"], "");
    eventually_showing("a change in her tier is seen", || seen().contains("\"name\":\"n2\""), seen);
    let events: Vec<Value> = seen().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let [deleted, _] = events.as_slice() else { panic!("{}", seen()) };
    assert_eq!(deleted["type"], "DELETED");
    let object = &deleted["object"];
    assert_eq!((&object["spec"]["tier"], &object["spec"]["selector"]), (&json!("net"), &json!("all()")));
    assert_eq!(object["metadata"]["resourceVersion"], moved["metadata"]["resourceVersion"]);
    assert!(!seen().contains("hidden"), "{}", seen());
}

fn a_collection_is_deleted_as_far_as_permitted(world: &ApiServerWorld) {
    let (good, text) = world.said(
        "jane",
        &["delete", "--raw", "/apis/projectcalico.org/v3/namespaces/shop/networkpolicies"],
        "",
    );
    assert!(good, "{text}");
    let left = world.must(&["get", "cnp", "-n", "shop", "-o", "name"], "");
    assert_eq!(left, "networkpolicy.projectcalico.org/s1\n");
}
