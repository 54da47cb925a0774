//! Mirroring Kubernetes to etcd: whatever changes on either side and whatever fails, etcd finally holds the same
//! state as Kubernetes. `TORTIE_STEPS` sets the number of changes.

use crate::controllers::ControllersFixture;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tortie_model::{KeyRange, Kind, Resource, StoreKey};
use tortie_store::{StoreClient, StoreConfig};
use tortie_testkit::{ApiRequest, DatastoreProcess, eventually_showing, free_port};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
const DEFAULT_STEPS: usize = 240;
/// Number of concurrent changes, each of a different object.
const BATCH_SIZE: usize = 40;
const NAMESPACE_COUNT: usize = 5;
const NAME_COUNT: usize = 12;
const NODE: &str = "n1";

/// A datastore that can be killed and started again.
struct RestartableStore {
    running: Option<DatastoreProcess>,
    data: PathBuf,
    url: String,
}

impl RestartableStore {
    fn new(data: PathBuf) -> RestartableStore {
        let url = format!("http://127.0.0.1:{}", free_port().unwrap());
        let mut store = RestartableStore { running: None, data, url };
        store.restart();
        store
    }

    fn restart(&mut self) {
        // Stop the old process first: it holds the files and the port.
        self.running = None;
        self.running = Some(DatastoreProcess::start(TORTIE, &self.data, &[&self.url], &[]));
    }
}

/// A collection of Kubernetes objects: its path, a template and the existing objects.
struct ObjectCollection {
    path: fn(&str) -> String,
    object: fn(&str, usize) -> Value,
    there: BTreeSet<(String, String)>,
}

impl ObjectCollection {
    fn new(path: fn(&str) -> String, object: fn(&str, usize) -> Value) -> ObjectCollection {
        ObjectCollection { path, object, there: BTreeSet::new() }
    }

    /// Creates, changes or deletes an object that this batch has not touched.
    fn change(&mut self, random: &mut StdRng, touched: &mut BTreeSet<String>) -> Option<ApiRequest> {
        let namespace = format!("ns-{}", random.random_range(0..NAMESPACE_COUNT));
        let name = format!("x{}", random.random_range(0..NAME_COUNT));
        let collection = (self.path)(&namespace);
        let path = format!("{collection}/{name}");
        if !touched.insert(path.clone()) {
            return None;
        }
        let id = (namespace, name);
        let version = random.random_range(0..1000);
        Some(match self.there.contains(&id) {
            false => {
                let call = ApiRequest::create(&collection, &(self.object)(&id.1, version));
                self.there.insert(id);
                call
            }
            true if random.random_bool(0.4) => {
                self.there.remove(&id);
                ApiRequest::delete(&format!("{path}?gracePeriodSeconds=0"))
            }
            true => {
                ApiRequest::merge(&path, json!({"metadata": {"labels": {"version": version.to_string()}}}))
            }
        })
    }
}

fn collections() -> [ObjectCollection; 3] {
    [
        ObjectCollection::new(
            |namespace| format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
            |name, version| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(name, version)}),
        ),
        ObjectCollection::new(
            |namespace| format!("/api/v1/namespaces/{namespace}/pods"),
            |name, version| {
                let address = format!("10.1.{}.{}/32", version / 250, version % 250 + 1);
                let mut metadata = meta(name, version);
                metadata["annotations"] = json!({"cni.projectcalico.org/podIPs": address});
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
                "spec": {"nodeName": NODE, "serviceAccountName": "default", "automountServiceAccountToken": false,
                    "containers": [{"name": "c", "image": "none"}]}})
            },
        ),
        ObjectCollection::new(
            |namespace| format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"),
            |name, version| {
                let port = 1000 + version;
                json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta(name, version),
                "spec": {"podSelector": {"matchLabels": {"version": version.to_string()}}, "ingress": [{"ports": [{"port": port}]}]}})
            },
        ),
    ]
}

fn meta(name: &str, version: usize) -> Value {
    json!({"name": name, "labels": {"version": version.to_string()}})
}

