//! Who may do what: real users, real bindings, real kubectl. On top of the cluster's rules come those of tiers, for every verb.

use crate::world::World;
use serde_json::{Value, json};
use tortie_testkit::{eventually, eventually_showing};

fn rule(resources: &[&str], verbs: &[&str], names: &[&str]) -> Value {
    let mut rule = json!({"apiGroups": ["projectcalico.org"], "resources": resources, "verbs": verbs});
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

/// Gives a user a role of these rules in the whole cluster.
fn grant(world: &World, user: &str, rules: &[Value]) {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
    world.must(&["apply", "-f", "-"], &format!("{role}\n---\n{binding}"));
}

fn policy(name: &str, tier: &str) -> Value {
    json!({"apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"tier": tier, "selector": "all()"}})
}

/// What a user's kubectl says, good or bad.
fn said(world: &World, user: &str, words: &[&str], input: &str) -> (bool, String) {
    let output = world.kubectl(&world.server.kubeconfig_of(user), words, input);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

const ALL: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
const POLICIES: &[&str] = &["networkpolicies"];
const IN_TIERS: &[&str] = &["tier.networkpolicies"];

#[test]
fn tiers_say_who_may_do_what() {
    let world = World::with_rules();
    let tier = |name: &str| json!({"apiVersion": "projectcalico.org/v3", "kind": "Tier", "metadata": {"name": name}, "spec": {"order": 5}});
    world.must(
        &["apply", "-f", "-"],
        &[tier("net"), tier("sec"), policy("n1", "net"), policy("n2", "net"), policy("s1", "sec")]
            .map(|object| object.to_string())
            .join("\n---\n"),
    );
    // Jane has tier net, Joe one policy of tier sec to look at, Jim the cluster's rules alone.
    grant(
        &world,
        "jane",
        &[rule(POLICIES, ALL, &[]), rule(&["tiers"], &["get"], &["net"]), rule(IN_TIERS, ALL, &["net.*"])],
    );
    grant(
        &world,
        "joe",
        &[
            rule(POLICIES, ALL, &[]),
            rule(&["tiers"], &["get"], &["sec", "net"]),
            rule(IN_TIERS, &["get"], &["s1"]),
        ],
    );
    grant(&world, "jim", &[rule(POLICIES, ALL, &[])]);
    // Bindings take effect by and by.
    eventually("the rules are in force", || said(&world, "jane", &["get", "cnp", "-n", "shop", "n1"], "").0);
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
        // kubectl looks at an object before it patches it.
        (
            "jane",
            in_shop(&["patch", "cnp", "s1", "--type=merge", "-p", labelled]),
            "",
            Err(refusal("jane", "get", "sec", " (user cannot get tier)")),
        ),
        // Neither into a tier that is not hers.
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
        let (good, text) = said(&world, user, &words, input);
        match outcome {
            Ok(part) => assert!(good && text.contains(part), "{user} {words:?}: {text}"),
            Err(part) => assert!(!good && text.contains(&part), "{user} {words:?}: {text}\n{part}"),
        }
    }
    lists_and_watches_show_what_may_be_seen(&world);
    a_whole_collection_is_deleted_as_far_as_it_may_be(&world);
}

fn lists_and_watches_show_what_may_be_seen(world: &World) {
    let (good, names) = said(world, "jane", &["get", "cnp", "-n", "shop", "-o", "name"], "");
    assert!(good && names.contains("/n1") && names.contains("/n2") && !names.contains("/s1"), "{names}");
    // A watch shows no more than a list.
    let path = world.server.path("watched");
    let mut command = world.server.program("kubectl");
    command.arg("--kubeconfig").arg(world.server.kubeconfig_of("jane"));
    command
        .args(["get", "cnp", "-n", "shop", "-o", "name", "-w"])
        .stdout(std::fs::File::create(&path).unwrap());
    let _watch = tortie_testkit::Process::start(&mut command);
    let seen = || std::fs::read_to_string(&path).unwrap();
    eventually_showing("what is there is seen", || seen().contains("/n2"), seen);
    world.must(&["label", "cnp", "-n", "shop", "s1", "changed=yes"], "");
    world.must(&["label", "cnp", "-n", "shop", "n1", "changed=yes"], "");
    eventually_showing("what changes is seen", || seen().matches("/n1").count() == 2, seen);
    assert!(!seen().contains("/s1"), "{}", seen());
}

fn a_whole_collection_is_deleted_as_far_as_it_may_be(world: &World) {
    let (good, text) = said(
        world,
        "jane",
        &["delete", "--raw", "/apis/projectcalico.org/v3/namespaces/shop/networkpolicies"],
        "",
    );
    assert!(good, "{text}");
    let left = world.must(&["get", "cnp", "-n", "shop", "-o", "name"], "");
    assert_eq!(left, "networkpolicy.projectcalico.org/s1\n");
}
