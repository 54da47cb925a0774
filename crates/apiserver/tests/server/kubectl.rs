//! Common kubectl operations on every resource, with both kinds of storage.

use crate::openapi;
use crate::world::{ApiServerWorld, TestStorage};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use tortie_model::{Kind, Resource};
use tortie_testkit::samples::{self, documents};
use tortie_testkit::{Etcd, TestProcess, eventually_showing};

#[test]
fn kubectl_manages_every_resource_in_kubernetes() {
    kubectl_manages_every_resource(&ApiServerWorld::new(TestStorage::Kubernetes));
}

#[test]
fn kubectl_manages_every_resource_in_etcd() {
    kubectl_manages_every_resource(&ApiServerWorld::new(TestStorage::Etcd(Etcd::start().unwrap())));
}

fn kubectl_manages_every_resource(world: &ApiServerWorld) {
    let mut objects = samples::all();
    if world.keeps_in_etcd() {
        objects.push(samples::profile());
    }
    let all = documents(&objects);
    resources_are_discovered_and_explained(world);
    let printed = world.must(&["apply", "-f", "-"], &all);
    assert_eq!(printed.lines().filter(|line| line.ends_with(" created")).count(), objects.len(), "{printed}");
    let printed = world.must(&["apply", "-f", "-"], &all);
    assert_eq!(
        printed.lines().filter(|line| line.ends_with(" unchanged")).count(),
        objects.len(),
        "{printed}"
    );
    tables_read_well(world);
    every_form_is_printed(world, &objects, &all);
    everything_that_takes_a_file(world, &objects, &all);
    changes_are_watched(world, &objects);
    an_editor_changes_everything(world, &objects, &all);
    appliers_conflict(world);
    what_is_wrong_is_named(world);
    what_others_write_is_the_same(world);
    what_is_only_read(world);
    // Delete policies before their tiers.
    let backwards: Vec<Value> = objects.iter().rev().cloned().collect();
    world.must(&["delete", "--wait=false", "-f", "-"], &documents(&backwards));
    for object in &objects {
        let left = world.must(&["get", "--ignore-not-found", "-f", "-"], &object.to_string());
        assert_eq!(left, "", "{object}");
    }
}

fn resources_are_discovered_and_explained(world: &ApiServerWorld) {
    // kube-apiserver picks up an aggregated API and its schemas with a delay.
    let list = || world.must(&["api-resources", "--api-group=projectcalico.org", "--no-headers"], "");
    eventually_showing("all resources are discovered", || list().lines().count() == 21, list);
    let listed = list();
    let gnp = listed.lines().find(|line| line.starts_with("globalnetworkpolicies")).unwrap();
    assert!(gnp.contains("gnp,cgnp") && gnp.contains("projectcalico.org/v3"), "{gnp}");
    let explain = ["explain", "networkpolicy.spec.ingress", "--api-version=projectcalico.org/v3"];
    let explained = || {
        let output = world.kubectl(&world.server.kubeconfig(), &explain, "");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let is_explained = |text: &str| text.contains("action") && text.contains("destination");
    eventually_showing("the rules of a policy are explained", || is_explained(&explained()), explained);
    for line in listed.lines() {
        let (plural, kind) =
            (line.split_whitespace().next().unwrap(), line.split_whitespace().last().unwrap());
        let words = ["explain", &format!("{plural}.spec"), "--api-version=projectcalico.org/v3"];
        let text = world.must(&words, "");
        let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(&format!("KIND: {kind} ")) && said.contains("FIELDS:"), "{text}");
    }
    let raw = world.must(&["get", "--raw", "/openapi/v3/apis/projectcalico.org/v3"], "");
    openapi::is_valid(&serde_json::from_str(&raw).unwrap());
    openapi::is_valid_for_others(&raw);
}

