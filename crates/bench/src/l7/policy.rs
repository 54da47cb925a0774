//! The policy of one workload, as a node sends it to a proxy.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tortie_plan::{
    AddressSet, EndpointTier, HttpMatch, HttpPathMatch, PlannedPolicy, PlannedRule, PolicyId, PolicyKind,
    PortInterval, RuleAction, RuleSide, SetId, SetKind, SetMember, TierDefaultAction, WorkloadId,
    WorkloadPolicy,
};
use tortie_policysync::proto::{InSync, to_dataplane::Payload};
use tortie_policysync::{encode_endpoint, encode_policy, encode_set};

/// Path of the requests, which the last rule of the last policy allows.
pub const ALLOWED_PATH: &str = "/allowed";
pub const CLIENT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TIER_NAME: &str = "default";
const TCP: u8 = 6;

/// Size of the policy of a workload.
#[derive(Clone, Copy, Debug)]
pub struct PolicyShape {
    /// Policies that select the workload.
    pub policies: usize,
    pub rules_per_policy: usize,
    /// Endpoints that the selector of each rule selects.
    pub endpoints: usize,
    /// Policies that do not select the workload, with as many rules each.
    pub other_policies: usize,
}

impl PolicyShape {
    pub fn rules(rules: usize) -> PolicyShape {
        PolicyShape { policies: 1, rules_per_policy: rules, endpoints: 100, other_policies: 0 }
    }

    /// Returns the messages that a node sends when the proxy connects.
    pub fn messages(&self) -> Vec<Payload> {
        let set = SetId::new("s:clients");
        let mut messages: Vec<Payload> = encode_set(&set, &self.clients()).collect();
        for number in 0..self.policies + self.other_policies {
            messages.push(encode_policy(&policy_id(number), Some(&self.policy(number, &set))));
        }
        let ingress: Arc<[PolicyId]> = (0..self.policies).map(policy_id).collect();
        let tier = EndpointTier {
            name: TIER_NAME.to_owned(),
            end: TierDefaultAction::Deny,
            ingress,
            egress: Arc::new([]),
        };
        let endpoint = WorkloadPolicy {
            interface: "cali0".to_owned(),
            up: true,
            addresses: vec![CLIENT_ADDRESS],
            tiers: vec![tier],
            ..WorkloadPolicy::default()
        };
        let id = WorkloadId {
            orchestrator: "k8s".to_owned(),
            workload: "default/web".to_owned(),
            endpoint: "eth0".to_owned(),
        };
        messages.push(encode_endpoint(&id, Some(&endpoint), None));
        messages.push(Payload::InSync(InSync {}));
        messages
    }

    /// The client of the measurement is one of the members.
    fn clients(&self) -> AddressSet {
        let others = (1..self.endpoints).map(|number| {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number))
        });
        let members = std::iter::once(CLIENT_ADDRESS).chain(others);
        AddressSet {
            kind: SetKind::Nets,
            members: members.map(|address| SetMember::Net(address.into())).collect(),
        }
    }

    fn policy(&self, number: usize, set: &SetId) -> PlannedPolicy {
        let last_policy = number + 1 == self.policies;
        let rules = (1..=self.rules_per_policy).map(|rule| {
            let is_last = last_policy && rule == self.rules_per_policy;
            let path =
                if is_last { ALLOWED_PATH.to_owned() } else { format!("/policy-{number}/rule-{rule}") };
            http_rule(set, path)
        });
        PlannedPolicy {
            tier: TIER_NAME.to_owned(),
            selector: "app == 'web'".to_owned(),
            ingress: rules.collect(),
            egress: Vec::new(),
        }
    }
}

fn policy_id(number: usize) -> PolicyId {
    PolicyId {
        kind: PolicyKind::GlobalNetworkPolicy,
        namespace: String::new(),
        name: format!("policy-{number}"),
    }
}

/// Builds a rule that allows GET and HEAD of one path to the members of a set, on all ports.
fn http_rule(set: &SetId, path: String) -> PlannedRule {
    let http = HttpMatch {
        methods: vec!["HEAD".to_owned(), "GET".to_owned()],
        paths: vec![HttpPathMatch::Exact(path)],
        matches_without_proxy: false,
    };
    PlannedRule {
        protocol: Some(TCP),
        source: RuleSide { sets: vec![set.clone()], ..RuleSide::default() },
        destination: RuleSide {
            ports: vec![PortInterval { first: 1, last: u16::MAX }],
            ..RuleSide::default()
        },
        http: Some(Box::new(http)),
        ..PlannedRule::new(RuleAction::Allow)
    }
}
