//! The controllers with a real kube-apiserver: two replicas, of which one is the leader and may be killed.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use tortie_ipam::block::{self, ReleaseRequest};
use tortie_ipam::{AddressHolder, Allocator, AssignRequest, BlockOwner};
use tortie_store::{StoreClient, StoreConfig};
use tortie_testkit::{ApiServer, CalicoGroup, DatastoreProcess, TestProcess, eventually_showing};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
pub const CONTROLLERS_CONFIGURATION_PATH: &str = "/apis/projectcalico.org/v3/kubecontrollersconfigurations";
const LEADER_LEASE_PATH: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/tortie-controllers";

/// A kube-apiserver, replicas of the controllers, and a client that assigns addresses as nodes do.
pub struct ControllersFixture {
    // Fields are dropped in this order.
    pub replicas: BTreeMap<String, TestProcess>,
    pub server: ApiServer,
    pub dir: TempDir,
    pub runtime: tokio::runtime::Runtime,
    pub environment: Vec<(&'static str, String)>,
    group: CalicoGroup,
}

impl ControllersFixture {
    /// Creates pools and the given controller settings; starts no replica.
    pub fn new(controllers: Value) -> ControllersFixture {
        let world = ControllersFixture::empty(CalicoGroup::V3);
        let server = &world.server;
        let pool = |name: &str, spec: Value| {
            let object = json!({"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": name}, "spec": spec});
            server.create("/apis/projectcalico.org/v3/ippools", &object);
        };
        pool(
            "pods",
            json!({"cidr": "10.77.0.0/20", "blockSize": 28, "allowedUses": ["Workload", "Tunnel"], "nodeSelector": "all()"}),
        );
        pool(
            "services",
            json!({"cidr": "198.51.100.0/24", "blockSize": 28, "allowedUses": ["LoadBalancer"], "nodeSelector": "all()"}),
        );
        let object = json!({"apiVersion": "projectcalico.org/v3", "kind": "KubeControllersConfiguration",
            "metadata": {"name": "default"}, "spec": {"controllers": controllers, "prometheusMetricsPort": 0}});
        world.server.create(CONTROLLERS_CONFIGURATION_PATH, &object);
        world
    }

