//! The cluster of the conformance cases as a lab: the pods of namespace shop on one node, the pod of namespace other
//! on another, and external hosts in the network between them.

use super::kernel::{ENDPOINT_TO_HOST_COMMENT, NodeKernel};
use super::kube::{self, KubernetesDatastore};
use super::place::{PacketPlace, PlaceFlow};
use crate::TestLab;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;
use tortie_model::kinds::WorkloadEndpoint;
use tortie_model::{API_VERSION, Kind, Resource, StoreKey};
use tortie_store::{ResourceClient, StoreClient, StoreConfig};
use tortie_testkit::conformance::{ConformanceCase, world};
use tortie_testkit::{CONDITION_TIMEOUT, CalicoGroup, eventually_showing};

pub const NODE_NAMES: [&str; 2] = ["node1", "node2"];
const POOL_CIDRS: [&str; 2] = ["10.65.0.0/24", "fd00:65::/112"];
/// Name of the first node in the cases.
const FIRST_NODE_NAME: &str = "n1";
/// Place of all addresses that no pod and no node has.
pub const OUTSIDE_PLACE: &str = "outside";
/// One pod per node whose rules show which updates the node has applied.
pub const MARKED_PODS: [&str; 2] = ["mark1", "mark2"];
pub const PACKET_TIMEOUT: Duration = CONDITION_TIMEOUT;
pub const POLL_INTERVAL: Duration = Duration::from_millis(5);

pub struct ConformanceCluster {
    /// Dropped before the lab.
    pub flows: BTreeMap<String, PlaceFlow>,
    pub places: BTreeMap<String, PacketPlace>,
    pub addresses: BTreeMap<String, Vec<IpAddr>>,
    pub nodes: [NodeKernel; 2],
    /// Endpoints as they are between cases, by `namespace/name`.
    endpoints: BTreeMap<String, Value>,
    /// Resources written by the current case, to be removed afterwards.
    written: Vec<Resource>,
    /// Number of packets sent.
    pub sent: u16,
    pub denied: Vec<DeniedPacket>,
    marks: u16,
    /// The Kubernetes API, if it holds the objects instead of the lab's datastore.
    kube: Option<KubernetesDatastore>,
    lab: TestLab,
}

/// A packet that must not arrive.
pub struct DeniedPacket {
    pub to: String,
    pub number: u16,
    pub packet: String,
}

impl ConformanceCluster {
    pub fn new(cases: &[ConformanceCase], kubernetes: Option<CalicoGroup>) -> ConformanceCluster {
        let lab =
            TestLab::up(&["--nodes", "2", "--pool", POOL_CIDRS[0], "--pool", POOL_CIDRS[1], "--record"]);
        let kube = kubernetes.map(|group| KubernetesDatastore::take_over(&lab, group, POOL_CIDRS));
        let nodes = NODE_NAMES.map(|node| NodeKernel::of(&format!("tortie-{}-{node}", lab.name)));
        let mut cluster = ConformanceCluster {
            nodes,
            flows: BTreeMap::new(),
            places: BTreeMap::new(),
            addresses: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            written: Vec::new(),
            sent: 0,
            denied: Vec::new(),
            marks: 0,
            kube,
            lab,
        };
        let node = ["10.10.1.1", "fd00:10:10:1::1"].map(|text| text.parse().unwrap());
        cluster.addresses.insert(FIRST_NODE_NAME.to_owned(), node.into());
        cluster.add_place(FIRST_NODE_NAME, NODE_NAMES[0]);
        cluster.add_place(OUTSIDE_PLACE, "net");
        cluster.add_outside(cases);
        cluster.add_world();
        cluster.home().watch_packets();
        cluster
    }

    /// Returns the kernel of the node that hosts p, one end of every packet, and its neighbours: every denial happens
    /// there.
    pub fn home(&self) -> &NodeKernel {
        &self.nodes[0]
    }

    fn add_place(&mut self, name: &str, suffix: &str) {
        self.places.insert(name.to_owned(), PacketPlace::new(&format!("tortie-{}-{suffix}", self.lab.name)));
    }

    fn add_outside(&mut self, cases: &[ConformanceCase]) {
        let packets = || cases.iter().flat_map(|case| &case.steps).flat_map(|step| &step.packets);
        let ends: BTreeSet<&String> = packets().flat_map(|sent| [&sent.from, &sent.to]).collect();
        for address in ends.into_iter().filter_map(|end| end.parse::<IpAddr>().ok()) {
            self.ip_outside(&format!("address add {address} dev lo"));
            self.addresses.insert(address.to_string(), vec![address]);
        }
    }

