//! Kubernetes policies on real pods: the packets' fate must equal the verdict of `tortie explain`.

use crate::cluster::KubernetesLab;
use crate::pods::ListedPod;
use crate::traffic::TransportPort::{self, Tcp, Udp};
use crate::traffic::{DatagramStream, EchoServers, first_answer};
use std::collections::BTreeMap;
use tortie_dataplane::Netns;
use tortie_testkit::{eventually, eventually_showing};

const TESTED_PORTS: [TransportPort; 4] = [Tcp(8080), Tcp(9090), Udp(5353), Udp(5354)];

/// web and near are on one node, the others on other nodes; foreign is in another namespace.
const POLICY_PODS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: a}}
---
apiVersion: v1
kind: Namespace
metadata: {name: other, labels: {team: b}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {role: web}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/library/busybox:latest
    imagePullPolicy: Never
    command: [sleep, "86400"]
    ports: [{name: http, containerPort: 8080}, {name: metrics, containerPort: 9090}]
---
apiVersion: v1
kind: Pod
metadata: {name: near, namespace: shop, labels: {role: client}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "docker.io/library/busybox:latest", imagePullPolicy: Never, command: [sleep, "86400"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {role: client}}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "docker.io/library/busybox:latest", imagePullPolicy: Never, command: [sleep, "86400"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: foreign, namespace: other, labels: {role: client}}
spec:
  nodeName: node3
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "docker.io/library/busybox:latest", imagePullPolicy: Never, command: [sleep, "86400"]}]
"#;

/// The definitions of the network-policy-api project, reduced to their names.
const CLUSTER_POLICIES: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusternetworkpolicies.policy.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/network-policy-api"}
spec:
  group: policy.networking.k8s.io
  scope: Cluster
  names: {kind: ClusterNetworkPolicy, plural: clusternetworkpolicies, singular: clusternetworkpolicy, listKind: ClusterNetworkPolicyList}
  versions:
  - name: v1alpha2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: adminnetworkpolicies.policy.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/network-policy-api"}
spec:
  group: policy.networking.k8s.io
  scope: Cluster
  names: {kind: AdminNetworkPolicy, plural: adminnetworkpolicies, singular: adminnetworkpolicy, listKind: AdminNetworkPolicyList}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: baselineadminnetworkpolicies.policy.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/network-policy-api"}
spec:
  group: policy.networking.k8s.io
  scope: Cluster
  names: {kind: BaselineAdminNetworkPolicy, plural: baselineadminnetworkpolicies, singular: baselineadminnetworkpolicy, listKind: BaselineAdminNetworkPolicyList}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"#;

const DEFAULT_DENY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress]}
";

const PODS_AND_PORTS: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: pods, namespace: shop}
spec:
  podSelector: {matchLabels: {role: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {role: client}}}]
    ports: [{port: 8080}, {port: 5353, protocol: UDP}]
";

const NAMESPACES_AND_NAMES: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: namespaces, namespace: shop}
spec:
  podSelector: {matchLabels: {role: web}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {team: b}}}]
    ports: [{port: metrics}]
  - from: [{namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchExpressions: [{key: role, operator: In, values: [client]}]}}]
    ports: [{port: http}]
";

const EGRESS_POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out, namespace: shop}
spec:
  podSelector: {matchLabels: {role: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {role: web}}}]
    ports: [{port: 8080, endPort: 8090}, {port: 5354, protocol: UDP}]
";

/// The Admin tier is evaluated before NetworkPolicies, the Baseline tier after them.
const TIER_POLICIES: &str = "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: admin}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {role: web}}}}
  ingress:
  - {name: never, action: Deny, from: [{namespaces: {matchLabels: {team: b}}}]}
  - {name: always, action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {role: client}}}}], protocols: [{tcp: {destinationPort: {number: 9090}}}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: baseline}
spec:
  tier: Baseline
  priority: 10
  subject: {namespaces: {matchLabels: {team: b}}}
  ingress:
  - {name: none, action: Deny, from: [{namespaces: {}}]}
";

