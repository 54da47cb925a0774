//! Generates datastore contents of given sizes.

use std::collections::BTreeMap;
use tortie_model::kinds::{
    Action, EntityRule, GlobalNetworkPolicy, GlobalNetworkPolicySpec, GlobalNetworkSet, GlobalNetworkSetSpec,
    NetworkPolicy, NetworkPolicySpec, PolicyType, Profile, ProfileSpec, Rule, WorkloadEndpoint,
    WorkloadEndpointSpec,
};
use tortie_model::scalar::{Port, Protocol};
use tortie_model::{ObjectMeta, Resource, StoreKey, StoreValue};

pub type WorkloadEntry = (StoreKey, StoreValue);

pub const LOCAL_NODE: &str = "localhost";
const BATCH_SIZE: usize = 1000;
const NAMESPACE_COUNT: usize = 100;
const MARKER_COUNT: usize = 29;
const LOCAL_ENDPOINTS: usize = 200;
const LOCAL_TENANTS: usize = 100;

/// Callback that receives a batch of entries.
pub type EntrySink<'a> = dyn FnMut(&[WorkloadEntry]) + 'a;

pub struct WorkloadShape {
    pub name: &'static str,
    /// Shapes of one family differ only in size.
    pub family: &'static str,
    pub size: usize,
    /// Seconds and megabytes published for Felix.
    pub felix: (Option<f64>, Option<f64>),
    pub entries: fn(usize, &mut EntrySink<'_>),
    /// Generators of the changes made after loading, in the order of [`CHANGE_NAMES`]. Each is called many times.
    pub changes: fn(usize) -> [ChangeGenerator; 4],
}

pub type ChangeGenerator = Box<dyn Fn(usize) -> WorkloadEntry>;

/// Kinds of changes: a new endpoint on another node, a new label on an existing endpoint, new rules in an active
/// policy, a new policy.
pub const CHANGE_NAMES: [&str; 4] = ["new endpoint", "new label", "changed policy", "new policy"];

const fn shape(
    name: &'static str,
    family: &'static str,
    size: usize,
    felix: (Option<f64>, Option<f64>),
) -> WorkloadShape {
    WorkloadShape { name, family, size, felix, entries: by_label, changes: changes_by_label }
}

pub const ALL_SHAPES: [WorkloadShape; 8] = [
    shape("2.5k endpoints, 10k label policies", "labels", 2_500, (None, None)),
    shape("25k endpoints, 10k label policies", "labels", 25_000, (None, None)),
    shape("250k endpoints, 10k label policies", "labels", 250_000, (Some(3.39), Some(374.0))),
    WorkloadShape {
        entries: by_network_set,
        changes: changes_by_network_set,
        ..shape("10k endpoints, 1k network sets", "sets", 1_000, (Some(0.5), Some(81.0)))
    },
    WorkloadShape {
        entries: by_network_set,
        changes: changes_by_network_set,
        ..shape("10k endpoints, 10k network sets", "sets", 10_000, (None, None))
    },
    WorkloadShape {
        entries: tenants,
        changes: changes_of_tenants,
        ..shape("1k tenants", "tenants", 1_000, (Some(0.045), None))
    },
    WorkloadShape {
        entries: tenants,
        changes: changes_of_tenants,
        ..shape("10k tenants", "tenants", 10_000, (Some(0.388), None))
    },
    WorkloadShape {
        entries: tenants,
        changes: changes_of_tenants,
        ..shape("100k tenants", "tenants", 100_000, (Some(6.9), Some(402.0)))
    },
];

/// Generates remote endpoints with six labels each, 200 local ones, and 10,000 policies of five rules: 29 distinct
/// sets.
fn by_label(endpoints: usize, put: &mut EntrySink<'_>) {
    portions(10_000, &label_policy, put);
    portions(NAMESPACE_COUNT, &namespace, put);
    portions(endpoints, &|n| labelled("remotehost", n, n), put);
    portions(LOCAL_ENDPOINTS, &|n| labelled(LOCAL_NODE, n, endpoints + n), put);
}

/// Generates a policy for each network set. A tenth of the sets have 100 nets, a tenth 1,000.
fn by_network_set(sets: usize, put: &mut EntrySink<'_>) {
    portions(NAMESPACE_COUNT, &namespace, put);
    portions(10_000, &|n| labelled("remotehost", n, n), put);
    portions(sets, &network_set, put);
    portions(sets, &network_set_policy, put);
    portions(LOCAL_ENDPOINTS, &|n| labelled(LOCAL_NODE, n, 10_000 + n), put);
}

/// Generates a namespace, a policy and a pod for each tenant. 100 pods are local.
fn tenants(count: usize, put: &mut EntrySink<'_>) {
    let stride = count / LOCAL_TENANTS;
    portions(count, &|n| isolation(n, "isolation", 53), put);
    portions(count, &tenant_namespace, put);
    portions(count, &|n| tenant_pod(if n % stride == 0 { LOCAL_NODE } else { "remotehost" }, n), put);
}

fn portions(count: usize, make: &dyn Fn(usize) -> WorkloadEntry, put: &mut EntrySink<'_>) {
    let mut start = 0;
    while start < count {
        let end = count.min(start + BATCH_SIZE);
        let portion: Vec<WorkloadEntry> = (start..end).map(make).collect();
        put(&portion);
        start = end;
    }
}

fn entry(resource: impl Into<Resource>) -> WorkloadEntry {
    let resource = resource.into();
    let meta = resource.metadata();
    (StoreKey::resource(resource.kind(), &meta.namespace, &meta.name), StoreValue::Resource(resource))
}

fn meta(namespace: &str, name: String, labels: BTreeMap<String, String>) -> ObjectMeta {
    ObjectMeta { namespace: namespace.to_owned(), name, labels, ..ObjectMeta::default() }
}

fn allow(source: EntityRule) -> Rule {
    Rule { action: Action::Allow, source, ..Rule::default() }
}

fn selecting(selector: String) -> EntityRule {
    EntityRule { selector, ..EntityRule::default() }
}

fn marker(n: usize) -> String {
    format!("marker.example.org/{}", n % MARKER_COUNT)
}

fn label_policy(n: usize) -> WorkloadEntry {
    label_policy_of(n, n)
}

/// Builds a policy whose rules select the markers from `first` on.
fn label_policy_of(n: usize, first: usize) -> WorkloadEntry {
    let spec = GlobalNetworkPolicySpec {
        selector: format!("has({})", marker(n)),
        ingress: (0..5).map(|rule| allow(selecting(format!("has({})", marker(first + rule))))).collect(),
        types: vec![PolicyType::Ingress],
        ..GlobalNetworkPolicySpec::default()
    };
    entry(GlobalNetworkPolicy::new(meta("", format!("tag-pol-{n}"), BTreeMap::new()), spec))
}

fn namespace(n: usize) -> WorkloadEntry {
    let name = format!("namespace-{n}");
    let spec = ProfileSpec {
        labels_to_apply: BTreeMap::from([("pcns.projectcalico.org/name".to_owned(), name.clone())]),
        ..ProfileSpec::default()
    };
    entry(Profile::new(meta("", format!("kns.{name}"), BTreeMap::new()), spec))
}

fn labelled(host: &str, n: usize, seed: usize) -> WorkloadEntry {
    relabelled(host, n, seed, seed)
}

fn relabelled(host: &str, n: usize, seed: usize, marked: usize) -> WorkloadEntry {
    let mut labels: BTreeMap<String, String> = [10, 11, 20, 30, 40]
        .into_iter()
        .map(|choices| (format!("one-in-{choices}"), format!("value-{}", seed % choices)))
        .collect();
    labels.insert(marker(marked), "true".to_owned());
    pod(host, &format!("namespace-{}", n % NAMESPACE_COUNT), &format!("wep-{n}"), seed, labels)
}

fn pod(
    host: &str,
    namespace: &str,
    name: &str,
    address: usize,
    labels: BTreeMap<String, String>,
) -> WorkloadEntry {
    let bits = 0x0a00_0001 + u32::try_from(address).unwrap_or(0);
    let spec = WorkloadEndpointSpec {
        orchestrator: "k8s".to_owned(),
        node: host.to_owned(),
        pod: name.to_owned(),
        endpoint: "eth0".to_owned(),
        ip_networks: vec![format!("{}/32", std::net::Ipv4Addr::from(bits))],
        profiles: vec![format!("kns.{namespace}")],
        interface_name: format!("cali{address:x}"),
        ..WorkloadEndpointSpec::default()
    };
    let name = format!("{host}-k8s-{}-eth0", name.replace('-', "--"));
    entry(WorkloadEndpoint::new(meta(namespace, name, labels), spec))
}

fn network_set(n: usize) -> WorkloadEntry {
    const SIZES: [usize; 10] = [1, 1, 1, 1, 2, 3, 4, 5, 100, 1000];
    let first = 0x1400_0000 + u32::try_from(n).unwrap_or(0) * 1024;
    let size = u32::try_from(SIZES[n % SIZES.len()]).unwrap_or(0);
    let nets = (first..first + size).map(|bits| format!("{}/32", std::net::Ipv4Addr::from(bits))).collect();
    let labels = BTreeMap::from([("network-set-name".to_owned(), format!("network-set-{n}"))]);
    let spec = GlobalNetworkSetSpec { nets };
    entry(GlobalNetworkSet::new(meta("", format!("network-set-{n}"), labels), spec))
}

fn network_set_policy(n: usize) -> WorkloadEntry {
    network_set_policy_of(n, n)
}

fn network_set_policy_of(n: usize, set: usize) -> WorkloadEntry {
    let spec = GlobalNetworkPolicySpec {
        selector: "all()".to_owned(),
        ingress: vec![allow(selecting(format!("network-set-name == 'network-set-{set}'")))],
        types: vec![PolicyType::Ingress],
        ..GlobalNetworkPolicySpec::default()
    };
    entry(GlobalNetworkPolicy::new(meta("", format!("network-set-pol-{n}"), BTreeMap::new()), spec))
}

/// Builds a policy that allows traffic between a tenant's pods and to a DNS server at `port`.
fn isolation(n: usize, name: &str, port: usize) -> WorkloadEntry {
    let same = || EntityRule {
        namespace_selector: format!("projectcalico.org/name == 'customer-{n}'"),
        ..EntityRule::default()
    };
    let dns = Rule {
        action: Action::Allow,
        protocol: Some(Protocol::from("UDP")),
        destination: EntityRule {
            nets: vec!["10.96.0.10/32".to_owned()],
            ports: vec![Port::Number(u16::try_from(port).unwrap_or(53))],
            ..EntityRule::default()
        },
        ..Rule::default()
    };
    let spec = NetworkPolicySpec {
        tier: "default".to_owned(),
        ingress: vec![allow(same())],
        egress: vec![Rule { action: Action::Allow, destination: same(), ..Rule::default() }, dns],
        types: vec![PolicyType::Ingress, PolicyType::Egress],
        ..NetworkPolicySpec::default()
    };
    entry(NetworkPolicy::new(meta(&format!("customer-{n}"), name.to_owned(), BTreeMap::new()), spec))
}

fn tenant_namespace(n: usize) -> WorkloadEntry {
    let labels = [
        ("pcns.projectcalico.org/name", format!("customer-{n}")),
        ("pcns.namespace-id", text(n, 20)),
        ("pcns.production", n.is_multiple_of(2).to_string()),
    ];
    let rules = || vec![allow(EntityRule::default())];
    let labels_to_apply = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let spec = ProfileSpec { ingress: rules(), egress: rules(), labels_to_apply };
    entry(Profile::new(meta("", format!("kns.customer-{n}"), BTreeMap::new()), spec))
}

struct TenantPod {
    namespace: String,
    pod: String,
    labels: BTreeMap<String, String>,
}

fn tenant_pod(host: &str, n: usize) -> WorkloadEntry {
    let TenantPod { namespace, pod: name, labels } = tenant_names(n);
    pod(host, &namespace, &name, n, labels)
}

/// Returns names and fifteen labels of a tenant's pod, five of which are unique to the pod.
fn tenant_names(n: usize) -> TenantPod {
    let one_of = |values: &[&str]| values[n % values.len()].to_owned();
    let labels = [
        ("pod-id", text(n * 5, 20)),
        ("instance-id", text(n * 5 + 1, 20)),
        ("short-id", text(n * 5 + 2, 10)),
        ("config-hash", text(n * 5 + 3, 20)),
        ("version-tag", text(n * 5 + 4, 8)),
        ("enabled", (n % 2).to_string()),
        ("debug", (n / 2 % 2).to_string()),
        ("canary", (n / 4 % 2).to_string()),
        ("managed", (n / 8 % 2).to_string()),
        ("environment", one_of(&["dev", "staging", "prod"])),
        ("tier", one_of(&["frontend", "backend", "middleware", "data"])),
        ("region", one_of(&["us-east", "us-west", "eu-west", "ap-south"])),
        ("team", one_of(&["platform", "payments", "identity", "growth", "infra"])),
        ("managed-by", "saas-controller".to_owned()),
        ("tenant-id", text(n % 5000, 10)),
    ];
    TenantPod {
        namespace: format!("customer-{n}"),
        pod: format!("app-{:09x}-{:05x}", n * 7 + 3, n * 17 + 5),
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    }
}

/// Returns a reproducible string that looks random.
fn text(seed: usize, length: usize) -> String {
    let mut state = (seed as u64).wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut digit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b"abcdef0123456789"[(state >> 60) as usize])
    };
    (0..length).map(|_| digit()).collect()
}

