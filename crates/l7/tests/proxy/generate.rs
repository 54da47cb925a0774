//! Generates plans and requests from a small vocabulary, so that rules and requests often match.

use crate::fixture::workload;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tortie_l7::TestRequest;
use tortie_plan::{
    AddressSet, EndpointTier, HttpMatch, HttpPathMatch, NodePlan, PeerLabels, PeerMatch, PlannedPolicy,
    PlannedRule, PolicyId, PortInterval, ProfileRules, RuleAction, RuleSide, ServiceAccountId, SetId,
    SetKind, SetMember, TierDefaultAction, WorkloadPolicy,
};

const POLICIES: [&str; 6] = ["np/shop/a", "np/shop/b", "np/ops/c", "gnp/d", "gnp/e", "sgnp/staged"];
const PROFILES: [&str; 2] = ["kns.shop", "kns.ops"];
const NAMESPACES: [&str; 3] = ["shop", "ops", "unknown"];
const ACCOUNTS: [&str; 3] = ["web", "db", "stranger"];
const LABELS: [&str; 3] = ["front", "back", "admin"];
const SELECTORS: [&str; 6] =
    ["role == 'front'", "role in {'back', 'admin'}", "!has(role)", "all()", "global()", "role != 'back'"];
const ADDRESSES: [&str; 6] = ["10.65.0.2", "10.65.0.3", "10.65.1.2", "fd65::2", "fd65::3", "fd65:1::2"];
const NETS: [&str; 6] = ["10.65.0.0/24", "10.65.1.2/32", "0.0.0.0/0", "fd65::/64", "fd65:1::2/128", "::/0"];
const NET_SETS: [&str; 3] = ["s:red", "s:blue", "svcnoport:cart"];
const PORT_SETS: [&str; 2] = ["n:web", "svc:cart"];
const PORTS: [u16; 3] = [80, 443, 8080];
const METHODS: [&str; 5] = ["GET", "POST", "DELETE", "get", "*"];
const RULE_PATHS: [&str; 6] = ["/", "/api", "/api/", "/api/orders", "/healthz", "/a b"];
const PATHS: [&str; 22] = [
    "/",
    "/api",
    "/api/",
    "/apix",
    "/api/orders",
    "/api/orders/1?x=/../y",
    "/healthz",
    "/healthz/",
    "//api//x",
    "/api/../healthz",
    "/api/%2e%2e/healthz",
    "/api/..%2fhealthz",
    "/api\\..\\healthz",
    "/api;a=b/orders",
    "/%61pi",
    "/a%20b",
    "/%252e",
    "/api%00",
    "/..",
    "api",
    "*",
    "",
];

pub struct PlanGenerator {
    random: StdRng,
}

impl PlanGenerator {
    pub fn new(seed: u64) -> PlanGenerator {
        PlanGenerator { random: StdRng::seed_from_u64(seed) }
    }

    fn chance(&mut self, of: f64) -> bool {
        self.random.random_bool(of)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of.choose(&mut self.random).unwrap().clone()
    }

    fn some<T: Clone>(&mut self, of: &[T], at_most: usize) -> Vec<T> {
        let count = self.random.random_range(1..=at_most);
        (0..count).map(|_| self.one(of)).collect()
    }

    pub fn plan(&mut self) -> NodePlan {
        let mut plan = NodePlan::default();
        for id in NET_SETS {
            let members =
                self.some(&NETS, 3).iter().map(|net| SetMember::Net(net.parse().unwrap())).collect();
            plan.sets.insert(SetId::new(id), AddressSet { kind: SetKind::Nets, members });
        }
        for id in PORT_SETS {
            let members = (0..4).map(|_| self.port_member()).collect();
            plan.sets.insert(SetId::new(id), AddressSet { kind: SetKind::Ports, members });
        }
        for id in POLICIES {
            let policy = PlannedPolicy {
                tier: "default".into(),
                selector: String::new(),
                ingress: self.rules(4),
                egress: self.rules(2),
            };
            plan.policies.insert(id.parse().unwrap(), Arc::new(policy));
        }
        for name in PROFILES {
            let profile = ProfileRules { ingress: self.rules(3), egress: self.rules(1) };
            plan.profiles.insert(name.into(), Arc::new(profile));
        }
        for namespace in &NAMESPACES[..2] {
            let labels = self.labels();
            plan.namespaces.insert((*namespace).into(), labels);
            for account in &ACCOUNTS[..2] {
                let id = ServiceAccountId { namespace: (*namespace).into(), name: (*account).into() };
                let labels = self.labels();
                plan.service_accounts.insert(id, labels);
            }
        }
        plan.workload_policies.insert(workload(), self.endpoint());
        plan
    }

    fn labels(&mut self) -> PeerLabels {
        Arc::new(BTreeMap::from([("role".to_owned(), self.one(&LABELS).to_owned())]))
    }