/// The same tiers in the older version of the API.
const ADMIN_POLICIES: &str = "
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: admin}
spec:
  priority: 10
  subject: {pods: {namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {role: web}}}}
  ingress:
  - {name: never, action: Deny, from: [{namespaces: {matchLabels: {team: b}}}]}
  - {name: always, action: Allow, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {role: client}}}}], ports: [{namedPort: metrics}]}
  - {name: later, action: Pass, from: [{namespaces: {}}], ports: [{portRange: {start: 8080, end: 8081}}]}
  - {name: none, action: Deny, from: [{namespaces: {}}]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec:
  subject: {namespaces: {matchLabels: {team: b}}}
  ingress:
  - {name: none, action: Deny, from: [{namespaces: {}}]}
";

const GUEST_DEPLOYMENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: guest, namespace: shop}
spec:
  replicas: 1
  selector: {matchLabels: {app: guest}}
  template:
    metadata: {labels: {app: guest, role: client}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: "docker.io/library/busybox:latest", imagePullPolicy: Never, command: [sleep, "86400"]}]
"#;

/// Source pod, destination pod, port, and whether an answer is expected.
type ExpectedAnswer<'a> = (&'a str, &'a str, TransportPort, bool);

/// The pods by name, each with its network namespace.
pub struct PolicyPods<'a> {
    cluster: &'a KubernetesLab,
    pods: BTreeMap<String, (ListedPod, Netns)>,
    _servers: Vec<EchoServers>,
}

impl PolicyPods<'_> {
    pub fn open(cluster: &KubernetesLab) -> PolicyPods<'_> {
        PolicyPods::open_with(cluster, "node3")
    }

    /// Starts the pods, with the foreign pod on the given node.
    pub fn open_with<'a>(cluster: &'a KubernetesLab, node: &str) -> PolicyPods<'a> {
        cluster.apply(&POLICY_PODS.replace("node3", node));
        let ready = || {
            let pods = cluster.all_pods();
            pods.len() == 4 && pods.iter().all(ListedPod::is_ready)
        };
        eventually_showing("the pods of the shop run", ready, || cluster.picture());
        let pods = cluster.all_pods().into_iter().map(|pod| {
            let netns = pod.netns();
            (pod.name.clone(), (pod, netns))
        });
        let pods: BTreeMap<_, _> = pods.collect();
        let servers = pods.values().map(|(_, netns)| EchoServers::start(netns, &TESTED_PORTS)).collect();
        PolicyPods { cluster, pods, _servers: servers }
    }

    pub fn address(&self, pod: &str, family: usize) -> std::net::IpAddr {
        self.pods[pod].0.addresses[family]
    }

    pub fn netns(&self, pod: &str) -> &Netns {
        &self.pods[pod].1
    }

    fn answers(&self, (from, to, port, _): ExpectedAnswer, family: usize) -> bool {
        port.answers(self.netns(from), self.address(to, family))
    }

    /// Checks all packets in parallel for both families, then the evaluator's verdict for each.
    fn expect(&self, title: &str, expected: &[ExpectedAnswer]) {
        std::thread::scope(|scope| {
            for (case, family) in expected.iter().flat_map(|case| [(case, 0), (case, 1)]) {
                scope.spawn(move || {
                    let what = format!("{title}: {case:?} at {}", self.address(case.1, family));
                    let so = || self.answers(*case, family) == case.3;
                    eventually_showing(&what, so, || self.cluster.picture());
                });
            }
        });
        for (from, to, port, allowed) in expected {
            for family in [0, 1] {
                let [one, other] = [from, to].map(|pod| self.address(pod, family).to_string());
                let said = self.cluster.explains(&one, &other, &port.text());
                assert_eq!(said, *allowed, "{title}: explain {from} {to} {port:?}");
            }
        }
    }

    fn under(&self, title: &str, policies: &str, expected: &[ExpectedAnswer]) {
        self.cluster.apply(policies);
        self.expect(title, expected);
        self.cluster.delete(policies);
    }

    /// Asserts that all pods reach each other when no policy exists.
    fn is_open(&self) {
        let all = [
            ("near", "web", Tcp(8080), true),
            ("client", "web", Udp(5353), true),
            ("foreign", "web", Tcp(9090), true),
            ("web", "foreign", Udp(5354), true),
        ];
        self.expect("no policy", &all);
    }

    pub fn close(self) {
        let PolicyPods { cluster, pods, _servers } = self;
        drop((_servers, pods));
        // Deleting by name works for whichever node the pod is on.
        cluster.delete(POLICY_PODS);
        eventually_showing("the shop is closed", || cluster.all_pods().is_empty(), || cluster.picture());
    }
}