    fn ip_outside(&self, words: &str) {
        let namespace = format!("tortie-{}-net", self.lab.name);
        let status = Command::new("ip").args(["-n", &namespace]).args(words.split(' ')).status().unwrap();
        assert!(status.success(), "ip {words}");
    }

    fn add_world(&mut self) {
        // A starting node sets this to Return; the cases expect Calico's default.
        let name = json!({"name": format!("node.{}", NODE_NAMES[0])});
        let mut resources =
            vec![document("FelixConfiguration", name, json!({"defaultEndpointToHostAction": "Drop"}))];
        for resource in world() {
            match &resource {
                Resource::Node(_) => {}
                Resource::Profile(_) if self.kube.is_some() => {}
                // `lab pod add` keeps the profile of a namespace that exists already.
                Resource::Profile(_) => self.ctl("apply", &[resource.to_value()]),
                Resource::WorkloadEndpoint(endpoint) => {
                    let name = self.add_pod(endpoint);
                    if self.kube.is_none() {
                        let (namespace, pod) = name.split_once('/').unwrap();
                        let actual = self.endpoint(namespace, pod, home_of(namespace));
                        let value = described(actual, &resource.to_value());
                        resources.push(value.clone());
                        self.endpoints.insert(name, value);
                    }
                }
                _ => resources.push(resource.to_value()),
            }
        }
        for (node, pod) in NODE_NAMES.iter().zip(MARKED_PODS) {
            if let Some(kube) = &self.kube {
                let mut marked = WorkloadEndpoint::default();
                marked.metadata.namespace = "marks".to_owned();
                marked.spec.pod = pod.to_owned();
                kube.add_pod(&marked, node);
            }
            let addresses = self.lab.add(pod, node, &["--namespace", "marks", "--label", "marked=yes"]);
            match &self.kube {
                Some(kube) => kube.set_running("marks", pod, &addresses),
                None => {
                    self.endpoints.insert(format!("marks/{pod}"), self.endpoint("marks", pod, node));
                }
            }
        }
        self.ctl("apply", &resources);
        // Settings and profiles are written only once.
        self.wait("settings and profiles", |cluster| {
            let [home, other] = cluster.nodes.each_ref().map(|node| node.table(&["-s"]));
            let are_complete = |table: &str, pods: usize| {
                table.matches("goto policies-in-").count() == pods && !table.contains(" is missing")
            };
            home.contains(ENDPOINT_TO_HOST_COMMENT)
                && home.contains("jump in-profile/kns.shop")
                && are_complete(&home, 4)
                && other.contains("jump in-profile/kns.other")
                && are_complete(&other, 2)
        });
    }

    /// Creates a pod through CNI, as described by the endpoint.
    fn add_pod(&mut self, wanted: &WorkloadEndpoint) -> String {
        let (namespace, pod) = (wanted.metadata.namespace.as_str(), wanted.spec.pod.as_str());
        let node = home_of(namespace);
        let name = format!("{namespace}/{pod}");
        if let Some(kube) = &self.kube {
            kube.add_pod(wanted, node);
        }
        let addresses = self.lab.add(pod, node, &["--namespace", namespace]);
        if let Some(kube) = &self.kube {
            kube.set_running(namespace, pod, &addresses);
        }
        for address in &addresses {
            let gateway = match (node == NODE_NAMES[0], address.contains(':')) {
                (true, false) => "10.10.1.1",
                (true, true) => "fd00:10:10:1::1",
                (false, false) => "10.10.1.2",
                (false, true) => "fd00:10:10:1::2",
            };
            self.ip_outside(&format!("route add {address} via {gateway}"));
        }
        self.addresses.insert(name.clone(), addresses.iter().map(|text| text.parse().unwrap()).collect());
        self.add_place(&name, &format!("pod-{pod}"));
        name
    }