    fn port_member(&mut self) -> SetMember {
        let address = self.one(&ADDRESSES).parse().unwrap();
        SetMember::Port { address, protocol: self.one(&[6, 17]), port: self.one(&PORTS) }
    }

    fn endpoint(&mut self) -> WorkloadPolicy {
        let tiers = ["first", "default"].map(|name| {
            let end = self.one(&[TierDefaultAction::Deny, TierDefaultAction::Pass]);
            let ids: Vec<PolicyId> = self.some(&POLICIES, 3).iter().map(|id| id.parse().unwrap()).collect();
            EndpointTier { name: name.into(), end, ingress: ids.into(), egress: [].into() }
        });
        WorkloadPolicy {
            interface: "cali1".into(),
            up: true,
            addresses: vec![ADDRESSES[0].parse().unwrap(), ADDRESSES[3].parse().unwrap()],
            tiers: tiers.into(),
            profiles: self.some(&PROFILES, 2).iter().map(|name| (*name).to_owned()).collect(),
            ..WorkloadPolicy::default()
        }
    }

    fn rules(&mut self, at_most: usize) -> Vec<PlannedRule> {
        let count = self.random.random_range(0..=at_most);
        (0..count).map(|_| self.rule()).collect()
    }

    fn rule(&mut self) -> PlannedRule {
        let action = self.one(&[
            RuleAction::Allow,
            RuleAction::Allow,
            RuleAction::Deny,
            RuleAction::Pass,
            RuleAction::Log,
        ]);
        let mut rule = PlannedRule::new(action);
        if self.chance(0.3) {
            rule.protocol = Some(self.one(&[6, 17]));
        }
        rule.source = self.side();
        rule.destination = self.side();
        if self.chance(0.2) {
            rule.destination.service = Some(SetId::new("svc:cart"));
        }
        if self.chance(0.5) && action == RuleAction::Allow {
            rule.http = Some(Box::new(self.http()));
        }
        rule
    }

    fn side(&mut self) -> RuleSide {
        let mut side = RuleSide::default();
        if self.chance(0.2) {
            side.nets = self.some(&NETS, 2).iter().map(|net| net.parse().unwrap()).collect();
        }
        if self.chance(0.2) {
            side.sets = self.some(&NET_SETS, 2).into_iter().map(SetId::new).collect();
        }
        if self.chance(0.1) {
            side.not_sets = self.some(&NET_SETS, 1).into_iter().map(SetId::new).collect();
        }
        if self.chance(0.1) {
            side.named_ports = vec![SetId::new("n:web")];
        }
        if self.chance(0.1) {
            let port = self.one(&PORTS);
            side.ports = vec![PortInterval { first: port, last: port }];
        }
        if self.chance(0.3) {
            side.peer = Some(Box::new(self.peer()));
        }
        side
    }

    /// Generates a match on a peer that is not empty.
    fn peer(&mut self) -> PeerMatch {
        let mut peer = PeerMatch::default();
        match self.random.random_range(0..4) {
            0 => peer.selector = self.one(&SELECTORS).into(),
            1 => peer.namespace_selector = self.one(&SELECTORS).into(),
            2 => peer.service_account_selector = self.one(&SELECTORS[..4]).into(),
            _ => peer.service_accounts = vec![self.one(&ACCOUNTS).into()],
        }
        peer
    }

    fn http(&mut self) -> HttpMatch {
        let mut http = HttpMatch::default();
        if self.chance(0.6) {
            http.methods = self.some(&METHODS, 2).into_iter().map(str::to_owned).collect();
        }
        if self.chance(0.7) {
            http.paths = self.some(&RULE_PATHS, 2).into_iter().map(|path| self.path_match(path)).collect();
        }
        http
    }

    fn path_match(&mut self, path: &str) -> HttpPathMatch {
        if self.chance(0.5) { HttpPathMatch::Exact(path.into()) } else { HttpPathMatch::Prefix(path.into()) }
    }

    pub fn request(&mut self) -> TestRequest {
        let family = if self.chance(0.5) { &ADDRESSES[..3] } else { &ADDRESSES[3..] };
        let principal = match self.random.random_range(0..4) {
            0 => String::new(),
            1 => "spiffe://td/vm/web".to_owned(),
            _ => format!("spiffe://td/ns/{}/sa/{}", self.one(&NAMESPACES), self.one(&ACCOUNTS)),
        };
        let http = self.chance(0.85).then(|| {
            let method = self.one(&METHODS[..4]).to_owned();
            (method, self.one(&PATHS).to_owned())
        });
        TestRequest {
            principal,
            source: SocketAddr::new(self.one(family).parse().unwrap(), 40_000),
            destination: SocketAddr::new(self.one(family).parse().unwrap(), self.one(&PORTS)),
            http,
        }
    }
}