/// Checks that default deny closes the pods, and that they are open again without it.
pub fn default_deny(shop: &PolicyPods) {
    shop.under(
        "default deny",
        DEFAULT_DENY,
        &[
            ("near", "web", Tcp(8080), false),
            ("client", "web", Udp(5353), false),
            ("foreign", "web", Tcp(9090), false),
            ("web", "foreign", Tcp(8080), true),
        ],
    );
    shop.is_open();
}

/// Checks each kind of rule with one policy at a time.
pub fn every_kind_of_rule(shop: &PolicyPods) {
    default_deny(shop);
    shop.under(
        "pods and ports",
        PODS_AND_PORTS,
        &[
            ("near", "web", Tcp(8080), true),
            ("client", "web", Tcp(8080), true),
            ("client", "web", Udp(5353), true),
            ("near", "web", Udp(5354), false),
            ("client", "web", Tcp(9090), false),
            ("foreign", "web", Tcp(8080), false),
            ("foreign", "near", Tcp(9090), true),
        ],
    );
    shop.under(
        "namespaces and names of ports",
        NAMESPACES_AND_NAMES,
        &[
            ("foreign", "web", Tcp(9090), true),
            ("foreign", "web", Tcp(8080), false),
            ("near", "web", Tcp(8080), true),
            ("client", "web", Tcp(9090), false),
            ("client", "web", Udp(5353), false),
        ],
    );
    shop.under(
        "egress and a range of ports",
        EGRESS_POLICY,
        &[
            ("client", "web", Tcp(8080), true),
            ("near", "web", Udp(5354), true),
            ("near", "web", Tcp(9090), false),
            ("client", "web", Udp(5353), false),
            ("client", "foreign", Tcp(8080), false),
            ("foreign", "client", Tcp(9090), true),
        ],
    );
    shop.under(
        "blocks of addresses",
        &blocks(shop),
        &[
            ("client", "web", Tcp(8080), true),
            ("foreign", "web", Udp(5353), true),
            ("near", "web", Tcp(8080), false),
        ],
    );
}

/// Returns a policy that allows all pods but one by ipBlock.
fn blocks(shop: &PolicyPods) -> String {
    let block = |family: usize, cidr: &str, length: u8| {
        format!("{{ipBlock: {{cidr: \"{cidr}\", except: [\"{}/{length}\"]}}}}", shop.address("near", family))
    };
    let peers = [block(0, "10.244.0.0/16", 32), block(1, "fd00:10:244::/112", 128)].join(", ");
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: blocks, namespace: shop}}, \
         spec: {{podSelector: {{matchLabels: {{role: web}}}}, ingress: [{{from: [{peers}]}}]}}}}"
    )
}

/// Checks the tiers of cluster policies in both versions, kinds that running nodes discover after they started.
pub fn tiers_of_cluster_policies(shop: &PolicyPods) {
    shop.cluster.apply(CLUSTER_POLICIES);
    for plural in ["clusternetworkpolicies", "adminnetworkpolicies", "baselineadminnetworkpolicies"] {
        let definition = format!("crd/{plural}.policy.networking.k8s.io");
        shop.cluster.must_kubectl(&["wait", "--for=condition=Established", &definition]);
    }
    shop.cluster.apply(DEFAULT_DENY);
    shop.under(
        "tiers",
        TIER_POLICIES,
        &[
            ("foreign", "web", Tcp(9090), false),
            ("near", "web", Tcp(9090), true),
            ("client", "web", Tcp(9090), true),
            ("client", "web", Tcp(8080), false),
            ("client", "foreign", Tcp(8080), false),
            ("web", "foreign", Udp(5353), false),
        ],
    );
    shop.cluster.delete(DEFAULT_DENY);
    shop.cluster.apply(PODS_AND_PORTS);
    shop.under(
        "tiers of v1alpha1",
        ADMIN_POLICIES,
        &[
            ("foreign", "web", Tcp(9090), false),
            ("near", "web", Tcp(9090), true),
            ("client", "web", Tcp(8080), true),
            ("client", "web", Udp(5353), false),
            ("web", "foreign", Udp(5353), false),
            ("foreign", "client", Tcp(8080), true),
        ],
    );
    shop.cluster.delete(PODS_AND_PORTS);
    shop.cluster.delete(CLUSTER_POLICIES);
    shop.is_open();
}

