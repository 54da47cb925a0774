//! Random clusters, and histories of events that lead to them.

use crate::cluster::{PolicyEntry, gnp, namespace, np, object, pod_with};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use tortie_model::{Kind, StoreKey, StoreValue};

/// A change of the datastore, or a flush of the plan.
#[expect(clippy::large_enum_variant, reason = "a few hundred of them, for a test")]
pub enum DatastoreStep {
    Put(StoreKey, StoreValue),
    Delete(StoreKey),
    Flush,
}

/// Returns a history that reaches a state through other states: replaced versions, deleted objects, flushes at any
/// time.
pub fn detours(rng: &mut StdRng, final_state: &[PolicyEntry]) -> Vec<DatastoreStep> {
    let mut steps: Vec<DatastoreStep> = Vec::new();
    let detours = generate(rng, 80);
    let wanted: BTreeMap<&StoreKey, &StoreValue> =
        final_state.iter().map(|(key, value)| (key, value)).collect();
    for (key, value) in &detours {
        steps.push(DatastoreStep::Put(key.clone(), value.clone()));
        if rng.random_bool(0.3) {
            steps.push(DatastoreStep::Delete(key.clone()));
        }
    }
    steps.extend(final_state.iter().map(|(key, value)| DatastoreStep::Put(key.clone(), value.clone())));
    steps.shuffle(rng);
    // The last event of each key decides.
    let mut last: Vec<DatastoreStep> =
        final_state.iter().map(|(key, value)| DatastoreStep::Put(key.clone(), value.clone())).collect();
    last.extend(
        detours.keys().filter(|key| !wanted.contains_key(key)).map(|key| DatastoreStep::Delete(key.clone())),
    );
    last.shuffle(rng);
    let mut history = Vec::new();
    for step in steps.into_iter().chain(last) {
        history.push(step);
        if rng.random_bool(0.2) {
            history.push(DatastoreStep::Flush);
        }
    }
    history.push(DatastoreStep::Flush);
    history
}

/// Returns a random datastore with few distinct names and labels, so that its objects affect each other.
pub fn generate(rng: &mut StdRng, count: usize) -> BTreeMap<StoreKey, StoreValue> {
    let mut all = BTreeMap::new();
    for _ in 0..count {
        let (key, value) = match rng.random_range(0..14) {
            0..=4 => endpoint(rng),
            5 => profile(rng),
            6 | 7 => policy(rng),
            8 => staged(rng),
            9 => network_set(rng),
            10 => host(rng),
            11 => settings(rng),
            12 => cluster_node(rng),
            _ => tier(rng),
        };
        all.insert(key, value);
    }
    all
}

fn pick<'a>(rng: &mut StdRng, among: &[&'a str]) -> &'a str {
    among.choose(rng).unwrap()
}

const NAMESPACES: &[&str] = &["red", "blue", "green"];
const KEYS: &[&str] = &["app", "role", "env"];
const VALUES: &[&str] = &["a", "b", "c"];

fn labels(rng: &mut StdRng) -> Json {
    let mut labels = json!({});
    for key in KEYS {
        if rng.random_bool(0.5) {
            labels[*key] = json!(pick(rng, VALUES));
        }
    }
    labels
}

fn address(rng: &mut StdRng) -> String {
    match rng.random_bool(0.7) {
        true => format!("10.0.0.{}/32", rng.random_range(0..12)),
        false => format!("2001:db8::{}/128", rng.random_range(0..6)),
    }
}