/// Returns the objects derived from Kubernetes, reduced to spec and labels; `None` if they cannot be listed.
fn derived(world: &ControllersFixture, client: &StoreClient) -> Option<BTreeMap<StoreKey, Value>> {
    let mut found = BTreeMap::new();
    for kind in [Kind::Profile, Kind::NetworkPolicy] {
        let listing = world.runtime.block_on(client.list(&KeyRange::all(kind))).ok()?;
        for entry in listing.entries {
            let StoreKey::Resource { name, .. } = &entry.key else { continue };
            if ["kns.", "ksa.", "knp.default."].iter().any(|start| name.starts_with(start)) {
                // Decode it as the datastore would return it.
                let stored = tortie_model::StoreValue::decode(&entry.key, &entry.value.encode()).unwrap();
                let object: Value = serde_json::from_slice(&stored.encode()).unwrap();
                let counts = json!({"spec": object["spec"], "labels": object["metadata"]["labels"]});
                found.insert(entry.key, counts);
            }
        }
    }
    Some(found)
}

/// Returns labels and service account of each endpoint.
fn endpoints(world: &ControllersFixture, client: &StoreClient) -> Option<BTreeMap<StoreKey, Value>> {
    let listing = world.runtime.block_on(client.list(&KeyRange::all(Kind::WorkloadEndpoint))).ok()?;
    let described = listing.entries.into_iter().map(|entry| {
        let object: Value = serde_json::from_slice(&entry.value.encode()).unwrap();
        let account = object["spec"]["serviceAccountName"].clone();
        (entry.key, json!({"labels": object["metadata"]["labels"], "account": account}))
    });
    Some(described.collect())
}

/// Writes endpoints without labels, as the CNI plugin does when it attaches a pod.
fn wire(world: &ControllersFixture, kubernetes: &StoreClient, etcd: &StoreClient) {
    let Ok(pods) = world.runtime.block_on(kubernetes.list(&KeyRange::all(Kind::WorkloadEndpoint))) else {
        return;
    };
    for entry in pods.entries {
        let tortie_model::StoreValue::Resource(Resource::WorkloadEndpoint(mut endpoint)) = entry.value else {
            continue;
        };
        endpoint.metadata.labels.clear();
        endpoint.metadata.resource_version.clear();
        let value = tortie_model::StoreValue::Resource(Resource::WorkloadEndpoint(endpoint));
        // It may already exist.
        let _ = world.runtime.block_on(etcd.create(&entry.key, &value));
    }
}

/// Changes, deletes or adds derived objects in etcd, as a careless client might.
fn meddle(world: &ControllersFixture, etcd: &StoreClient, random: &mut StdRng) {
    let kind = if random.random_bool(0.5) { Kind::Profile } else { Kind::NetworkPolicy };
    let Ok(listing) = world.runtime.block_on(etcd.list(&KeyRange::all(kind))) else { return };
    if listing.entries.is_empty() {
        return;
    }
    let place = random.random_range(0..listing.entries.len());
    let mut entry = listing.entries.into_iter().nth(place).unwrap();
    let outcome = match random.random_range(0..3) {
        0 => world.runtime.block_on(etcd.delete(&entry.key, None)).map(drop),
        1 => {
            let tortie_model::StoreValue::Resource(resource) = &mut entry.value else { return };
            resource.metadata_mut().labels.insert("by".into(), "hand".into());
            match resource {
                Resource::Profile(profile) => profile.spec.ingress.clear(),
                Resource::NetworkPolicy(policy) => policy.spec.selector = "all()".into(),
                _ => {}
            }
            world.runtime.block_on(etcd.apply(&entry.key, &entry.value, None)).map(drop)
        }
        _ => {
            let StoreKey::Resource { namespace, name, .. } = &entry.key else { return };
            let name = format!("{name}-stray");
            let tortie_model::StoreValue::Resource(resource) = &mut entry.value else { return };
            resource.metadata_mut().name.clone_from(&name);
            resource.metadata_mut().resource_version.clear();
            let key = StoreKey::resource(kind, namespace, &name);
            world.runtime.block_on(etcd.create(&key, &entry.value)).map(drop)
        }
    };
    // The controllers may have been faster, or the datastore may be down.
    drop(outcome);
}