/// Replaces policies that all allow the streams; no datagram may be lost.
pub fn changes_under_traffic(shop: &PolicyPods) {
    let ends = [("near", 0), ("client", 0), ("client", 1)];
    let start = |(from, family)| DatagramStream::start(shop.netns(from), shop.address("web", family), 5353);
    let streams: Vec<DatagramStream> = ends.into_iter().map(start).collect();
    for round in 0..6 {
        shop.cluster.apply(&PODS_AND_PORTS.replace("8080", &format!("{}", 8080 + round)));
        match round % 2 {
            0 => shop.cluster.apply(DEFAULT_DENY),
            _ => shop.cluster.delete(DEFAULT_DENY),
        }
        let before: Vec<u64> = streams.iter().map(DatagramStream::carried).collect();
        eventually("the streams go on", || {
            streams.iter().zip(&before).all(|(stream, before)| stream.carried() > before + 20)
        });
    }
    shop.cluster.delete(PODS_AND_PORTS);
    streams.into_iter().for_each(|stream| assert!(stream.end() > 120));
}

/// Checks that a changed pod label changes which rules match the pod.
pub fn labels_decide(shop: &PolicyPods) {
    shop.cluster.apply(PODS_AND_PORTS);
    let label = |value: &str| {
        let role = format!("role={value}");
        shop.cluster.must_kubectl(&["label", "pod", "-n", "shop", "client", "--overwrite", &role]);
    };
    let expected = |so: bool| [("client", "web", Udp(5353), so), ("near", "web", Udp(5353), true)];
    label("stranger");
    shop.expect("a label is taken away", &expected(false));
    let patch = serde_json::json!({"metadata": {"labels": {"role": "client"}}});
    let [accepted, enforced] = first_answer(shop.netns("client"), shop.address("web", 0), 5353, || {
        shop.cluster.merge("/api/v1/namespaces/shop/pods/client", &patch);
    });
    let after = enforced.saturating_sub(accepted);
    println!(
        "a pod's new label: packets pass {after:?} after the API server's answer, which took {accepted:?}"
    );
    shop.expect("a label comes back", &expected(true));
    shop.cluster.delete(PODS_AND_PORTS);
}

/// Checks that new pods are allowed and deleted pods are removed from the sets.
pub fn pods_come_and_go(shop: &PolicyPods) {
    shop.cluster.apply(PODS_AND_PORTS);
    shop.cluster.apply(GUEST_DEPLOYMENT);
    let guests = || shop.cluster.pods_of("shop", "app=guest");
    for replicas in [3, 1, 2] {
        let wanted = format!("--replicas={replicas}");
        shop.cluster.must_kubectl(&["scale", "deployment", "-n", "shop", "guest", &wanted]);
        let running = || guests().len() == replicas && guests().iter().all(ListedPod::is_ready);
        eventually_showing("the guests are there", running, || shop.cluster.picture());
        for guest in guests() {
            let (netns, what) = (guest.netns(), format!("{} is let in", guest.name));
            for family in [0, 1] {
                let so = || Tcp(8080).answers(&netns, shop.address("web", family));
                eventually_showing(&what, so, || shop.cluster.picture());
            }
        }
    }
    let known = guests();
    shop.cluster.delete(GUEST_DEPLOYMENT);
    let table = || shop.cluster.on("node1", &["nft", "list", "table", "inet", "tortie"]);
    let forgotten = || {
        let table = table();
        let words: Vec<&str> = table.split([' ', ',', '\n', '\t']).collect();
        known.iter().flat_map(|guest| &guest.addresses).all(|address| !words.contains(&&*address.to_string()))
    };
    eventually_showing("the guests are forgotten", forgotten, table);
    shop.cluster.delete(PODS_AND_PORTS);
    eventually("no guest is left", || guests().is_empty());
}
