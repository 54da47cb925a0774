//! Maintenance by the controllers: compacting the history of etcd, and renaming policies that are stored under old
//! names.

use crate::controllers::ControllersFixture;
use serde_json::{Value, json};
use std::process::Command;
use tortie_model::{Kind, Resource, StoreKey, scalar};
use tortie_store::{StoreClient, StoreConfig};
use tortie_testkit::{CalicoGroup, Etcd, free_port};

const CRD_GROUP_PATH: &str = "/apis/crd.projectcalico.org/v1";

/// Changes the controllers' configuration, retrying on conflict.
fn configure(world: &ControllersFixture, client: &StoreClient, change: impl Fn(&mut Resource)) {
    let key = StoreKey::resource(Kind::KubeControllersConfiguration, "", "default");
    world.wait("the configuration is changed", || {
        let Ok(mut entry) = world.runtime.block_on(client.get(&key)) else { return false };
        let tortie_model::StoreValue::Resource(resource) = &mut entry.value else { return false };
        change(resource);
        // The controllers may write its status concurrently.
        world.runtime.block_on(client.update(&key, &entry.value, &entry.revision)).is_ok()
    });
}

#[test]
fn etcd_is_compacted_at_the_configured_interval() {
    let mut world = ControllersFixture::empty(CalicoGroup::V3);
    let etcd = Etcd::start().unwrap();
    world.environment = vec![
        ("ETCD_ENDPOINTS", etcd.endpoint()),
        ("KUBECONFIG", world.server.kubeconfig().display().to_string()),
        ("DATASTORE_TYPE", "etcdv3".to_owned()),
    ];
    let client = world.runtime.block_on(StoreClient::connect(&StoreConfig::at(etcd.endpoint()))).unwrap();
    world.start("a");
    let every = |seconds: u32| {
        configure(&world, &client, |resource| {
            let Resource::KubeControllersConfiguration(configuration) = resource else {
                panic!("{resource:?}")
            };
            configuration.spec.etcd_v3_compaction_period = Some(scalar::GoDuration::from_secs(seconds));
        });
        world.wait("the new period is in force", || {
            let key = StoreKey::resource(Kind::KubeControllersConfiguration, "", "default");
            let Ok(entry) = world.runtime.block_on(client.get(&key)) else { return false };
            let object: Value = serde_json::from_slice(&entry.value.encode()).unwrap();
            object["status"]["runningConfig"]["etcdV3CompactionPeriod"] == format!("{seconds}s")
        });
    };
    every(1);
    let profile = |team: &str| {
        world.server.merge("/api/v1/namespaces/shop", &json!({"metadata": {"labels": {"team": team}}}));
        let key = StoreKey::resource(Kind::Profile, "", "kns.shop");
        world.wait("the profile follows its namespace", || {
            let Ok(entry) = world.runtime.block_on(client.get(&key)) else { return false };
            let object: Value = serde_json::from_slice(&entry.value.encode()).unwrap();
            object["spec"]["labelsToApply"]["pcns.team"] == team
        });
    };
    profile("a");
    let first = world
        .runtime
        .block_on(client.get(&StoreKey::resource(Kind::Profile, "", "kns.shop")))
        .unwrap()
        .revision;
    let remembered = || {
        let mut command = Command::new("etcdctl");
        command.args(["--endpoints", &etcd.endpoint(), "get", "/", "--rev", &first.to_string()]);
        command.output().unwrap().status.success()
    };
    assert!(remembered());
    // The history grows and is compacted repeatedly; no change is missed because of it.
    world.wait("the past is forgotten", || {
        profile(if remembered() { "b" } else { "c" });
        !remembered()
    });
    profile("d");
    let port = free_port().unwrap();
    configure(&world, &client, |resource| {
        let Resource::KubeControllersConfiguration(configuration) = resource else { panic!("{resource:?}") };
        configuration.spec.prometheus_metrics_port = Some(i64::from(port));
    });
    world.wait("it is counted", || {
        figure(port, "tortie_controllers_compactions_total").is_some_and(|count| count >= 1.0)
            && figure(port, "tortie_controllers_compacted_revision").is_some_and(|revision| revision >= 1.0)
    });

    every(0);
    let record = || world.runtime.block_on(client.get(&StoreKey::CompactRevision)).unwrap().revision;
    // A compaction that was in progress is finished once the next change has been processed.
    profile("e");
    let last = record();
    for team in ["f", "g", "h"] {
        std::thread::sleep(std::time::Duration::from_secs(1));
        profile(team);
    }
    assert_eq!(record(), last, "it is turned off\n{}", world.log());
}

