//! Tier permissions for writes where Kubernetes serves the policies itself, with real users, bindings and kubectl.

use super::{CustomResourceCluster, LONG_LIFETIMES, object};
use crate::world::rule;
use serde_json::{Value, json};
use tortie_testkit::eventually_showing;

/// Kind, resource, and the kubectl arguments for its namespace.
const KINDS: [(&str, &str, &[&str]); 4] = [
    ("NetworkPolicy", "networkpolicies", &["-n", "shop"]),
    ("GlobalNetworkPolicy", "globalnetworkpolicies", &[]),
    ("StagedNetworkPolicy", "stagednetworkpolicies", &["-n", "shop"]),
    ("StagedGlobalNetworkPolicy", "stagedglobalnetworkpolicies", &[]),
];
const ALL: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// User, kubectl arguments, input and expected result.
type KubectlCase<'a> = (&'a str, Vec<String>, &'a str, Result<&'a str, String>);

fn policy(kind: &str, name: &str, tier: &str) -> Value {
    let mut policy = object(kind, name, json!({"tier": tier, "selector": "all()"}));
    if !kind.contains("Global") {
        policy["metadata"]["namespace"] = "shop".into();
    }
    policy
}

#[test]
fn tiers_say_who_may_write() {
    let mut custom = CustomResourceCluster::new();
    custom.start_webhooks(LONG_LIFETIMES);
    let cluster = &custom.cluster;
    let resources = KINDS.map(|(_, resource, _)| resource);
    let in_tiers = resources.map(|resource| format!("tier.{resource}"));
    let in_tiers: Vec<&str> = in_tiers.iter().map(String::as_str).collect();
    // Jane has tier net, Joe may get both tiers and change one policy of sec, Jim has only permissions on the
    // resources.
    cluster.grant(
        "jane",
        &[rule(&resources, ALL, &[]), rule(&["tiers"], &["get"], &["net"]), rule(&in_tiers, ALL, &["net.*"])],
    );
    cluster.grant(
        "joe",
        &[
            rule(&resources, ALL, &[]),
            rule(&["tiers"], &["get"], &["sec", "net"]),
            rule(&in_tiers, &["update"], &["s1"]),
        ],
    );
    cluster.grant("jim", &[rule(&resources, ALL, &[])]);
    for tier in ["net", "sec"] {
        cluster.must(&["create", "-f", "-"], &object("Tier", tier, json!({"order": 5})).to_string());
    }
    let can = || cluster.said("jane", &["auth", "can-i", "create", "networkpolicies.projectcalico.org"], "");
    eventually_showing("the rules are in force", || can().0, || can().1);
    for (kind, resource, place) in KINDS {
        let full = format!("{resource}.projectcalico.org");
        for (name, tier) in [("n1", "net"), ("n2", "net"), ("s1", "sec")] {
            cluster.must(&["create", "-f", "-"], &policy(kind, name, tier).to_string());
        }
        let refusal = |user: &str, verb: &str, tier: &str, more: &str| {
            let within = if place.is_empty() { "" } else { " and namespace \"shop\"" };
            format!("User \"{user}\" cannot {verb} {full} in tier \"{tier}\"{within}{more}")
        };
        let unseen = " (user cannot get tier)";
        let (net3, sec3) = (policy(kind, "n3", "net").to_string(), policy(kind, "s3", "sec").to_string());
        let nowhere = policy(kind, "x", "nowhere").to_string();
        let (moved, labelled) = (r#"{"spec":{"tier":"sec"}}"#, r#"{"metadata":{"labels":{"a":"b"}}}"#);
        let on = |words: &[&'static str], name: &'static str| -> Vec<String> {
            let words = words.iter().chain(place).map(|word| (*word).to_owned());
            words.chain([format!("{full}/{name}")]).collect()
        };
        let merge = |name: &'static str, patch: &str| -> Vec<String> {
            let patch = ["--type=merge".to_owned(), format!("--patch={patch}")];
            on(&["patch"], name).into_iter().chain(patch).collect()
        };
        let create = || vec!["create".to_owned(), "-f".to_owned(), "-".to_owned()];
        let cases: Vec<KubectlCase> = vec![
            ("jane", create(), &net3, Ok("created")),
            ("jane", create(), &sec3, Err(refusal("jane", "create", "sec", unseen))),
            ("jane", merge("n1", labelled), "", Ok("patched")),
            ("jane", merge("s1", labelled), "", Err(refusal("jane", "update", "sec", unseen))),
            ("jane", merge("n1", moved), "", Err(refusal("jane", "update", "sec", unseen))),
            ("jane", [on(&["label"], "n1"), vec!["b=c".to_owned()]].concat(), "", Ok("labeled")),
            ("jane", on(&["delete"], "s1"), "", Err(refusal("jane", "delete", "sec", unseen))),
            ("jane", on(&["delete"], "n3"), "", Ok("deleted")),
            // Tier permissions do not apply to reads here.
            ("jane", on(&["get"], "s1"), "", Ok("s1")),
            ("joe", merge("s1", labelled), "", Ok("patched")),
            ("joe", merge("n1", labelled), "", Err(refusal("joe", "update", "net", ""))),
            ("joe", on(&["delete"], "s1"), "", Err(refusal("joe", "delete", "sec", ""))),
            ("joe", create(), &net3, Err(refusal("joe", "create", "net", ""))),
            ("jim", create(), &net3, Err(refusal("jim", "create", "net", unseen))),
            ("jim", on(&["delete"], "n1"), "", Err(refusal("jim", "delete", "net", unseen))),
            // A user without permission on the tier does not learn that it does not exist.
            ("jim", create(), &nowhere, Err(refusal("jim", "create", "nowhere", unseen))),
        ];
        for (user, words, input, outcome) in cases {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (good, text) = cluster.said(user, &words, input);
            // kubectl escapes quotes in error messages.
            let text = text.replace("\\\"", "\"");
            match outcome {
                Ok(part) => assert!(good && text.contains(part), "{user} {words:?}: {text}"),
                Err(part) => assert!(!good && text.contains(&part), "{user} {words:?}: {text}\n{part}"),
            }
        }
        let refused = cluster.refused(&["create", "-f", "-"], &nowhere);
        assert!(refused.contains("Tier \"nowhere\" does not exist"), "{refused}");
        // When a collection is deleted, policies that the user may not delete are kept.
        let all = match place.is_empty() {
            true => format!("/apis/projectcalico.org/v3/{resource}"),
            false => format!("/apis/projectcalico.org/v3/namespaces/shop/{resource}"),
        };
        let (good, text) = cluster.said("jane", &["delete", "--raw", &all], "");
        assert!(!good && text.contains("in tier"), "{text}");
        let left = cluster.must(&[&["get", full.as_str(), "-o", "name"], place].concat(), "");
        assert!(left.contains("/s1"), "{left}");
    }
    a_tier_that_goes_takes_no_more(&custom);
    cluster_information_is_read(&custom);
}

fn a_tier_that_goes_takes_no_more(custom: &CustomResourceCluster) {
    let cluster = &custom.cluster;
    let mut tier = object("Tier", "going", json!({"order": 9}));
    tier["metadata"]["finalizers"] = json!(["example.org/later"]);
    cluster.must(&["create", "-f", "-"], &tier.to_string());
    cluster.must(&["create", "-f", "-"], &policy("GlobalNetworkPolicy", "in-time", "going").to_string());
    cluster.must(&["delete", "tier", "going", "--wait=false"], "");
    let late = policy("GlobalNetworkPolicy", "late", "going").to_string();
    let refused = cluster.refused(&["create", "-f", "-"], &late);
    assert!(refused.contains("Tier \"going\" is being deleted"), "{refused}");
    cluster.must(&["delete", "gnp", "in-time"], "");
    cluster.must(
        &["patch", "tier", "going", "--type=merge", "--patch={\"metadata\":{\"finalizers\":null}}"],
        "",
    );
}

fn cluster_information_is_read(custom: &CustomResourceCluster) {
    let cluster = &custom.cluster;
    let words = ["annotate", "clusterinformation", "default", "--overwrite"];
    let refused = cluster.refused(&[&words[..], &["a=b"]].concat(), "");
    assert!(refused.contains("ClusterInformation is a read-only resource (user: admin)"), "{refused}");
    for account in ["calico-node", "calico-kube-controllers", "calico-typha"] {
        let user = format!("--as=system:serviceaccount:kube-system:{account}");
        let group = "--as-group=system:masters";
        cluster.must(&[&words[..], &[&format!("by={account}"), &user, group]].concat(), "");
    }
    let elsewhere = "--as=system:serviceaccount:shop:calico-node";
    let refused =
        cluster.refused(&[&words[..], &["a=b", elsewhere, "--as-group=system:masters"]].concat(), "");
    assert!(refused.contains("read-only resource"), "{refused}");
}