#[test]
fn etcd_has_what_kubernetes_has_whatever_fails() {
    let seed =
        std::env::var("TORTIE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    let steps =
        std::env::var("TORTIE_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_STEPS);
    println!("TORTIE_SEED={seed} TORTIE_STEPS={steps}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut world = ControllersFixture::new(json!({}));
    let kubernetes = world.client();
    let mut store = RestartableStore::new(world.dir.path().join("db"));
    world.environment = vec![
        ("ETCD_ENDPOINTS", store.url.clone()),
        ("KUBECONFIG", world.server.kubeconfig().display().to_string()),
        ("DATASTORE_TYPE", "etcdv3".to_owned()),
    ];
    let etcd = world.runtime.block_on(StoreClient::connect(&StoreConfig::at(&store.url))).unwrap();
    world.server.add_node(NODE);
    (0..NAMESPACE_COUNT).for_each(|number| world.server.add_namespace(&format!("ns-{number}"), json!({})));
    ["a", "b"].iter().for_each(|name| world.start(name));
    let mut collections = collections();
    let (mut made, mut faults, mut strays) = (0, 0, 0);
    while made < steps {
        let mut touched = BTreeSet::new();
        let mut calls = Vec::new();
        while calls.len() < BATCH_SIZE {
            let which = random.random_range(0..10);
            calls.extend(match which {
                0 => {
                    let path = format!("/api/v1/namespaces/ns-{}", random.random_range(0..NAMESPACE_COUNT));
                    let label = json!({"team": random.random_range(0..100).to_string()});
                    touched
                        .insert(path.clone())
                        .then(|| ApiRequest::merge(&path, json!({"metadata": {"labels": label}})))
                }
                _ => collections[which % 3].change(&mut random, &mut touched),
            });
        }
        let answers = world.server.call_all(&calls, 8);
        let refused: Vec<_> = calls.iter().zip(&answers).filter(|(_, answer)| !answer.is_success()).collect();
        assert!(refused.is_empty(), "{refused:?}");
        made += calls.len();
        wire(&world, &kubernetes, &etcd);
        for _ in 0..4 {
            meddle(&world, &etcd, &mut random);
            strays += 1;
        }
        match random.random_range(0..6) {
            0 => store.restart(),
            1 => {
                world.server.stop();
                world.server.resume();
            }
            2 => world.server.forget_the_past(),
            3 | 4 => {
                let leader = world.leader();
                if world.replicas.remove(&leader).is_some() {
                    world.start(&leader);
                }
            }
            _ => continue,
        }
        faults += 1;
    }
    println!("{made} changes in Kubernetes, {strays} by hand in etcd, {faults} faults");
    let differ =
        |one: &Option<BTreeMap<StoreKey, Value>>, other: &Option<BTreeMap<StoreKey, Value>>| -> Vec<String> {
            let (Some(one), Some(other)) = (one, other) else { return vec!["cannot be listed".to_owned()] };
            let keys: BTreeSet<&StoreKey> = one.keys().chain(other.keys()).collect();
            let differs = keys.into_iter().filter(|key| one.get(*key) != other.get(*key));
            differs.map(|key| format!("{key}: {:?} {:?}", one.get(key), other.get(key))).collect()
        };
    let differences = || differ(&derived(&world, &kubernetes), &derived(&world, &etcd));
    eventually_showing(
        "profiles and policies are those of Kubernetes",
        || differences().is_empty(),
        || format!("{:#?}\n{}", differences(), world.log()),
    );
    // Endpoints of deleted pods are left to their CNI plugin.
    let pods = || {
        let (known, mut found) = (endpoints(&world, &kubernetes), endpoints(&world, &etcd));
        if let (Some(known), Some(found)) = (&known, &mut found) {
            found.retain(|key, _| known.contains_key(key));
        }
        differ(&known, &found)
    };
    wire(&world, &kubernetes, &etcd);
    assert!(!endpoints(&world, &kubernetes).unwrap().is_empty());
    eventually_showing(
        "endpoints have the labels of their pods",
        || pods().is_empty(),
        || format!("{:#?}", pods()),
    );
    assert!(!derived(&world, &etcd).unwrap().is_empty());
}