/// Changes for the label workload. Remote endpoints are members of active sets, whatever their marker.
fn changes_by_label(_: usize) -> [ChangeGenerator; 4] {
    [
        Box::new(|n| labelled("remotehost", 10_000_000 + n, 5_000_000 + n)),
        Box::new(|n| relabelled("remotehost", n, n, n + 1)),
        Box::new(|n| label_policy_of(n, n + 1)),
        Box::new(|n| label_policy(10_000_000 + n)),
    ]
}

/// Changes for the network set workload. Policies apply to all endpoints, and each has its own set.
fn changes_by_network_set(sets: usize) -> [ChangeGenerator; 4] {
    let [new_endpoint, new_label, ..] = changes_by_label(sets);
    let changed_policy = Box::new(move |n| network_set_policy_of(n % sets, (n + 1) % sets));
    [
        new_endpoint,
        new_label,
        changed_policy,
        Box::new(move |n| network_set_policy_of(10_000_000 + n, n % sets)),
    ]
}

/// Changes to endpoints and policies of tenants with local pods.
fn changes_of_tenants(count: usize) -> [ChangeGenerator; 4] {
    let stride = count / LOCAL_TENANTS;
    let tenant = move |n: usize| n % LOCAL_TENANTS * stride;
    [
        Box::new(move |n| {
            let TenantPod { namespace, labels, .. } = tenant_names(tenant(n));
            pod("remotehost", &namespace, &format!("new-{n}"), 5_000_000 + n, labels)
        }),
        Box::new(move |n| {
            let TenantPod { namespace, pod: name, mut labels } = tenant_names(tenant(n) + 1);
            labels.insert("canary".to_owned(), format!("turn-{n}"));
            pod("remotehost", &namespace, &name, tenant(n) + 1, labels)
        }),
        Box::new(move |n| isolation(tenant(n), "isolation", 54 + n)),
        Box::new(move |n| isolation(tenant(n), &format!("more-{n}"), 53)),
    ]
}

/// Returns whether an entry is an endpoint of the local node.
pub fn is_own((_, value): &WorkloadEntry) -> bool {
    matches!(value, StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) if endpoint.spec.node == LOCAL_NODE)
}