/// Prints the objects of all resources as tables, wide tables, YAML and by JSON path, and each resource by labels and
/// fields.
fn every_form_is_printed(world: &ApiServerWorld, objects: &[Value], all: &str) {
    let names: Vec<&str> =
        objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect();
    for words in [&[][..], &["-o", "wide"]] {
        let tables = world.must(&[&["get", "-f", "-"], words].concat(), all);
        let heads = tables.lines().filter(|line| line.starts_with("NAME")).count();
        assert_eq!(heads, objects.len(), "{words:?}: {tables}");
    }
    let yaml = world.must(&["get", "-f", "-", "-o", "yaml"], all);
    assert_eq!(yaml.matches("apiVersion: projectcalico.org/v3\n").count(), objects.len(), "{yaml}");
    let path = "jsonpath={.items[*].metadata.name}";
    assert_eq!(world.must(&["get", "-f", "-", "-o", path], all), names.join(" "));
    for (object, name) in objects.iter().zip(names) {
        let kind = Kind::from_name(object["kind"].as_str().unwrap()).unwrap();
        let plural = format!("{}.projectcalico.org", kind.plural());
        let field = format!("metadata.name={name}");
        let words = ["get", &plural, "-A", "-l", "kept=yes", "--field-selector", &field, "-o", "name"];
        let found = world.must(&words, "");
        assert!(found.lines().count() == 1 && found.ends_with(&format!("/{name}\n")), "{plural}: {found}");
    }
}

/// Runs `get -w` of each resource while all of them change.
fn changes_are_watched(world: &ApiServerWorld, objects: &[Value]) {
    let watches: Vec<_> = objects
        .iter()
        .map(|object| {
            let kind = Kind::from_name(object["kind"].as_str().unwrap()).unwrap();
            let path = world.server.path(&format!("watch-{kind}"));
            let mut command = world.server.program("kubectl");
            command.arg("--kubeconfig").arg(world.server.kubeconfig()).env_remove("KUBECONFIG");
            command.args(["get", &format!("{}.projectcalico.org", kind.plural()), "-A", "-w", "-o", "name"]);
            command.args(["-l", "kept=yes"]).stdout(std::fs::File::create(&path).unwrap());
            (TestProcess::start(&mut command), path)
        })
        .collect();
    let heard = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
    for (_, path) in &watches {
        eventually_showing("what is there is seen", || heard(path).lines().count() == 1, || heard(path));
    }
    // Tiers change last: a changed tier ends the watches of policies, as in Calico.
    for of_tiers in [false, true] {
        let changing = objects.iter().zip(&watches).filter(|(one, _)| (one["kind"] == "Tier") == of_tiers);
        let (changed, listening): (Vec<Value>, Vec<_>) =
            changing.map(|(one, watch)| (one.clone(), watch)).unzip();
        world.must(&["label", "-f", "-", "watched=yes"], &documents(&changed));
        for (_, path) in listening {
            eventually_showing("the change is seen", || heard(path).lines().count() == 2, || heard(path));
        }
    }
}

fn tables_read_well(world: &ApiServerWorld) {
    let table = world.must(&["get", "gnp"], "");
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(lines.next().unwrap(), ["NAME", "TIER", "AGE"]);
    assert_eq!(lines.next().unwrap()[..2], ["web", "platform"]);
    let wide = world.must(&["get", "gnp", "-o", "wide"], "");
    assert!(wide.starts_with("NAME") && wide.contains("SELECTOR") && wide.contains("app == 'web'"), "{wide}");
    let pools = world.must(&["get", "ippools"], "");
    assert!(pools.contains("10.65.0.0/16"), "{pools}");
    let names = |words: &[&str]| world.must(&[&["get", "-o", "name"], words].concat(), "");
    assert_eq!(names(&["gnp", "-l", "kept=yes"]), "globalnetworkpolicy.projectcalico.org/web\n");
    assert_eq!(names(&["gnp", "-l", "kept!=yes"]), "");
    assert_eq!(
        names(&["gnp", "--field-selector", "spec.tier=platform"]),
        "globalnetworkpolicy.projectcalico.org/web\n"
    );
    assert_eq!(names(&["gnp", "--field-selector", "metadata.name=none"]), "");
    let everywhere = world.must(&["get", "caliconetworkpolicies", "-A"], "");
    assert!(everywhere.contains("shop"), "{everywhere}");
    let cidr = world.must(&["get", "ippool", "pods", "-o", "jsonpath={.spec.cidr}"], "");
    assert_eq!(cidr, "10.65.0.0/16");
    assert_eq!(names(&["tiers", "--chunk-size=1"]).lines().count(), 4);
}