fn endpoint(rng: &mut StdRng) -> PolicyEntry {
    let (node, namespace) = (pick(rng, &["n1", "n2"]), pick(rng, NAMESPACES));
    let name = format!("p{}", rng.random_range(0..8));
    let mut ports = vec![];
    for (name, protocol) in [("http", "TCP"), ("http", "UDP"), ("dns", "UDP")] {
        if rng.random_bool(0.3) {
            let port = rng.random_range(80..82);
            ports
                .push(json!({"name": name, "protocol": protocol, "port": port, "hostPort": 0, "hostIP": ""}));
        }
    }
    let (labels, mut address) = (labels(rng), address(rng));
    if rng.random_bool(0.05) {
        address = "10.0.0.1/16".to_owned();
    }
    pod_with(node, namespace, &name, labels, &address, json!(ports))
}

fn profile(rng: &mut StdRng) -> PolicyEntry {
    let (name, labels) = (pick(rng, NAMESPACES), labels(rng));
    if rng.random_bool(0.2) {
        let given = json!({"pcsa.role": pick(rng, VALUES), "own": "yes"});
        let account = format!("ksa.{name}.default");
        return object(Kind::Profile, "", &account, json!({}), json!({"labelsToApply": given}));
    }
    if rng.random_bool(0.1) {
        return object(
            Kind::Profile,
            "",
            &format!("kns.{name}"),
            json!({}),
            json!({"ingress": [{"action": "?"}]}),
        );
    }
    namespace(name, labels)
}

fn selector(rng: &mut StdRng) -> String {
    let (key, value) = (pick(rng, KEYS), pick(rng, VALUES));
    match rng.random_range(0..9) {
        0 => String::new(),
        1 => format!("{key} == '{value}'"),
        2 => format!("has({key})"),
        3 => format!("!has({key})"),
        4 => format!("{key} in {{'{value}', 'c'}}"),
        5 => format!("{key} != '{value}' && has(app)"),
        6 => format!("{key} == '{value}' || has(env)"),
        7 => format!("{key} starts with '{value}'"),
        _ => "all()".to_owned(),
    }
}

fn side(rng: &mut StdRng) -> Json {
    let mut side = json!({});
    if rng.random_bool(0.6) {
        side["selector"] = json!(selector(rng));
    }
    if rng.random_bool(0.1) {
        side["selector"] =
            json!(format!("projectcalico.org/kind == 'Node' && {}", pick(rng, &["has(app)", "all()"])));
    }
    if rng.random_bool(0.2) {
        side["notSelector"] = json!(selector(rng));
    }
    if rng.random_bool(0.3) {
        side["namespaceSelector"] = json!(match rng.random_range(0..3) {
            0 => "all()".to_owned(),
            1 => "global()".to_owned(),
            _ => selector(rng),
        });
    }
    if rng.random_bool(0.2) {
        side["nets"] = json!(["10.0.0.0/29"]);
    }
    side
}

fn rule(rng: &mut StdRng) -> Json {
    let mut rule = json!({"action": pick(rng, &["Allow", "Deny", "Pass", "Log"]), "source": side(rng)});
    rule["destination"] = side(rng);
    if rng.random_bool(0.3) {
        rule["destination"]["ports"] = json!([pick(rng, &["http", "dns"])]);
    } else if rng.random_bool(0.3) {
        rule["protocol"] = json!(pick(rng, &["TCP", "UDP"]));
        rule["destination"]["ports"] = json!(["http", 80, "90:95"]);
    }
    if rng.random_bool(0.1) {
        rule["http"] = json!({"methods": ["GET"]});
    }
    rule
}

fn rules(rng: &mut StdRng) -> Json {
    let count = rng.random_range(0..3);
    (0..count).map(|_| rule(rng)).collect()
}

fn spec(rng: &mut StdRng) -> Json {
    let mut spec = json!({"selector": selector(rng), "ingress": rules(rng), "egress": rules(rng)});
    spec["tier"] = json!(pick(rng, &["default", "sec", "gone", "kube-admin"]));
    if rng.random_bool(0.6) {
        spec["order"] = json!(rng.random_range(0..4));
    }
    if rng.random_bool(0.1) {
        spec["performanceHints"] = json!(["AssumeNeededOnEveryNode"]);
    }
    spec
}

