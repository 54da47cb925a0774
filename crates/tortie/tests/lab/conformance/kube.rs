//! The conformance cluster on the Kubernetes API: a kube-apiserver in the network between the nodes is the daemons'
//! only datastore. Pods, namespaces, service accounts and NetworkPolicies are Kubernetes objects, the rest are
//! Calico's.

use super::cluster::{MARKED_PODS, NODE_NAMES};
use crate::TestLab;
use serde_json::{Value, json};
use std::process::Command;
use tortie_model::API_VERSION;
use tortie_model::kinds::{EntityRule, NetworkPolicy, Rule, WorkloadEndpoint};
use tortie_testkit::{ApiServer, CalicoGroup, TestProcess, eventually, run};

/// Address of kube-apiserver: the router's address on the nodes' link.
const APISERVER_ADDRESS: &str = "10.10.1.254";
/// File name of a daemon's recording.
pub const RECORDING_FILE: &str = "recording-kube";
const KUBERNETES_SELECTOR: &str = "projectcalico.org/orchestrator == 'k8s'";

pub struct KubernetesDatastore {
    // Fields are dropped in this order.
    daemons: Vec<TestProcess>,
    server: ApiServer,
    namespace: String,
    group: CalicoGroup,
    calicoctl: String,
}

impl KubernetesDatastore {
    /// Switches the nodes of a lab to a kube-apiserver.
    pub fn take_over(lab: &TestLab, group: CalicoGroup, pools: [&str; 2]) -> KubernetesDatastore {
        let namespace = format!("tortie-{}-net", lab.name);
        let server = ApiServer::start_in(&namespace, APISERVER_ADDRESS);
        server.install(group);
        for (name, labels) in [("shop", json!({})), ("other", json!({"team": "a"})), ("marks", json!({}))] {
            server.add_namespace(name, labels);
        }
        let account = json!({"metadata": {"name": "web"}});
        server.create("/api/v1/namespaces/shop/serviceaccounts", &account);
        NODE_NAMES.iter().for_each(|node| server.add_node(node));
        let calicoctl = lab.dir().join("bin/calicoctl").display().to_string();
        let mut kube = KubernetesDatastore { daemons: Vec::new(), server, namespace, group, calicoctl };
        let pool = |(name, cidr): (&str, &str)| {
            json!({"apiVersion": API_VERSION, "kind": "IPPool", "metadata": {"name": name},
                "spec": {"cidr": cidr, "ipipMode": "Never", "vxlanMode": "Never"}})
        };
        let pools: Vec<Value> = ["ipv4", "ipv6"].into_iter().zip(pools).map(pool).collect();
        kube.ctl("apply", &pools);
        kube.daemons = NODE_NAMES.iter().map(|node| kube.start(lab, node)).collect();
        kube
    }

    /// Starts the daemon of a node, replacing the one that the lab started.
    fn start(&self, lab: &TestLab, node: &str) -> TestProcess {
        lab.run(&["node", "stop", node, "--kill"]);
        let dir = lab.dir().join("nodes").join(node);
        let mut command = Command::new("ip");
        command
            .args([
                "netns",
                "exec",
                &format!("tortie-{}-{node}", lab.name),
                env!("CARGO_BIN_EXE_tortie"),
                "node",
            ])
            .envs(self.server.environment(self.group))
            .env("NODENAME", node)
            .env("TORTIE_RUN_DIR", dir.join("run"))
            .env("TORTIE_STATE_DIR", dir.join("state"))
            .env("TORTIE_RECORD", dir.join(RECORDING_FILE))
            .envs([("IP", "autodetect"), ("IP6", "autodetect"), ("NO_DEFAULT_POOLS", "true")])
            .envs([("CALICO_NETWORKING_BACKEND", "vxlan"), ("FELIX_PROGRAMCLUSTERROUTES", "Enabled")]);
        let log = std::fs::File::options().create(true).append(true).open(dir.join("log")).unwrap();
        let (process, line) = TestProcess::until_first_line(command.stderr(log));
        assert!(
            line.starts_with("ready: "),
            "{line:?}\n{}",
            std::fs::read_to_string(dir.join("log")).unwrap()
        );
        process
    }

    /// Stops the daemons with SIGTERM, so that they shut down normally.
    pub fn stop(&mut self) {
        for mut daemon in self.daemons.drain(..) {
            run(Command::new("kill").arg(daemon.id().to_string()));
            eventually("the daemon ends", || daemon.ended());
        }
    }

    pub fn ctl(&self, command: &str, documents: &[Value]) {
        if documents.is_empty() {
            return;
        }
        let texts: Vec<String> = documents.iter().map(Value::to_string).collect();
        let mut runner = Command::new("ip");
        runner
            .args(["netns", "exec", &self.namespace, &self.calicoctl, command, "-f", "-"])
            .envs(self.server.environment(self.group));
        let output = tortie_testkit::output(&mut runner, &texts.join("\n---\n"));
        assert!(output.status.success(), "{command}: {output:?}\n{}", texts.join("\n"));
    }

