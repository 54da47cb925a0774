//! The cluster of the cases as a lab: the pods of namespace shop on one node, that of namespace other on another, and
//! hosts outside in the network between them.

use super::packets::DSCP;
use super::place::{Flow, Place};
use crate::Lab;
use regex::Regex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tortie_model::{API_VERSION, Key, Resource};
use tortie_plan::evaluate::Packet;
use tortie_store::{Client, Config, Resources};
use tortie_testkit::conformance::{Case, Expected, Sent, world};

const NODES: [&str; 2] = ["node1", "node2"];
/// Where p is, at one end of every packet, and its neighbours: whatever is denied is denied here.
const HOME: &str = NODES[0];
/// What the cases call it.
const HOME_IN_CASES: &str = "n1";
const OUTSIDE: &str = "outside";
/// What the kernel's rules call what they do.
const ENDPOINT_TO_HOST: &str = "the host is closed to workloads";
const ENCAPSULATION: &str = "workloads may not encapsulate";
const MARKED: [&str; 2] = ["mark1", "mark2"];
const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

pub struct Cluster {
    /// Closed before the lab goes down.
    flows: BTreeMap<String, Flow>,
    places: BTreeMap<String, Place>,
    addresses: BTreeMap<String, Vec<IpAddr>>,
    /// Endpoints as they are between the cases, by `namespace/name`.
    endpoints: BTreeMap<String, Value>,
    /// What the current case has written, and has to go again.
    written: Vec<Resource>,
    /// The packets sent so far, and the name of the place where each must not arrive if it was denied.
    sent: u16,
    denied: Vec<(String, u16, String)>,
    marks: u16,
    lab: Lab,
}

impl Cluster {
    pub fn new(cases: &[Case]) -> Cluster {
        let lab = Lab::up(&["--nodes", "2", "--pool", "10.65.0.0/24", "--pool", "fd00:65::/112"]);
        let mut cluster = Cluster {
            flows: BTreeMap::new(),
            places: BTreeMap::new(),
            addresses: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            written: Vec::new(),
            sent: 0,
            denied: Vec::new(),
            marks: 0,
            lab,
        };
        let node = ["10.10.1.1", "fd00:10:10:1::1"].map(|text| text.parse().unwrap());
        cluster.addresses.insert(HOME_IN_CASES.to_owned(), node.into());
        cluster.add_place(HOME_IN_CASES, HOME);
        cluster.add_place(OUTSIDE, "net");
        cluster.add_outside(cases);
        cluster.add_world();
        cluster.watch_packets();
        cluster
    }

    fn add_place(&mut self, name: &str, suffix: &str) {
        self.places.insert(name.to_owned(), Place::new(&format!("tortie-{}-{suffix}", self.lab.name)));
    }

    fn add_outside(&mut self, cases: &[Case]) {
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
        // A node that starts asks for Return; the cases are about what nobody asked for.
        let name = json!({"name": format!("node.{HOME}")});
        let mut resources =
            vec![document("FelixConfiguration", name, json!({"defaultEndpointToHostAction": "Drop"}))];
        for resource in world() {
            match &resource {
                Resource::Node(_) => {}
                Resource::WorkloadEndpoint(_) => {
                    let (name, value) = self.add_pod(&resource);
                    resources.push(value.clone());
                    self.endpoints.insert(name, value);
                }
                _ => resources.push(resource.to_value()),
            }
        }
        for (node, pod) in NODES.iter().zip(MARKED) {
            self.lab.add(pod, node, &["--namespace", "marks", "--label", "marked=yes"]);
            self.endpoints.insert(format!("marks/{pod}"), self.endpoint("marks", pod, node));
        }
        self.ctl("apply", &resources);
        // Settings and profiles are written just once.
        self.wait("settings and profiles", |cluster| {
            let [home, other] = NODES.map(|node| cluster.table(node, &["-s"]));
            home.contains(ENDPOINT_TO_HOST)
                && home.matches("jump in-profile/kns.shop").count() == 3
                && other.contains("jump in-profile/kns.other")
        });
    }