    /// Installs Calico's kinds in a group and creates the namespace shop, and nothing else.
    pub fn empty(group: CalicoGroup) -> ControllersFixture {
        let server = ApiServer::start();
        server.install(group);
        server.add_namespace("shop", json!({}));
        let environment = server.environment(group);
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        ControllersFixture { replicas: BTreeMap::new(), server, dir, runtime, environment, group }
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    pub fn start(&mut self, name: &str) {
        let log = std::fs::File::options().create(true).append(true).open(self.log_file()).unwrap();
        let mut command = Command::new(TORTIE);
        command
            .args(["controllers", "--identity", name, "--status-file"])
            .arg(self.dir.path().join(name))
            .envs(self.environment.iter().cloned())
            .stderr(log);
        let (process, line) = TestProcess::until_first_line(&mut command);
        assert!(line.starts_with("ready: "), "{line:?}\n{}", self.log());
        self.replicas.insert(name.to_owned(), process);
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub fn leader(&self) -> String {
        let lease = self.server.send("GET", LEADER_LEASE_PATH, None).unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }

    pub fn wait(&self, what: &str, so: impl FnMut() -> bool) {
        eventually_showing(what, so, || self.log());
    }

    pub fn client(&self) -> StoreClient {
        let config = StoreConfig {
            datastore_type: "kubernetes".into(),
            kubeconfig: self.server.kubeconfig().display().to_string(),
            calico_api_group: self.group.api_version().into(),
            ..StoreConfig::default()
        };
        self.runtime.block_on(StoreClient::connect(&config)).unwrap()
    }

    /// Returns every assigned address.
    pub fn assigned(&self, allocator: &Allocator) -> BTreeSet<IpAddr> {
        let blocks = self.runtime.block_on(allocator.records().blocks(None)).unwrap();
        blocks
            .iter()
            .flat_map(|found| block::allocations(&found.value))
            .map(|allocation| allocation.address)
            .collect()
    }

    pub fn assign(&self, node: &str, pod: &str) -> IpAddr {
        let allocator = Allocator::new(self.client(), BlockOwner::host(node));
        let attributes = [("pod", pod), ("namespace", "shop"), ("node", node)];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let holder = AddressHolder::new(Some(&format!("k8s-pod-network.{pod}")), attributes);
        let assigned =
            self.runtime.block_on(allocator.auto_assign(&AssignRequest::new(holder, 1, 0))).unwrap();
        assigned.v4.addresses[0].addr()
    }

    pub fn service(&self, name: &str, spec: Value) {
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
        self.server.create("/api/v1/namespaces/shop/services", &object);
    }

    pub fn ingress(&self, name: &str) -> String {
        let service = self.server.must("GET", &format!("/api/v1/namespaces/shop/services/{name}"), None);
        service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().unwrap_or_default().to_owned()
    }
}

/// Random events in a cluster: every leaked address is released eventually, and no address in use ever.
#[test]
fn leaks_are_released_while_leaders_are_killed() {
    let seed =
        std::env::var("TORTIE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    let steps = std::env::var("TORTIE_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    println!("TORTIE_SEED={seed} TORTIE_STEPS={steps}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut world = ControllersFixture::new(json!({"node": {"leakGracePeriod": "2s"}}));
    let allocator = Allocator::new(world.client(), BlockOwner::host("n1"));
    let mut nodes: BTreeMap<String, bool> = ["n1", "n2", "n3"].map(|node| (node.to_owned(), true)).into();
    nodes.keys().for_each(|node| world.server.add_node(node));
    ["a", "b"].iter().for_each(|name| world.start(name));
    world.wait("somebody leads", || !world.leader().is_empty());
    let mut live: BTreeMap<String, (String, IpAddr)> = BTreeMap::new();
    let (mut pods, mut leaks, mut kills) = (0, 0, 0);
    let some = |live: &BTreeMap<String, (String, IpAddr)>, random: &mut StdRng| {
        let count = live.len();
        (count > 0).then(|| live.keys().nth(random.random_range(0..count)).unwrap().clone())
    };
    for step in 0..steps {
        let node = format!("n{}", random.random_range(1..=3));
        match random.random_range(0..100) {
            0..45 if nodes[&node] => {
                pods += 1;
                let pod = format!("p{pods}");
                world.server.add_pod("shop", &pod, &node, json!({}), json!([]));
                let address = world.assign(&node, &pod);
                world.server.set_pod_addresses("shop", &pod, &[address.to_string()]);
                live.insert(pod, (node, address));
            }
            45..60 => {
                if let Some(pod) = some(&live, &mut random) {
                    let (_, address) = live.remove(&pod).unwrap();
                    world.server.remove_pod("shop", &pod);
                    // The garbage collector may already have released it.
                    world.runtime.block_on(allocator.release(&[ReleaseRequest::of(address)])).unwrap();
                }
            }
            60..80 => {
                if let Some(pod) = some(&live, &mut random) {
                    live.remove(&pod);
                    world.server.remove_pod("shop", &pod);
                    leaks += 1;
                }
            }
            80..84 if nodes[&node] => {
                nodes.insert(node.clone(), false);
                world.server.must("DELETE", &format!("/api/v1/nodes/{node}"), None);
                let own: Vec<String> =
                    live.iter().filter(|(_, (at, _))| *at == node).map(|(pod, _)| pod.clone()).collect();
                for pod in own {
                    live.remove(&pod);
                    world.server.remove_pod("shop", &pod);
                    leaks += 1;
                }
            }
            84..90 if !nodes[&node] => {
                nodes.insert(node.clone(), true);
                world.server.add_node(&node);
            }
            90..92 => {
                let leader = world.leader();
                if world.replicas.remove(&leader).is_some() {
                    kills += 1;
                    world.start(&leader);
                }
            }
            _ => {}
        }
        if step % 10 == 0 {
            let assigned = world.assigned(&allocator);
            for (pod, (_, address)) in &live {
                assert!(assigned.contains(address), "{address} of {pod} was released\n{}", world.log());
            }
        }
    }
    // Kill the leader at least once while addresses are still to be released.
    let leader = world.leader();
    if world.replicas.remove(&leader).is_some() {
        kills += 1;
    }
    let used: BTreeSet<IpAddr> = live.values().map(|(_, address)| *address).collect();
    world.wait("what leaked is released, and nothing else is", || world.assigned(&allocator) == used);
    world.wait("another leads", || world.leader() != leader);
    assert!(pods > 0 && leaks > 0 && kills > 0, "{pods} pods, {leaks} leaks, {kills} kills");
    let owners = || -> BTreeSet<String> {
        let blocks = world.runtime.block_on(allocator.records().blocks(None)).unwrap();
        blocks.iter().filter_map(|found| Some(found.value.owner()?.1.to_owned())).collect()
    };
    world.wait("nodes that are gone have no blocks", || owners().iter().all(|owner| nodes[owner]));
}

#[test]
fn host_endpoints_follow_nodes_and_settings() {
    let mut world = ControllersFixture::new(json!({"node": {"leakGracePeriod": "1s"}}));
    world.server.add_node("n1");
    world.start("a");
    let endpoints = "/apis/projectcalico.org/v3/hostendpoints";
    let mine = json!({"apiVersion": "projectcalico.org/v3", "kind": "HostEndpoint", "metadata": {"name": "mine"},
        "spec": {"node": "n1", "interfaceName": "eth0"}});
    world.server.create(endpoints, &mine);
    let names = |world: &ControllersFixture| -> Vec<String> {
        let listed = world.server.must("GET", endpoints, None);
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let status = || {
        world.server.must("GET", &format!("{CONTROLLERS_CONFIGURATION_PATH}/default"), None)["status"]["runningConfig"].take()
    };
    world.wait("what is in force is said", || status()["controllers"]["node"].is_object());
    let set = |value: &str| {
        let patch = json!({"spec": {"controllers": {"node": {"hostEndpoint": {"autoCreate": value}}}}});
        world.server.merge(&format!("{CONTROLLERS_CONFIGURATION_PATH}/default"), &patch);
    };
    set("Enabled");
    world.wait("an endpoint comes", || names(&world) == ["mine", "n1-auto-hep"]);
    world.wait("and the status says why", || {
        status()["controllers"]["node"]["hostEndpoint"]["autoCreate"] == "Enabled"
    });
    let endpoint = || world.server.must("GET", &format!("{endpoints}/n1-auto-hep"), None);
    world.server.merge(
        "/api/v1/nodes/n1",
        &json!({"metadata": {"labels": {"rack": "7"},
        "annotations": {"projectcalico.org/IPv4Address": "172.30.0.1/24"}}}),
    );
    world.wait("it follows labels and addresses", || {
        let found = endpoint();
        found["metadata"]["labels"]["rack"] == "7" && found["spec"]["expectedIPs"] == json!(["172.30.0.1"])
    });
    world.server.merge(&format!("{endpoints}/n1-auto-hep"), &json!({"spec": {"profiles": []}}));
    world.wait("what a person changed is put right", || {
        endpoint()["spec"]["profiles"] == json!(["projectcalico-default-allow"])
    });
    world.server.add_node("n2");
    world.wait("another node", || names(&world) == ["mine", "n1-auto-hep", "n2-auto-hep"]);
    world.server.must("DELETE", "/api/v1/nodes/n2", None);
    world.wait("is gone", || names(&world) == ["mine", "n1-auto-hep"]);
    set("Disabled");
    world.wait("nothing is left but what is a person's", || names(&world) == ["mine"]);

    let probe = |flag: &str| {
        let mut command = Command::new(TORTIE);
        command.args(["controllers", flag, "--status-file"]).arg(world.dir.path().join("a"));
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    };
    world.wait("it says that it is ready", || probe("-r") == "Ready\n" && probe("-l") == "Ready\n");
}

#[test]
fn services_get_addresses_and_give_them_back() {
    let mut world = ControllersFixture::new(json!({"node": {}, "loadBalancer": {}}));
    world.start("a");
    let allocator = Allocator::new(world.client(), BlockOwner::host("n1"));
    world.service("web", json!({"type": "LoadBalancer", "ports": [{"port": 80}]}));
    world.service(
        "fixed",
        json!({"type": "LoadBalancer", "loadBalancerIP": "198.51.100.77", "ports": [{"port": 80}]}),
    );
    world.service(
        "foreign",
        json!({"type": "LoadBalancer", "loadBalancerClass": "cloud", "ports": [{"port": 80}]}),
    );
    world.wait("both have an address", || {
        world.ingress("web").starts_with("198.51.100.") && world.ingress("fixed") == "198.51.100.77"
    });
    assert_eq!(world.ingress("foreign"), "");
    let given: IpAddr = world.ingress("web").parse().unwrap();
    assert_eq!(world.assigned(&allocator), [given, "198.51.100.77".parse().unwrap()].into());
    let pool = "/apis/projectcalico.org/v3/ippools/services";
    let finalizers = || world.server.must("GET", pool, None)["metadata"]["finalizers"].take();
    world.wait("a pool whose addresses are used is kept", || {
        finalizers() == json!(["projectcalico.org/ippool-finalizer"])
    });
    // Another client removes the address from the status.
    let path = "/api/v1/namespaces/shop/services/web";
    world.server.merge(&format!("{path}/status"), &json!({"status": {"loadBalancer": {"ingress": null}}}));
    world.wait("it is there again", || world.ingress("web") == given.to_string());
    world.server.must("DELETE", path, None);
    world.server.merge(
        "/api/v1/namespaces/shop/services/fixed",
        &json!({"spec": {"type": "ClusterIP", "loadBalancerIP": null}}),
    );
    world.wait("nothing is assigned", || world.assigned(&allocator).is_empty());

    world.wait("and let go with its last address", || finalizers() == Value::Null);
    let free = world.server.must("GET", pool, None);
    assert_eq!(free["status"]["conditions"][0]["reason"], "OK", "{free}");

    // A pool that is deleted while in use disappears when its blocks are released, including blocks of load
    // balancers.
    world.service("last", json!({"type": "LoadBalancer", "ports": [{"port": 80}]}));
    world.wait("an address is used", || !world.ingress("last").is_empty() && finalizers() != Value::Null);
    world.server.must("DELETE", pool, None);
    world.server.must("DELETE", "/api/v1/namespaces/shop/services/last", None);
    world.wait("the pool is gone", || world.server.send("GET", pool, None).is_err());
}

/// With etcd as the datastore, the controllers copy Kubernetes objects there.
#[test]
fn kubernetes_is_mirrored_in_etcd() {
    let mut world = ControllersFixture::new(json!({}));
    let store = DatastoreProcess::start(TORTIE, &world.dir.path().join("db"), &["http://127.0.0.1:0"], &[]);
    world.environment = vec![
        ("ETCD_ENDPOINTS", store.url().to_owned()),
        ("KUBECONFIG", world.server.kubeconfig().display().to_string()),
        ("DATASTORE_TYPE", "etcdv3".to_owned()),
    ];
    let client = world.runtime.block_on(StoreClient::connect(&StoreConfig::at(store.url()))).unwrap();
    world.server.merge("/api/v1/namespaces/shop", &json!({"metadata": {"labels": {"team": "a"}}}));
    world.start("a");
    let get = |kind: tortie_model::Kind, namespace: &str, name: &str| -> Value {
        let key = tortie_model::StoreKey::resource(kind, namespace, name);
        match world.runtime.block_on(client.get(&key)) {
            Ok(entry) => serde_json::from_slice(&entry.value.encode()).unwrap(),
            Err(_) => Value::Null,
        }
    };
    use tortie_model::Kind;
    let profile = || get(Kind::Profile, "", "kns.shop")["spec"]["labelsToApply"]["pcns.team"].take();
    world.wait("the profile of a namespace", || profile() == "a");
    world.server.merge("/api/v1/namespaces/shop", &json!({"metadata": {"labels": {"team": "b"}}}));
    world.wait("follows its labels", || profile() == "b");

    let policies = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "closed"},
        "spec": {"podSelector": {"matchLabels": {"role": "db"}}}});
    world.server.create(policies, &policy);
    let stored = || get(Kind::NetworkPolicy, "shop", "knp.default.closed")["spec"]["selector"].take();
    let selector = "projectcalico.org/orchestrator == 'k8s' && role == 'db'";
    world.wait("a policy", || stored() == selector);

    // Change and delete the copies by hand.
    let key = tortie_model::StoreKey::resource(Kind::NetworkPolicy, "shop", "knp.default.closed");
    let mut entry = world.runtime.block_on(client.get(&key)).unwrap();
    let tortie_model::StoreValue::Resource(tortie_model::Resource::NetworkPolicy(found)) = &mut entry.value
    else {
        panic!("{entry:?}")
    };
    found.spec.selector = "all()".to_owned();
    world.runtime.block_on(client.apply(&key, &entry.value, None)).unwrap();
    world.wait("what a person changed is put right", || stored() == selector);
    let key = tortie_model::StoreKey::resource(Kind::Profile, "", "kns.shop");
    world.runtime.block_on(client.delete(&key, None)).unwrap();
    world.wait("what a person deleted is there again", || profile() == "b");

    world.server.must("DELETE", &format!("{policies}/closed"), None);
    world.wait("a policy goes", || stored() == Value::Null);
}
