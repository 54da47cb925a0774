//! Generated policies and requests get the same verdicts from the running sidecar, through a real Envoy, and from the
//! evaluator. `TORTIE_REQUESTS` is the number of requests, `TORTIE_SEED` repeats a run.

use super::{ProxiedLab, family};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::net::IpAddr;
use tortie_compute::{ParameterEnvironment, PlanCompute};
use tortie_model::{Resource, StoreKey, StoreValue};
use tortie_plan::evaluate::{
    EvaluationIndex, HttpRequest, Packet, PolicyOutcome, ProxiedTraffic, RequestContext,
};
use tortie_plan::{NodePlan, PolicyDirection};

const DEFAULT_REQUEST_COUNT: usize = 600;
const REQUESTS_PER_POLICY: usize = 50;
const DEFAULT_SEED: u64 = 28;
/// Kinds that determine the policy of an endpoint.
const POLICY_INPUTS: [&[&str]; 5] = [
    &["nodes"],
    &["profiles"],
    &["felixconfigurations"],
    &["workloadendpoints", "-A"],
    &["networkpolicies", "-A"],
];

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];
const RULE_PATHS: [&str; 9] = ["/", "/a", "/a/", "/a/b", "/a/b/c", "/api", "/api/v1", "/a.b", "/é"];
const PATH_SEGMENTS: [&str; 26] = [
    "a",
    "b",
    "c",
    "api",
    "v1",
    "a.b",
    "%C3%A9",
    "A",
    "ab",
    ".",
    "..",
    "",
    "%61",
    "%2e",
    "%2E%2e",
    "..;x",
    "a;v=1",
    "a%2fb",
    "a%5Cb",
    "..%2f",
    "%252e%252e",
    "%00",
    "%2500",
    "a%3bb",
    "%zz",
    "a%",
];

struct RequestGenerator {
    random: StdRng,
}

impl RequestGenerator {
    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of.choose(&mut self.random).copied().unwrap()
    }

    /// Generates a rule in YAML flow style.
    fn rule(&mut self) -> String {
        let source = self.one(&["role == 'client'", "role == 'other'", "has(role)", "!has(role)", "all()"]);
        let source = format!("source: {{selector: \"{source}\"}}, ");
        let source = if self.random.random_bool(0.5) { source } else { String::new() };
        if self.random.random_bool(0.25) {
            let action = self.one(&["Allow", "Deny", "Pass", "Log"]);
            return format!("{{action: {action}, protocol: TCP, {source}destination: {{ports: [80]}}}}");
        }
        let mut conditions = Vec::new();
        if self.random.random_bool(0.6) {
            let count = self.random.random_range(1..=3);
            let methods: BTreeSet<&str> = (0..count).map(|_| self.one(&METHODS)).collect();
            conditions.push(format!("methods: [{}]", Vec::from_iter(methods).join(", ")));
        }
        if conditions.is_empty() || self.random.random_bool(0.8) {
            let count = self.random.random_range(1..=3);
            let paths: BTreeSet<String> = (0..count)
                .map(|_| format!("{{{}: {}}}", self.one(&["exact", "prefix"]), self.one(&RULE_PATHS)))
                .collect();
            conditions.push(format!("paths: [{}]", Vec::from_iter(paths).join(", ")));
        }
        format!("{{action: Allow, protocol: TCP, {source}http: {{{}}}}}", conditions.join(", "))
    }

    fn target(&mut self) -> String {
        let count = self.random.random_range(0..=4);
        let mut target: String = (0..count).map(|_| format!("/{}", self.one(&PATH_SEGMENTS))).collect();
        if target.is_empty() {
            target.push('/');
        }
        if self.random.random_bool(0.15) {
            target += self.one(&["?", "?x=/../a", "?a/b", "/?/api"]);
        }
        target
    }
}