fn everything_that_takes_a_file(world: &ApiServerWorld, objects: &[Value], all: &str) {
    let count = objects.len();
    let lines = |words: &[&str]| world.must(words, all).lines().count();
    assert_eq!(lines(&["get", "-f", "-", "-o", "name"]), count);
    let described = world.must(&["describe", "-f", "-"], all);
    assert!(described.contains("API Version:  projectcalico.org/v3"), "{described}");
    assert_eq!(lines(&["label", "-f", "-", "seen=yes"]), count);
    assert_eq!(lines(&["annotate", "-f", "-", "note=short"]), count);
    assert_eq!(
        lines(&["patch", "-f", "-", "--type=merge", "-p", r#"{"metadata":{"labels":{"merged":"yes"}}}"#]),
        count
    );
    let json = r#"[{"op":"add","path":"/metadata/labels/json","value":"yes"}]"#;
    assert_eq!(lines(&["patch", "-f", "-", "--type=json", "-p", json]), count);
    assert_eq!(
        lines(&["wait", "-f", "-", "--for=jsonpath={.metadata.labels.json}=yes", "--timeout=60s"]),
        count
    );
    // The objects differ from the applied ones only by fields that other managers have added, which are kept.
    world.must(&["diff", "-f", "-"], all);
    let printed =
        world.must(&["apply", "--server-side", "--force-conflicts", "--field-manager=tests", "-f", "-"], all);
    assert_eq!(
        printed.lines().filter(|line| line.contains("serverside-applied")).count(),
        count,
        "{printed}"
    );
    for (object, kept) in objects.iter().zip(world.object_list(all)) {
        let labels = &kept["metadata"]["labels"];
        for label in ["kept", "seen", "merged", "json"] {
            assert_eq!(labels[label], "yes", "{label} of {object}");
        }
        assert!(kept["metadata"]["uid"].as_str().is_some_and(|uid| uid.len() == 36), "{kept}");
        let managers = kept["metadata"]["managedFields"].as_array().unwrap();
        assert!(
            managers.iter().any(|entry| entry["manager"] == "tests" && entry["operation"] == "Apply"),
            "{kept}"
        );
    }
    let before = world.object(&["tier", "platform"]);
    world.must(
        &["apply", "--dry-run=server", "-f", "-"],
        &json!({"apiVersion": "projectcalico.org/v3", "kind": "Tier",
        "metadata": {"name": "platform"}, "spec": {"order": 3}})
        .to_string(),
    );
    assert_eq!(world.object(&["tier", "platform"]), before);
}

/// Edits the objects of all resources with one editor script, which adds a label to each.
fn an_editor_changes_everything(world: &ApiServerWorld, objects: &[Value], all: &str) {
    let editor = tempfile::NamedTempFile::new().unwrap();
    let script = "#!/bin/sh\nsed -i 's/^\\( *\\)kept: \"yes\"$/&\\n\\1edited: \"yes\"/; s/order: 100$/order: 105/' \"$1\"\n";
    std::fs::write(editor.path(), script).unwrap();
    std::fs::set_permissions(editor.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = editor.into_temp_path();
    let file = world.server.path("edited.yaml");
    std::fs::write(&file, all).unwrap();
    let mut command = world.server.program("kubectl");
    command.arg("--kubeconfig").arg(world.server.kubeconfig()).args(["edit", "-n", "shop", "-f"]).arg(&file);
    let output = command.env("KUBE_EDITOR", &path).env_remove("KUBECONFIG").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed.lines().filter(|line| line.ends_with(" edited")).count(), objects.len(), "{printed}");
    for object in world.object_list(all) {
        assert_eq!(object["metadata"]["labels"]["edited"], "yes", "{object}");
    }
    let tier = world.object(&["tier", "platform"]);
    assert_eq!(tier["spec"]["order"], 105.0);
}

fn appliers_conflict(world: &ApiServerWorld) {
    let set = |nets: &[&str]| {
        json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet", "metadata": {"name": "shared"},
            "spec": {"nets": nets}})
        .to_string()
    };
    let run = |who: &str, text: &str| {
        world.must(&["apply", "--server-side", "-f", "-", "--field-manager", who], text);
    };
    run("a", &set(&["10.0.0.0/8"]));
    run("b", &set(&["11.0.0.0/8"]));
    let merged = world.object(&["globalnetworkset", "shared"]);
    assert_eq!(merged["spec"]["nets"], json!(["10.0.0.0/8", "11.0.0.0/8"]), "sets merge");
    run("a", &set(&[]).replace("\"nets\":[]", ""));
    let pruned = world.object(&["globalnetworkset", "shared"]);
    assert_eq!(pruned["spec"]["nets"], json!(["11.0.0.0/8"]), "what one lets go of goes");
    let tier = |order: i64| {
        json!({"apiVersion": "projectcalico.org/v3", "kind": "Tier", "metadata": {"name": "fought"}, "spec": {"order": order}})
            .to_string()
    };
    run("a", &tier(1));
    let refused = world.refused(&["apply", "--server-side", "-f", "-", "--field-manager", "b"], &tier(2));
    assert!(refused.contains("conflict with \"a\": .spec.order"), "{refused}");
    world.must(&["apply", "--server-side", "-f", "-", "--field-manager", "b", "--force-conflicts"], &tier(2));
    world.must(&["delete", "globalnetworkset/shared", "tier/fought"], "");
}