/// Returns the value of a metric of the controllers, if it can be read.
fn figure(port: u16, name: &str) -> Option<f64> {
    let mut command = Command::new("curl");
    let output = command.args(["-s", &format!("http://127.0.0.1:{port}/metrics")]).output().unwrap();
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Returns the custom resource of a policy, optionally with its name in the metadata annotation. Without it, the name
/// of a policy of the default tier is the custom resource's name without the tier prefix.
fn stored(kind: &str, name: &str, said: Option<&str>, spec: Value) -> Value {
    let mut hidden = json!({"labels": {"team": "a"}});
    if let Some(said) = said {
        hidden["name"] = json!(said);
    }
    let metadata = json!({"name": name, "annotations": {"projectcalico.org/metadata": hidden.to_string()}});
    json!({"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": metadata, "spec": spec})
}

#[test]
fn policies_are_renamed_once_every_node_is_ready() {
    let mut world = ControllersFixture::empty(CalicoGroup::V1);
    let in_shop = format!("{CRD_GROUP_PATH}/namespaces/shop/networkpolicies");
    let everywhere = format!("{CRD_GROUP_PATH}/globalnetworkpolicies");
    let spec = |tier: &str, selector: &str| json!({"tier": tier, "selector": selector, "types": ["Ingress"]});
    let tier = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "Tier", "metadata": {"name": "security"}, "spec": {}});
    world.server.create(&format!("{CRD_GROUP_PATH}/tiers"), &tier);
    for (collection, object) in [
        (&in_shop, stored("NetworkPolicy", "default.web", Some("web"), spec("default", "a == 'web'"))),
        (&everywhere, stored("GlobalNetworkPolicy", "default.db", None, spec("default", "a == 'db'"))),
        (&everywhere, stored("GlobalNetworkPolicy", "fine", Some("fine"), spec("default", "a == 'fine'"))),
        (&everywhere, stored("GlobalNetworkPolicy", "security.x", Some("x"), spec("security", "a == 'x'"))),
        // Another client has created it again under the new name, unaware of the old one.
        (&everywhere, stored("GlobalNetworkPolicy", "default.twice", None, spec("default", "a == 'old'"))),
        (&everywhere, stored("GlobalNetworkPolicy", "twice", Some("twice"), spec("default", "a == 'new'"))),
    ] {
        world.server.create(collection, &object);
    }
    // A calico-node DaemonSet, whose nodes may look up policies by the old names.
    let labels = json!({"k8s-app": "calico-node"});
    let containers = json!([{"name": "c", "image": "none"}]);
    let daemon_set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "calico-node"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}}});
    let sets = "/apis/apps/v1/namespaces/kube-system/daemonsets";
    world.server.create(sets, &daemon_set);
    let running = json!({"status": {"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberMisscheduled": 0, "numberReady": 1}});
    world.server.merge(&format!("{sets}/calico-node/status"), &running);
    world.start("a");
    let is_there = |collection: &str, name: &str| {
        world.server.send("GET", &format!("{collection}/{name}"), None).is_ok()
    };
    world.wait("it is waited for", || world.log().contains("kube-system/calico-node still runs on 1 nodes"));
    assert!(is_there(&in_shop, "default.web") && !is_there(&in_shop, "web"), "{}", world.log());

    world.server.must("DELETE", &format!("{sets}/calico-node"), None);
    world.wait("they have their own names", || {
        !is_there(&in_shop, "default.web") && !is_there(&everywhere, "default.db")
    });
    let client = world.client();
    let found = |kind: Kind, namespace: &str, name: &str| -> Value {
        let entry = world.runtime.block_on(client.get(&StoreKey::resource(kind, namespace, name))).unwrap();
        serde_json::from_slice(&entry.value.encode()).unwrap()
    };
    let web = found(Kind::NetworkPolicy, "shop", "web");
    assert_eq!(
        (&web["spec"]["selector"], &web["metadata"]["labels"]["team"]),
        (&json!("a == 'web'"), &json!("a")),
        "{web}"
    );
    assert_eq!(found(Kind::GlobalNetworkPolicy, "", "db")["spec"]["selector"], "a == 'db'");
    assert!(is_there(&everywhere, "fine") && is_there(&everywhere, "security.x"));
    world.wait("what cannot be decided is said", || {
        world.log().contains("exists with different content; both policies are in force")
    });
    assert!(is_there(&everywhere, "default.twice") && is_there(&everywhere, "twice"), "{}", world.log());
    assert_eq!(found(Kind::GlobalNetworkPolicy, "", "twice")["spec"]["selector"], "a == 'new'");

    // Nothing is renamed while the migrator is disabled.
    let port = free_port().unwrap();
    let configuration = format!("{CRD_GROUP_PATH}/kubecontrollersconfigurations/default");
    let migrator = |value: &str| {
        let spec = json!({"prometheusMetricsPort": port, "controllers": {"migration": {"policyNameMigrator": value}}});
        world.server.merge(&configuration, &json!({"spec": spec}));
        world.wait("it is in force", || {
            let object = world.server.must("GET", &configuration, None);
            object["status"]["runningConfig"]["controllers"]["migration"]["policyNameMigrator"] == value
        });
    };
    migrator("Disabled");
    let late = stored("GlobalNetworkPolicy", "default.late", None, spec("default", "a == 'late'"));
    world.server.create(&everywhere, &late);
    world.wait("it is heard of", || figure(port, "tortie_controllers_policies_misnamed") == Some(2.0));
    assert!(is_there(&everywhere, "default.late"), "{}", world.log());
    migrator("Enabled");
    world.wait("it is renamed", || is_there(&everywhere, "late") && !is_there(&everywhere, "default.late"));
    world.wait("it is counted", || figure(port, "tortie_controllers_policies_renamed_total") == Some(3.0));
}