fn policy(rng: &mut StdRng) -> PolicyEntry {
    let name = format!("x{}", rng.random_range(0..6));
    let mut spec = spec(rng);
    if rng.random_bool(0.5) {
        let namespace = pick(rng, NAMESPACES);
        return np(namespace, &name, spec);
    }
    match rng.random_range(0..6) {
        0 => spec["applyOnForward"] = json!(true),
        1 => {
            spec["applyOnForward"] = json!(true);
            spec["doNotTrack"] = json!(true);
        }
        // Lacks applyOnForward, which the API requires.
        2 => spec["preDNAT"] = json!(true),
        3 => spec["namespaceSelector"] = json!(selector(rng)),
        _ => {}
    }
    gnp(&name, spec)
}

fn staged(rng: &mut StdRng) -> PolicyEntry {
    let (name, namespace) = (format!("x{}", rng.random_range(0..3)), pick(rng, NAMESPACES));
    match rng.random_range(0..3) {
        0 => object(Kind::StagedNetworkPolicy, namespace, &name, json!({}), spec(rng)),
        1 => object(Kind::StagedGlobalNetworkPolicy, "", &name, json!({}), spec(rng)),
        _ => {
            let peer = json!({"podSelector": {"matchLabels": {"app": pick(rng, VALUES)}}});
            let spec = json!({"podSelector": {"matchLabels": {"role": pick(rng, VALUES)}},
                "ingress": [{"from": [peer], "ports": [{"port": "http"}]}]});
            object(Kind::StagedKubernetesNetworkPolicy, namespace, &name, json!({}), spec)
        }
    }
}

fn network_set(rng: &mut StdRng) -> PolicyEntry {
    let name = format!("s{}", rng.random_range(0..4));
    let (labels, first, second) =
        (labels(rng), address(rng), pick(rng, &["10.0.0.0/24", "0.0.0.0/0", "bad"]));
    let spec = json!({"nets": [first, second]});
    match rng.random_bool(0.5) {
        true => object(Kind::NetworkSet, pick(rng, NAMESPACES), &name, labels, spec),
        false => object(Kind::GlobalNetworkSet, "", &name, labels, spec),
    }
}

fn host(rng: &mut StdRng) -> PolicyEntry {
    let address = format!("192.0.2.{}", rng.random_range(0..4));
    let spec = json!({"node": pick(rng, &["n1", "n2"]), "interfaceName": pick(rng, &["*", "eth0"]),
        "expectedIPs": [address], "profiles": [format!("kns.{}", pick(rng, NAMESPACES))],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}]});
    let labels = labels(rng);
    object(Kind::HostEndpoint, "", &format!("h{}", rng.random_range(0..4)), labels, spec)
}

fn cluster_node(rng: &mut StdRng) -> PolicyEntry {
    let address = |last: u8| json!({"type": "InternalIP", "address": format!("192.0.2.{last}")});
    let addresses = [address(rng.random_range(0..4)), address(rng.random_range(0..4))];
    let name = pick(rng, &["n1", "n2", "n3"]);
    object(Kind::Node, "", name, labels(rng), json!({"addresses": addresses}))
}

fn tier(rng: &mut StdRng) -> PolicyEntry {
    let spec = json!({"order": rng.random_range(0..3), "defaultAction": pick(rng, &["Deny", "Pass"])});
    let name = pick(rng, &["sec", "other"]);
    object(Kind::Tier, "", name, json!({}), spec)
}

/// Returns settings that change the form of rules.
fn settings(rng: &mut StdRng) -> PolicyEntry {
    let spec = json!({"policySyncPathPrefix": pick(rng, &["", "/var/run/nodeagent", "/run/tortie"]),
        "httpRulesWithoutProxy": pick(rng, &["Ignore", "Ignore", "Allow"])});
    object(Kind::FelixConfiguration, "", "default", json!({}), spec)
}