fn what_is_wrong_is_named(world: &ApiServerWorld) {
    let object = |kind: &str, spec: Value| {
        json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": "wrong"}, "spec": spec}).to_string()
    };
    for (text, said) in [
        (object("IPPool", json!({"cidr": "10.0.0.0/33"})), "Spec.CIDR"),
        (object("GlobalNetworkPolicy", json!({"selector": "a ="})), "Spec.Selector"),
        (object("GlobalNetworkPolicy", json!({"tier": "nosuch", "selector": "all()"})), "Tier(nosuch)"),
        (object("Tier", json!({"order": "high"})), "spec.order"),
        (object("Tier", json!({"oder": 1})), "unknown field \"spec.oder\""),
    ] {
        let refused = world.refused(&["create", "-f", "-"], &text);
        assert!(refused.contains(said), "{said}: {refused}");
    }
    let refused = world.refused(&["delete", "tier", "platform"], "");
    assert!(refused.contains("cannot delete a non-empty tier"), "{refused}");
    let refused = world.refused(&["delete", "clusterinformation", "default"], "");
    assert!(refused.contains("not supported"), "{refused}");
    let refused = world.refused(&["get", "gnp", "none"], "");
    assert!(refused.contains("globalnetworkpolicies.projectcalico.org \"none\" not found"), "{refused}");
    let mut lost = json!({"apiVersion": "projectcalico.org/v3", "kind": "NetworkSet",
        "metadata": {"name": "lost", "namespace": "nowhere"}, "spec": {"nets": ["192.0.2.0/24"]}});
    let refused = world.refused(&["create", "-f", "-"], &lost.to_string());
    assert!(refused.contains("namespaces \"nowhere\" not found"), "{refused}");
    lost["metadata"]["namespace"] = "shop".into();
    // A write based on an outdated version is rejected.
    world.must(&["create", "-f", "-"], &lost.to_string());
    let before = world.object(&["networkset", "lost", "-n", "shop"]);
    world.must(&["label", "networkset", "lost", "-n", "shop", "a=b"], "");
    let refused = world.refused(&["replace", "-f", "-"], &before.to_string());
    assert!(refused.contains("the object has been modified"), "{refused}");
    world.must(&["delete", "networkset", "lost", "-n", "shop"], "");
}

