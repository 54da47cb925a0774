//! Estimates of the memory that parts of a replica use. The limit of a replica counts them, so they are functions of
//! the content alone.

use super::sets::{MEMBER_BYTES, MemberIndex};
use ipnet::IpNet;
use std::net::IpAddr;
use tortie_plan::{
    EndpointTier, HttpMatch, HttpPathMatch, PeerLabels, PeerMatch, PlannedPolicy, PlannedRule, PolicyId,
    PortInterval, ProfileRules, RuleSide, SetId, WorkloadPolicy,
};

/// Memory of an entry of a map without its content.
const ENTRY_BYTES: usize = 96;
/// Memory of a string in a list or a map.
const STRING_BYTES: usize = 24;

pub fn set_bytes(id_bytes: usize, members: &MemberIndex) -> usize {
    ENTRY_BYTES + id_bytes + members.len() * MEMBER_BYTES
}

pub fn label_bytes(name_bytes: usize, labels: &PeerLabels) -> usize {
    ENTRY_BYTES
        + name_bytes
        + labels.iter().map(|(key, value)| 2 * STRING_BYTES + key.len() + value.len()).sum::<usize>()
}

pub fn endpoint_bytes(endpoint: &WorkloadPolicy) -> usize {
    let nets =
        endpoint.addresses.len() * size_of::<IpAddr>() + endpoint.allowed_sources.len() * size_of::<IpNet>();
    let tiers = endpoint.tiers.iter().map(|tier| {
        let policies =
            tier.ingress.iter().chain(tier.egress.iter()).map(|id| size_of::<PolicyId>() + id_bytes(id));
        size_of::<EndpointTier>() + tier.name.len() + policies.sum::<usize>()
    });
    size_of::<WorkloadPolicy>()
        + endpoint.interface.len()
        + nets
        + tiers.sum::<usize>()
        + texts_bytes(&endpoint.profiles)
}

fn id_bytes(id: &PolicyId) -> usize {
    id.namespace.len() + id.name.len()
}

pub fn policy_bytes(id: &PolicyId, policy: &PlannedPolicy) -> usize {
    let texts = id_bytes(id) + policy.tier.len() + policy.selector.len();
    ENTRY_BYTES
        + size_of::<PlannedPolicy>()
        + texts
        + rules_bytes(&policy.ingress)
        + rules_bytes(&policy.egress)
}

pub fn profile_bytes(name: &str, profile: &ProfileRules) -> usize {
    ENTRY_BYTES
        + name.len()
        + size_of::<ProfileRules>()
        + rules_bytes(&profile.ingress)
        + rules_bytes(&profile.egress)
}

fn rules_bytes(rules: &[PlannedRule]) -> usize {
    rules.iter().map(rule_bytes).sum()
}

fn rule_bytes(rule: &PlannedRule) -> usize {
    let annotations = rule.annotations.iter().map(|(key, value)| 2 * STRING_BYTES + key.len() + value.len());
    let http = rule.http.as_deref().map_or(0, http_bytes);
    let sides = side_bytes(&rule.source) + side_bytes(&rule.destination);
    // A counter is part of each rule.
    size_of::<PlannedRule>() + size_of::<u64>() + sides + http + annotations.sum::<usize>()
}

fn http_bytes(http: &HttpMatch) -> usize {
    let paths = http.paths.iter().map(|path| match path {
        HttpPathMatch::Exact(text) | HttpPathMatch::Prefix(text) => size_of::<HttpPathMatch>() + text.len(),
    });
    size_of::<HttpMatch>() + texts_bytes(&http.methods) + paths.sum::<usize>()
}

fn side_bytes(side: &RuleSide) -> usize {
    let nets = (side.nets.len() + side.not_nets.len()) * size_of::<IpNet>();
    let ports = (side.ports.len() + side.not_ports.len()) * size_of::<PortInterval>();
    let sets = [&side.sets, &side.not_sets, &side.named_ports, &side.not_named_ports];
    let sets = sets.into_iter().flatten().chain(&side.service);
    let sets: usize = sets.map(|SetId(text)| STRING_BYTES + text.len()).sum();
    nets + ports + sets + side.peer.as_deref().map_or(0, peer_bytes)
}

fn peer_bytes(peer: &PeerMatch) -> usize {
    let PeerMatch { selector, not_selector, namespace_selector, service_accounts, service_account_selector } =
        peer;
    let selectors = [selector, not_selector, namespace_selector, service_account_selector];
    let selectors: usize = selectors.into_iter().map(String::len).sum();
    size_of::<PeerMatch>() + selectors + texts_bytes(service_accounts)
}

fn texts_bytes(texts: &[String]) -> usize {
    texts.iter().map(|text| STRING_BYTES + text.len()).sum()
}