    /// Creates the pod of an endpoint, before it has a network.
    pub fn add_pod(&self, like: &WorkloadEndpoint, node: &str) {
        let (meta, spec) = (&like.metadata, &like.spec);
        let port = |port: &tortie_model::kinds::WorkloadEndpointPort| json!({"name": format!("{}", port.name), "protocol": port.protocol.to_string(), "containerPort": port.port});
        // Port names must be unique within a container.
        let containers: Vec<Value> = spec
            .ports
            .iter()
            .enumerate()
            .map(|(index, one)| json!({"name": format!("c{index}"), "image": "none", "ports": [port(one)]}))
            .collect();
        let containers =
            if containers.is_empty() { vec![json!({"name": "c", "image": "none"})] } else { containers };
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": spec.pod, "labels": meta.labels},
            "spec": {"nodeName": node, "containers": containers},
        });
        if !spec.service_account_name.is_empty() {
            object["spec"]["serviceAccountName"] = spec.service_account_name.as_str().into();
        }
        self.server.create(&format!("/api/v1/namespaces/{}/pods", meta.namespace), &object);
    }

    pub fn set_running(&self, namespace: &str, pod: &str, addresses: &[String]) {
        self.server.set_pod_addresses(namespace, pod, addresses);
    }

    /// Removes the profile of the endpoints of namespace shop by removing the namespace. Cases change endpoints only
    /// to refer to a missing profile.
    pub fn take_profile_away(&self) {
        self.server.remove_namespace("shop");
    }

    pub fn give_profile_back(&self) {
        self.server.add_namespace("shop", json!({}));
    }

    pub fn create_policy(&self, policy: &NetworkPolicy) {
        let name = policy.metadata.name.strip_prefix("knp.default.").unwrap();
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name}, "spec": original(policy)});
        self.server.create(&policies(&policy.metadata.namespace), &object);
    }

    pub fn delete_policy(&self, policy: &NetworkPolicy) {
        let name = policy.metadata.name.strip_prefix("knp.default.").unwrap();
        self.server.must("DELETE", &format!("{}/{name}", policies(&policy.metadata.namespace)), None);
    }

    /// Deletes a tier directly, bypassing validation.
    pub fn delete_tier(&self, name: &str) {
        self.server.must("DELETE", &format!("/apis/{}/tiers/{name}", self.group.api_version()), None);
    }

    /// Writes marks of each kind that cases write; see `Cluster::settle`.
    pub fn mark(&self, number: u16, ports: [u16; 3], action: &str) {
        let [policy, namespaced, kubernetes] = ports;
        let label = format!("m{number}");
        for pod in MARKED_PODS {
            let path = format!("/api/v1/namespaces/marks/pods/{pod}");
            self.server.merge(&path, &json!({"metadata": {"labels": {"mark": label}}}));
        }
        let path = policies("marks");
        let spec = json!({"podSelector": {"matchLabels": {"mark": label}}, "ingress": [{"ports": [{"port": kubernetes}]}]});
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "mark"}, "spec": spec});
        match self.server.send("POST", &path, Some(&object)) {
            Ok(_) => {}
            Err(_) => drop(self.server.must("PUT", &format!("{path}/mark"), Some(&object))),
        }
        let spec = |port: u16| {
            json!({"tier": "marks", "selector": format!("mark == '{label}'"), "types": ["Ingress"],
                "ingress": [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [port]}}]})
        };
        let document = |kind: &str, metadata: Value, spec: Value| json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec});
        self.ctl(
            "apply",
            &[
                document("Tier", json!({"name": "marks"}), json!({"order": 1, "defaultAction": action})),
                document("GlobalNetworkPolicy", json!({"name": "marks.all"}), spec(policy)),
                document(
                    "NetworkPolicy",
                    json!({"name": "marks.own", "namespace": "marks"}),
                    spec(namespaced),
                ),
            ],
        );
    }
}

fn policies(namespace: &str) -> String {
    format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")
}

/// Returns the Kubernetes policy that converts to a policy of a case.
fn original(policy: &NetworkPolicy) -> Value {
    let rule = |rule: &Rule| {
        let mut original = json!({});
        if let Some(peer) = peer(&rule.source) {
            original["from"] = json!([peer]);
        }
        if let Some(protocol) = &rule.protocol {
            let port = |port: &tortie_model::scalar::Port| json!({"protocol": protocol, "port": port});
            original["ports"] = rule.destination.ports.iter().map(port).collect();
        }
        original
    };
    let spec = &policy.spec;
    assert!(spec.egress.is_empty(), "no case has egress rules of Kubernetes");
    let ingress: Vec<Value> = spec.ingress.iter().map(rule).collect();
    json!({"podSelector": labels(&spec.selector), "policyTypes": spec.types, "ingress": ingress})
}

fn peer(entity: &EntityRule) -> Option<Value> {
    if let Some(net) = entity.nets.first() {
        return Some(json!({"ipBlock": {"cidr": net, "except": entity.not_nets}}));
    }
    if entity.selector.is_empty() {
        return None;
    }
    let mut peer = json!({"podSelector": labels(&entity.selector)});
    if entity.namespace_selector == "all()" {
        peer["namespaceSelector"] = json!({});
    }
    Some(peer)
}

/// Parses a selector such as `projectcalico.org/orchestrator == 'k8s' && role == 'web'`.
fn labels(selector: &str) -> Value {
    let mut labels = json!({});
    for clause in selector.split(" && ").filter(|clause| *clause != KUBERNETES_SELECTOR) {
        let (key, value) = clause.split_once(" == ").unwrap();
        labels[key] = value.trim_matches('\'').into();
    }
    json!({ "matchLabels": labels })
}