/// Checks resources that the cluster writes itself: all read verbs work and no write verb does.
fn what_is_only_read(world: &ApiServerWorld) {
    let mut read = vec![("clusterinformations", "default", "not supported")];
    if !world.keeps_in_etcd() {
        read.push(("profiles", "kns.shop", "not supported"));
    }
    for (plural, name, refusal) in read {
        let full = format!("{plural}.projectcalico.org");
        let one = [full.as_str(), name];
        let table = world.must(&[&["get"], &one[..]].concat(), "");
        assert!(table.contains(name), "{table}");
        let listed = world.must(&["get", &full, "-o", "name"], "");
        assert!(listed.lines().any(|line| line.ends_with(&format!("/{name}"))), "{listed}");
        let described = world.must(&[&["describe"], &one[..]].concat(), "");
        assert!(described.contains("API Version:  projectcalico.org/v3"), "{described}");
        let waited = world.must(
            &[&["wait", "--timeout=60s", &format!("--for=jsonpath={{.metadata.name}}={name}")], &one[..]]
                .concat(),
            "",
        );
        assert!(waited.contains("condition met"), "{waited}");
        let object = world.object(&one);
        let mut changed = object.clone();
        changed["metadata"]["labels"] = json!({"a": "b"});
        let fresh = json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": "fresh"},
            "spec": object["spec"]});
        let path = format!("/apis/projectcalico.org/v3/{plural}/{name}");
        let merge = "application/merge-patch+json";
        let patch = json!({"metadata": {"labels": {"a": "b"}}});
        let refused = [
            world.refused(&["replace", "-f", "-"], &changed.to_string()),
            world.refused(&["label", &full, name, "a=b"], ""),
            world.refused(&["delete", &full, name], ""),
            world.server.send_as("secret", "PATCH", &path, merge, Some(&patch)).unwrap_err(),
            world
                .server
                .send("POST", &format!("/apis/projectcalico.org/v3/{plural}"), Some(&fresh))
                .unwrap_err(),
        ];
        for said in refused {
            assert!(said.contains(refusal) || said.contains("MethodNotAllowed"), "{plural}: {said}");
        }
        assert_eq!(world.object(&one)["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"]);
    }
}

/// Writes the same object through another client of the store and through kubectl.
fn what_others_write_is_the_same(world: &ApiServerWorld) {
    for sample in samples::all() {
        let kind = Kind::from_name(sample["kind"].as_str().unwrap()).unwrap();
        if matches!(kind, Kind::IPPool | Kind::Tier) || sample["metadata"]["name"] == "default" {
            // A second instance of these cannot exist.
            continue;
        }
        let mut theirs = sample.clone();
        theirs["metadata"]["name"] = "theirs".into();
        let created = world.block_on(async |resources| {
            resources.create(Resource::from_user(theirs).unwrap()).await.unwrap().to_value()
        });
        let namespace = sample["metadata"]["namespace"].as_str().unwrap_or("default");
        let name = sample["metadata"]["name"].as_str().unwrap();
        let ours = world.object(&[&format!("{}.projectcalico.org", kind.plural()), name, "-n", namespace]);
        assert_eq!(ours["spec"], created["spec"], "{kind}");
        let seen =
            world.object(&[&format!("{}.projectcalico.org", kind.plural()), "theirs", "-n", namespace]);
        assert_eq!(
            (&seen["spec"], &seen["metadata"]["uid"]),
            (&created["spec"], &created["metadata"]["uid"]),
            "{kind}"
        );
        world.must(
            &["delete", &format!("{}.projectcalico.org", kind.plural()), "theirs", "-n", namespace],
            "",
        );
    }
}

impl ApiServerWorld {
    /// Returns the objects of a file as served, in its order.
    fn object_list(&self, documents: &str) -> Vec<Value> {
        let text = self.must(&["get", "-f", "-", "-o", "json", "--show-managed-fields"], documents);
        serde_json::from_str::<Value>(&text).unwrap()["items"].as_array().unwrap().clone()
    }
}