    fn endpoint(&self, namespace: &str, pod: &str, node: &str) -> Value {
        let name = format!("{node}-k8s-{pod}-eth0");
        let text = self.lab.run(&["ctl", "get", "workloadendpoint", &name, "-n", namespace, "-o", "json"]);
        let mut value: Value = serde_json::from_str(&text).unwrap();
        value["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        value
    }

    /// Writes the resources of a step and returns when both nodes have applied them.
    pub fn write(&mut self, applied: &[Resource], deleted: &[Resource]) {
        let mut documents = Vec::new();
        for resource in applied {
            match (&self.kube, resource) {
                (Some(kube), Resource::WorkloadEndpoint(endpoint)) => {
                    assert_eq!(endpoint.spec.profiles, ["missing"], "what Kubernetes cannot say");
                    let there = self.profile();
                    kube.take_profile_away();
                    self.wait("the profile goes", |cluster| cluster.profile() != there);
                }
                (Some(kube), Resource::NetworkPolicy(policy)) if is_of_kubernetes(resource) => {
                    kube.create_policy(policy);
                }
                (None, Resource::WorkloadEndpoint(endpoint)) => {
                    let name = format!("{}/{}", endpoint.metadata.namespace, endpoint.spec.pod);
                    documents.push(described(self.endpoints[&name].clone(), &resource.to_value()));
                }
                _ if is_of_kubernetes(resource) => self.unasked(async |store| {
                    store.create(resource.clone()).await.unwrap();
                }),
                _ => documents.push(resource.to_value()),
            }
            self.written.push(resource.clone());
        }
        self.ctl("apply", &documents);
        for resource in deleted {
            self.delete_unasked(resource);
            self.written.retain(|written| key(written) != key(resource));
        }
        self.settle();
    }

    /// Replays the nodes' recordings in a process without privileges and network, and compares the results.
    pub fn replay(&mut self, least: u64) {
        if let Some(kube) = &mut self.kube {
            kube.stop();
        }
        for node in NODE_NAMES {
            let mut recording = self.lab.dir().join("nodes").join(node).join("recording");
            match self.kube {
                Some(_) => recording.set_file_name(kube::RECORDING_FILE),
                None => drop(self.lab.run(&["node", "stop", node])),
            }
            let output = Command::new("unshare")
                .args(["--user", "--net", env!("CARGO_BIN_EXE_tortie"), "replay"])
                .arg(&recording)
                .output()
                .unwrap();
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{node}: {err}");
            let same = out.lines().find_map(|line| line.strip_prefix("the same as recorded: "));
            let same = same.and_then(|times| times.strip_suffix(" times")).and_then(|n| n.parse().ok());
            assert!(same.is_some_and(|same: u64| same >= least), "{node}: the same {same:?} times");
            assert!(out.contains("\nplan at the end: "), "{out}");
        }
    }

    /// Removes the resources written by the case, in reverse order.
    pub fn restore(&mut self) {
        self.flows.clear();
        let mut endpoints = Vec::new();
        let mut others = Vec::new();
        for resource in std::mem::take(&mut self.written).iter().rev() {
            match (&self.kube, resource) {
                (Some(kube), Resource::WorkloadEndpoint(_)) => {
                    let gone = self.profile();
                    kube.give_profile_back();
                    self.wait("the profile comes", |cluster| cluster.profile() != gone);
                }
                (Some(kube), Resource::NetworkPolicy(policy)) if is_of_kubernetes(resource) => {
                    kube.delete_policy(policy);
                }
                (None, Resource::WorkloadEndpoint(endpoint)) => {
                    let name = format!("{}/{}", endpoint.metadata.namespace, endpoint.spec.pod);
                    endpoints.push(self.endpoints[&name].clone());
                }
                _ if is_of_kubernetes(resource) => self.delete_unasked(resource),
                _ => others.push(resource.to_value()),
            }
        }
        self.ctl("apply", &endpoints);
        self.ctl("delete", &others);
        self.settle();
    }

    fn delete_unasked(&self, resource: &Resource) {
        if let Some(kube) = &self.kube {
            assert_eq!(resource.kind(), Kind::Tier, "nothing else is deleted like that");
            return kube.delete_tier(&resource.metadata().name);
        }
        self.unasked(async |store| {
            store.client().delete(&key(resource), None).await.unwrap();
        });
    }

    /// Writes to the datastore directly what calicoctl would reject.
    fn unasked(&self, work: impl AsyncFnOnce(&ResourceClient)) {
        let endpoint = format!("unix://{}", self.lab.dir().join("store/datastore.sock").display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = StoreClient::connect(&StoreConfig::at(&endpoint)).await.unwrap();
            work(&ResourceClient::new(client)).await;
        });
    }

