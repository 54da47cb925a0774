use super::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value as Json, json};
use tortie_model::StoreValue;

const ALL: MirrorSelection = MirrorSelection {
    namespaces: true,
    service_accounts: true,
    policies: true,
    endpoints: true,
    nodes: true,
    node_labels: true,
};

fn object(kind: Kind, namespace: &str, name: &str, labels: Json, spec: Json) -> (StoreKey, Resource) {
    let key = StoreKey::resource(kind, namespace, name);
    let text = json!({"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec})
        .to_string();
    match StoreValue::decode(&key, text.as_bytes()).unwrap() {
        StoreValue::Resource(resource) => (key, resource),
        other => panic!("{other:?}"),
    }
}

/// A datastore that applies the writes and assigns versions.
#[derive(Default)]
struct MirrorTestWorld {
    mirror: KubernetesMirror,
    version: u64,
}

impl MirrorTestWorld {
    fn kubernetes(&mut self, (key, resource): (StoreKey, Resource)) {
        self.mirror.put_kubernetes(key, resource);
    }

    fn datastore(&mut self, (key, mut resource): (StoreKey, Resource)) {
        self.version += 1;
        resource.metadata_mut().resource_version = self.version.to_string();
        self.mirror.put_datastore(key, resource);
    }

    /// Applies the writes of the mirror and returns their number.
    fn apply_writes(&mut self) -> usize {
        let writes = self.mirror.writes(ALL);
        let count = writes.len();
        for AbsenceClaim { action: write, .. } in writes {
            let (key, there) = (write.key(), self.mirror.datastore.contains_key(&write.key()));
            match write {
                ObjectWrite::Create(resource) => {
                    assert!(!there);
                    self.datastore((key, resource));
                }
                ObjectWrite::Update(resource) => {
                    let found = self.mirror.datastore[&key].metadata();
                    assert_eq!(
                        found.resource_version,
                        resource.metadata().resource_version,
                        "an update replaces the version that it was derived from"
                    );
                    self.datastore((key, resource));
                }
                ObjectWrite::Delete { version, .. } => {
                    assert_eq!(self.mirror.datastore[&key].metadata().resource_version, version);
                    self.mirror.remove_datastore(&key);
                }
            }
        }
        assert!(self.mirror.writes(ALL).is_empty(), "{:?}", self.mirror.writes(ALL));
        count
    }

    fn found(&self, key: &StoreKey) -> &Resource {
        &self.mirror.datastore[key]
    }
}

fn profile(name: &str, value: &str) -> (StoreKey, Resource) {
    object(Kind::Profile, "", name, json!({}), json!({"labelsToApply": {"x": value}}))
}

#[test]
fn changed_copies_are_corrected_and_own_objects_kept() {
    let mut world = MirrorTestWorld::default();
    world.kubernetes(profile("kns.shop", "1"));
    world.datastore(profile("mine", "1"));
    world.datastore(profile("kns.old", "1"));
    assert_eq!(world.apply_writes(), 2, "one profile is created and one deleted");
    let key = StoreKey::resource(Kind::Profile, "", "kns.shop");
    world.datastore(profile("kns.shop", "changed manually"));
    assert_eq!(world.apply_writes(), 1);
    let Resource::Profile(found) = world.found(&key) else { panic!() };
    assert_eq!(found.spec.labels_to_apply["x"], "1");
    assert!(world.mirror.datastore.contains_key(&StoreKey::resource(Kind::Profile, "", "mine")));
    let off = MirrorSelection { namespaces: false, ..ALL };
    world.mirror.remove_kubernetes(&key);
    assert_eq!(world.mirror.writes(off), [], "a disabled controller writes nothing");
}

#[test]
fn endpoints_get_only_labels_from_their_pods() {
    let mut world = MirrorTestWorld::default();
    let endpoint = |labels: Json, account: &str, node: &str| {
        let spec = json!({"pod": "web", "node": node, "serviceAccountName": account, "orchestrator": "k8s", "endpoint": "eth0"});
        object(Kind::WorkloadEndpoint, "shop", "n1-k8s-web-eth0", labels, spec)
    };
    world.kubernetes(endpoint(json!({"role": "web"}), "clerk", "kubernetes"));
    assert_eq!(world.apply_writes(), 0, "only the CNI plugin creates endpoints");
    world.datastore(endpoint(json!({"role": "old"}), "", "n1"));
    assert_eq!(world.apply_writes(), 1);
    let Resource::WorkloadEndpoint(found) = world.found(&endpoint(json!({}), "", "").0) else { panic!() };
    assert_eq!(
        (found.metadata.labels["role"].as_str(), found.spec.service_account_name.as_str()),
        ("web", "clerk")
    );
    assert_eq!(found.spec.node, "n1");
    world.mirror.remove_kubernetes(&endpoint(json!({}), "", "").0);
    assert_eq!(world.apply_writes(), 0, "only the CNI plugin deletes endpoints");
}

#[test]
fn nodes_follow_those_of_kubernetes() {
    let mut world = MirrorTestWorld::default();
    let calico = |name: &str, reference: Json| {
        object(Kind::Node, "", name, json!({"own": "1", "a": "own"}), json!({"orchRefs": reference}))
    };
    let reference = |name: &str| json!([{"nodeName": name, "orchestrator": "k8s"}]);
    world.datastore(calico("n1", reference("kube-n1")));
    world.datastore(calico("gone", reference("kube-gone")));
    world.datastore(calico("bare", json!([])));
    world.kubernetes(object(Kind::Node, "", "kube-n1", json!({"a": "1", "b": "2"}), json!({})));
    assert_eq!(world.apply_writes(), 2);
    let labels = |world: &MirrorTestWorld| {
        world.found(&StoreKey::resource(Kind::Node, "", "n1")).metadata().labels.clone()
    };
    assert_eq!(serde_json::to_value(labels(&world)).unwrap(), json!({"a": "1", "b": "2", "own": "1"}));
    assert!(!world.mirror.datastore.contains_key(&StoreKey::resource(Kind::Node, "", "gone")));
    world.kubernetes(object(Kind::Node, "", "kube-n1", json!({"b": "3"}), json!({})));
    assert_eq!(world.apply_writes(), 1);
    assert_eq!(serde_json::to_value(labels(&world)).unwrap(), json!({"b": "3", "own": "1"}));
    let names = world.mirror.kubernetes_names();
    assert_eq!((names["n1"].as_str(), names["bare"].as_str()), ("kube-n1", ""));
}

/// After random changes on both sides, the datastore equals Kubernetes again.
#[test]
fn five_thousand_random_changes_end_in_equality() {
    let seed =
        std::env::var("TORTIE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("TORTIE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut world = MirrorTestWorld::default();
    let mut writes = 0;
    for step in 0..5_000 {
        let number = random.random_range(0..12);
        let value = random.random_range(0..4).to_string();
        let one = match random.random_range(0..3) {
            0 => profile(&format!("kns.{number}"), &value),
            1 => profile(&format!("ksa.ns.{number}"), &value),
            _ => object(
                Kind::NetworkPolicy,
                "ns",
                &format!("knp.default.{number}"),
                json!({}),
                json!({"order": number, "selector": format!("x == '{value}'")}),
            ),
        };
        match random.random_range(0..10) {
            0..5 => world.kubernetes(one),
            5..7 => world.mirror.remove_kubernetes(&one.0),
            // A manual change in the datastore.
            7 => world.datastore(one),
            8 => world.mirror.remove_datastore(&one.0),
            _ => writes += world.apply_writes(),
        }
        if step % 500 == 499 {
            writes += world.apply_writes();
            assert_eq!(world.mirror.kubernetes.len(), world.mirror.datastore.len());
        }
    }
    assert!(writes > 500, "{writes}");
}