    /// A pod as CNI makes it, with what the world says about it.
    fn add_pod(&mut self, resource: &Resource) -> (String, Value) {
        let Resource::WorkloadEndpoint(wanted) = resource else { panic!("{resource:?}") };
        let (namespace, pod) = (wanted.metadata.namespace.as_str(), wanted.spec.pod.as_str());
        let node = if namespace == "shop" { NODES[0] } else { NODES[1] };
        let name = format!("{namespace}/{pod}");
        let addresses = self.lab.add(pod, node, &["--namespace", namespace]);
        for address in &addresses {
            let gateway = match (node == NODES[0], address.contains(':')) {
                (true, false) => "10.10.1.1",
                (true, true) => "fd00:10:10:1::1",
                (false, false) => "10.10.1.2",
                (false, true) => "fd00:10:10:1::2",
            };
            self.ip_outside(&format!("route add {address} via {gateway}"));
        }
        self.addresses.insert(name.clone(), addresses.iter().map(|text| text.parse().unwrap()).collect());
        self.add_place(&name, &format!("pod-{pod}"));
        let actual = self.endpoint(namespace, pod, node);
        (name, described(actual, &resource.to_value()))
    }

    fn endpoint(&self, namespace: &str, pod: &str, node: &str) -> Value {
        let name = format!("{node}-k8s-{pod}-eth0");
        let text = self.lab.run(&["ctl", "get", "workloadendpoint", &name, "-n", namespace, "-o", "json"]);
        let mut value: Value = serde_json::from_str(&text).unwrap();
        value["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        value
    }

    /// Writes down the numbers of our packets as they reach the node, before anything decides about them.
    fn watch_packets(&self) {
        let table = format!(
            "table inet probe {{
                set entered4 {{ typeof ip id; size 65535; flags dynamic; }}
                set entered6 {{ typeof ip6 flowlabel; size 65535; flags dynamic; }}
                chain enter {{
                    type filter hook prerouting priority -400;
                    ip dscp {DSCP} add @entered4 {{ ip id }}
                    ip6 dscp {DSCP} add @entered6 {{ ip6 flowlabel }}
                }}
            }}"
        );
        self.lab.run(&["exec", HOME, "--", "nft", &table]);
    }

    /// Writes what a step says, and returns when both nodes have it.
    pub fn write(&mut self, applied: &[Resource], deleted: &[Resource]) {
        let mut documents = Vec::new();
        for resource in applied {
            match resource {
                Resource::WorkloadEndpoint(endpoint) => {
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

    /// Takes away what the case has written, the last first.
    pub fn restore(&mut self) {
        self.flows.clear();
        let mut endpoints = Vec::new();
        let mut others = Vec::new();
        for resource in std::mem::take(&mut self.written).iter().rev() {
            match resource {
                Resource::WorkloadEndpoint(endpoint) => {
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
        self.unasked(async |store| {
            store.client().delete(&key(resource), None).await.unwrap();
        });
    }

    /// Does what calicoctl would refuse.
    fn unasked(&self, work: impl AsyncFnOnce(&Resources)) {
        let endpoint = format!("unix://{}", self.lab.dir().join("store/datastore.sock").display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::connect(&Config::at(&endpoint)).await.unwrap();
            work(&Resources::new(client)).await;
        });
    }

    fn ctl(&self, command: &str, documents: &[Value]) {
        if documents.is_empty() {
            return;
        }
        let file = self.lab.dir().join("case.yaml");
        let texts: Vec<String> = documents.iter().map(Value::to_string).collect();
        std::fs::write(&file, texts.join("\n---\n")).unwrap();
        self.lab.run(&["ctl", command, "-f", file.to_str().unwrap()]);
    }

    /// News of one kind stay in order: when both nodes show a mark of each kind that cases write, made after everything
    /// else, they show everything else too.
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
        let mut marks = vec![
            document("Tier", json!({"name": "marks"}), json!({"order": 1, "defaultAction": action})),
            document("GlobalNetworkPolicy", json!({"name": "marks.all"}), spec(json!([policy, "mark"]))),
            document(
                "NetworkPolicy",
                json!({"name": "marks.own", "namespace": "marks"}),
                spec(json!([namespaced])),
            ),
        ];
        for pod in MARKED {
            let mut endpoint = self.endpoints[&format!("marks/{pod}")].clone();
            endpoint["spec"]["ports"] = json!([{"name": "mark", "protocol": "TCP", "port": port}]);
            marks.push(endpoint);
        }
        self.ctl("apply", &marks);
        let wanted = [policy, namespaced, port].map(|number| number.to_string());
        self.wait("the marks", |cluster| {
            NODES.iter().all(|node| {
                let table = cluster.table(node, &["-s"]);
                // Each node has a marked pod, and all ports with that name.
                wanted.iter().all(|number| table.contains(number))
                    && table.matches(&format!("tcp . {port} ")).count()
                        + table.matches(&format!("tcp . {port},")).count()
                        == 4
                    && table.contains("end of tier marks") == denies
            })
        });
    }

    fn wait(&self, what: &str, done: impl Fn(&Cluster) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !done(self) {
            let picture = || NODES.map(|node| self.table(node, &[])).join("\n");
            assert!(Instant::now() < deadline, "waited in vain for {what}:\n{}", picture());
            std::thread::sleep(PAUSE);
        }
    }

    fn table(&self, node: &str, options: &[&str]) -> String {
        self.nft(node, &[options, &["list", "table", "inet", "tortie"]].concat())
    }

    fn nft(&self, node: &str, words: &[&str]) -> String {
        let namespace = format!("tortie-{}-{node}", self.lab.name);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace, "nft"]).args(words).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Sends the packets of a step and compares what arrives, and what decided according to the kernel's counters.
    pub fn send(&mut self, case: &Case, packets: &[Sent]) {
        let title = format!("case {} ({})", case.number, case.title);
        let before = self.counters();
        let mut allowed = Vec::new();
        let mut denied = Vec::new();
        for sent in packets {
            let (source, destination) = self.ends(sent);
            if let Some(flow) = &sent.flow {
                assert_eq!(sent.verdict, Expected::Allow, "{title}: nothing here shows that a flow ends");
                self.carry(flow, sent, destination);
                continue;
            }
            self.sent += 1;
            let number = self.sent;
            self.place(&sent.from).send(&packet(sent, source, destination, number), number);
            match sent.verdict {
                Expected::Allow => allowed.push((sent, number)),
                Expected::Deny => denied.push((sent, number)),
            }
        }
        let deadline = Instant::now() + LIMIT;
        for (sent, number) in allowed {
            while !self.arrived(&sent.to, number) {
                assert!(Instant::now() < deadline, "{title}: {sent:?} did not arrive");
                std::thread::sleep(PAUSE);
            }
        }
        for (sent, number) in denied {
            while !self.entered(number) {
                assert!(Instant::now() < deadline, "{title}: {sent:?} did not reach the node");
                std::thread::sleep(PAUSE);
            }
            assert!(!self.arrived(&sent.to, number), "{title}: {sent:?} arrived");
            self.denied.push((sent.to.clone(), number, format!("{title}: {sent:?}")));
        }
        let after = self.counters();
        let causes: BTreeSet<&str> = packets.iter().filter_map(counted).collect();
        for cause in causes {
            let count = |counters: &Counters| counters.get(cause).copied().unwrap_or(0);
            let expected = packets.iter().filter(|sent| counted(sent) == Some(cause)).count();
            let found = count(&after) - count(&before);
            assert!(found >= u64::try_from(expected).unwrap(), "{title}: {cause} decided {found} times");
        }
        if packets.iter().any(|sent| sent.logged) {
            assert!(after.get("log") > before.get("log"), "{title}: nothing was logged");
        }
    }

    /// However long a packet that was denied took, it has not arrived.
    pub fn nothing_came_late(&mut self) {
        assert!(!self.denied.is_empty());
        for (to, number, told) in std::mem::take(&mut self.denied) {
            assert!(!self.arrived(&to, number), "{told} arrived late");
        }
    }

    fn carry(&mut self, name: &str, sent: &Sent, destination: IpAddr) {
        let address = SocketAddr::new(destination, port(sent).1);
        if !self.flows.contains_key(name) {
            let flow = Flow::open(self.place(&sent.from), self.place(&sent.to), address);
            self.flows.insert(name.to_owned(), flow);
        }
        self.flows.get_mut(name).unwrap().carry();
    }

    fn place(&self, end: &str) -> &Place {
        self.places.get(end).unwrap_or(&self.places[OUTSIDE])
    }

    fn arrived(&mut self, end: &str, number: u16) -> bool {
        let name = if self.places.contains_key(end) { end } else { OUTSIDE };
        self.places.get_mut(name).unwrap().arrived().contains(&number)
    }

    fn entered(&self, number: u16) -> bool {
        ["entered4", "entered6"].iter().any(|set| {
            let listing: Value =
                serde_json::from_str(&self.nft(HOME, &["-j", "list", "set", "inet", "probe", set])).unwrap();
            let objects = listing["nftables"].as_array().unwrap().iter();
            let mut elements = objects.filter_map(|object| object["set"]["elem"].as_array()).flatten();
            elements.any(|element| {
                element.as_u64().or(element["elem"]["val"].as_u64()) == Some(u64::from(number))
            })
        })
    }

    fn ends(&self, sent: &Sent) -> (IpAddr, IpAddr) {
        let [sources, destinations] = [&sent.from, &sent.to].map(|end| &self.addresses[end]);
        // Who is outside has one address, which says the family.
        let literal = [sources, destinations].into_iter().find(|addresses| addresses.len() == 1);
        let v4 = literal.map_or(sent.family != Some(6), |addresses| addresses[0].is_ipv4());
        let of = |addresses: &[IpAddr]| *addresses.iter().find(|address| address.is_ipv4() == v4).unwrap();
        (of(sources), of(destinations))
    }

    /// How many packets each rule has counted, on both nodes; `log` is for all that log.
    fn counters(&self) -> Counters {
        let rule = Regex::new(r#"counter packets (\d+) bytes \d+ (.*)comment "([^"]*)""#).unwrap();
        let mut counters = Counters::new();
        for node in NODES {
            for found in rule.captures_iter(&self.table(node, &[])) {
                let packets: u64 = found[1].parse().unwrap();
                // Rules are numbered.
                let holder = found[3].rsplit_once(' ').filter(|(_, rule)| rule.parse::<u32>().is_ok());
                let cause = holder.map_or(&found[3], |(holder, _)| holder);
                *counters.entry(cause.to_owned()).or_default() += packets;
                if found[2].starts_with("log ") {
                    *counters.entry("log".to_owned()).or_default() += packets;
                }
            }
        }
        counters
    }
}

type Counters = BTreeMap<String, u64>;

/// The comment of the rule that counts what a cause decides, if there is one.
fn counted(sent: &Sent) -> Option<&str> {
    match sent.by.as_deref()? {
        "connection" => None,
        "encapsulation" => Some(ENCAPSULATION),
        "endpoint to host" => Some(ENDPOINT_TO_HOST),
        "profile kns.shop" => Some("profile/kns.shop"),
        other => Some(other),
    }
}

fn key(resource: &Resource) -> Key {
    let metadata = resource.metadata();
    Key::resource(resource.kind(), &metadata.namespace, &metadata.name)
}

/// Those that Kubernetes alone may write.
fn is_of_kubernetes(resource: &Resource) -> bool {
    resource.metadata().name.starts_with("knp.")
}

fn document(kind: &str, metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
}

/// An endpoint with labels, profiles and ports of another.
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

fn port(sent: &Sent) -> (u8, u16) {
    let (protocol, number) = sent.port.split_once('/').unwrap();
    let protocol = match protocol {
        "tcp" => Packet::TCP,
        "udp" => Packet::UDP,
        "icmp" => Packet::ICMP,
        "icmpv6" => Packet::ICMPV6,
        other => panic!("{other}"),
    };
    (protocol, number.parse().unwrap())
}

fn packet(sent: &Sent, source: IpAddr, destination: IpAddr, number: u16) -> Packet {
    let (protocol, to) = port(sent);
    let icmp = [Packet::ICMP, Packet::ICMPV6].contains(&protocol);
    Packet {
        source,
        destination,
        protocol,
        // Each is a connection of its own.
        source_port: if icmp { 0 } else { 50000 + number },
        destination_port: if icmp { 0 } else { to },
        icmp: icmp.then(|| (u8::try_from(to).unwrap(), 0)),
    }
}