    fn ctl(&self, command: &str, documents: &[Value]) {
        if documents.is_empty() {
            return;
        }
        if let Some(kube) = &self.kube {
            return kube.ctl(command, documents);
        }
        let file = self.lab.dir().join("case.yaml");
        let texts: Vec<String> = documents.iter().map(Value::to_string).collect();
        std::fs::write(&file, texts.join("\n---\n")).unwrap();
        self.lab.run(&["ctl", command, "-f", file.to_str().unwrap()]);
    }

    /// Waits until both nodes have applied everything. Updates of one kind stay in order: when both nodes show a mark
    /// of each kind that cases write, written after everything else, they have applied everything before it.
    fn settle(&mut self) {
        self.marks += 1;
        let [policy, namespaced, port] = [20000, 30000, 40000].map(|base| base + self.marks);
        let denies = self.marks % 2 == 1;
        let spec = |ports: Value| {
            json!({
                "tier": "marks", "selector": "marked == 'yes'", "types": ["Ingress"],
                "ingress": [{"action": "Allow", "protocol": "TCP", "destination": {"ports": ports}}],
            })
        };
        let action = if denies { "Deny" } else { "Pass" };
        if let Some(kube) = &self.kube {
            kube.mark(self.marks, [policy, namespaced, port], action);
            let wanted = [policy, namespaced, port].map(|number| number.to_string());
            return self.wait("the marks", |cluster| {
                cluster.nodes.iter().all(|node| {
                    let table = node.table(&["-s"]);
                    wanted.iter().all(|number| table.contains(number))
                        && table.contains("end of tier marks") == denies
                })
            });
        }
        let mut marks = vec![
            document("Tier", json!({"name": "marks"}), json!({"order": 1, "defaultAction": action})),
            document("GlobalNetworkPolicy", json!({"name": "marks.all"}), spec(json!([policy, "mark"]))),
            document(
                "NetworkPolicy",
                json!({"name": "marks.own", "namespace": "marks"}),
                spec(json!([namespaced])),
            ),
        ];
        for pod in MARKED_PODS {
            let mut endpoint = self.endpoints[&format!("marks/{pod}")].clone();
            endpoint["spec"]["ports"] = json!([{"name": "mark", "protocol": "TCP", "port": port}]);
            marks.push(endpoint);
        }
        self.ctl("apply", &marks);
        let wanted = [policy, namespaced, port].map(|number| number.to_string());
        self.wait("the marks", |cluster| {
            cluster.nodes.iter().all(|node| {
                let table = node.table(&["-s"]);
                // Each node has a marked pod and all ports of that name.
                wanted.iter().all(|number| table.contains(number))
                    && table.matches(&format!("tcp . {port} ")).count()
                        + table.matches(&format!("tcp . {port},")).count()
                        == 4
                    && table.contains("end of tier marks") == denies
            })
        });
    }

    /// Returns the chain of the profile of namespace shop on the first node.
    fn profile(&self) -> String {
        let table = self.home().table(&["-s"]);
        let chain = table.split("chain ").find(|chain| chain.starts_with("in-profile/kns.shop "));
        chain.unwrap_or_default().to_owned()
    }

    pub fn wait(&self, what: &str, done: impl Fn(&ConformanceCluster) -> bool) {
        let picture = || self.nodes.iter().map(|node| node.table(&[])).collect::<String>();
        eventually_showing(what, || done(self), picture);
    }
}

fn home_of(namespace: &str) -> &'static str {
    if namespace == "shop" { NODE_NAMES[0] } else { NODE_NAMES[1] }
}

fn key(resource: &Resource) -> StoreKey {
    let metadata = resource.metadata();
    StoreKey::resource(resource.kind(), &metadata.namespace, &metadata.name)
}

/// Returns whether only Kubernetes may write the policy.
fn is_of_kubernetes(resource: &Resource) -> bool {
    resource.metadata().name.starts_with("knp.")
}

fn document(kind: &str, metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
}

/// Returns an endpoint with the labels, profiles and ports of another.
fn described(mut actual: Value, like: &Value) -> Value {
    let labels = like["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    actual["metadata"]["labels"].as_object_mut().unwrap().extend(labels);
    for field in ["profiles", "ports", "serviceAccountName"] {
        match like["spec"].get(field) {
            Some(value) => actual["spec"][field] = value.clone(),
            None => drop(actual["spec"].as_object_mut().unwrap().remove(field)),
        }
    }
    actual
}