/// Computes the plan of the first node from the resources in the lab's datastore.
fn compute_plan(proxied: &ProxiedLab) -> NodePlan {
    let mut compute = PlanCompute::new("node1", ParameterEnvironment::default());
    for kind in POLICY_INPUTS {
        let listed = proxied.lab.run(&[&["ctl", "get", "-o", "json"], kind].concat());
        let mut listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        for item in listed["items"].as_array_mut().unwrap() {
            let resource = Resource::from_user(item.take()).unwrap();
            let meta = resource.metadata();
            let key = StoreKey::resource(resource.kind(), &meta.namespace, &meta.name);
            compute.put(&key, &StoreValue::Resource(resource));
        }
    }
    let mut plan = NodePlan::default();
    compute.flush().into_iter().for_each(|update| plan.apply(update));
    plan
}

/// Returns whether the evaluator allows a request from one address to another.
fn is_allowed(plan: &NodePlan, addresses: (IpAddr, IpAddr), method: &str, target: &str) -> bool {
    let (source, destination) = addresses;
    let packet = Packet {
        source,
        destination,
        protocol: Packet::TCP,
        source_port: 40000,
        destination_port: super::ENVOY_PORT,
        icmp: None,
    };
    let request = HttpRequest::new(method, target);
    let context = RequestContext {
        traffic: ProxiedTraffic::Request(&request),
        http_rules_match_connections: false,
        source: None,
        destination: None,
    };
    let mut endpoints = plan.workload_policies.values();
    let endpoint = endpoints.find(|endpoint| endpoint.addresses.contains(&destination)).unwrap();
    let index = EvaluationIndex::new(plan);
    let decision = index.request(endpoint, PolicyDirection::Ingress, &packet, &context, None);
    decision.outcome == PolicyOutcome::Allow
}

fn variable<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn envoy_and_evaluator_agree_on_requests() {
    let requests = variable("TORTIE_REQUESTS", DEFAULT_REQUEST_COUNT);
    let seed = variable("TORTIE_SEED", DEFAULT_SEED);
    println!("TORTIE_SEED={seed} TORTIE_REQUESTS={requests}");
    let proxied = ProxiedLab::up();
    let other = proxied.lab.add("other", "node1", &["--label", "role=other"]);
    let client = proxied.client_addresses.clone();
    let sources = [("client", &client), ("other", &other)];
    let mut generator = RequestGenerator { random: StdRng::seed_from_u64(seed) };
    let [mut allowed, mut denied, mut rejected] = [0, 0, 0];
    while allowed + denied + rejected < requests {
        let count = generator.random.random_range(1..=6);
        let rules: Vec<String> = (0..count).map(|_| generator.rule()).collect();
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        proxied.apply_rules(&[&[OPEN_CONNECTIONS], &rules[..]].concat());
        let plan = compute_plan(&proxied);
        for (pod, addresses) in sources {
            for ipv6 in [false, true] {
                let ends = [addresses, &proxied.web].map(|own| family(own, ipv6).parse().unwrap());
                let mut connection = proxied.client(pod, ipv6);
                for _ in 0..REQUESTS_PER_POLICY / 4 {
                    let method = generator.one(&METHODS);
                    let target = generator.target();
                    let status = connection.status(method, &target);
                    let expected = is_allowed(&plan, (ends[0], ends[1]), method, &target);
                    match (status, expected) {
                        (200, true) => allowed += 1,
                        (403, false) => denied += 1,
                        // Envoy does not parse the request.
                        (400, _) => rejected += 1,
                        _ => panic!(
                            "TORTIE_SEED={seed} {pod} {method} {target}: status {status}, the evaluator allows it: \
                             {expected}\n{}",
                            rules.join("\n")
                        ),
                    }
                }
            }
        }
    }
    println!("{allowed} allowed, {denied} denied, {rejected} not parsed by Envoy");
    assert!(allowed * 10 > requests && denied * 10 > requests, "{allowed} allowed, {denied} denied");
    assert!(rejected * 10 < requests, "{rejected} of {requests} were not parsed by Envoy");
}

/// Opens Envoy's port for connections of all pods, and allows no other request.
const OPEN_CONNECTIONS: &str =
    "{action: Allow, protocol: TCP, destination: {ports: [80]}, http: {paths: [{exact: /nothing}]}}";
