//! Converts objects of the plan to messages.

use crate::names::{
    ACTIVE_STATE, DENY_ACTION, INACTIVE_STATE, PASS_ACTION, SERVICE_PORTS_PREFIX, action_name, member_text,
};
use crate::proto::{self, to_dataplane::Payload};
use std::net::IpAddr;
use std::ops::Bound;
use tortie_plan::{
    AddressSet, EndpointTier, HttpMatch, HttpPathMatch, IcmpMatch, IpVersion, PeerLabels, PeerMatch,
    PlannedPolicy, PlannedRule, PolicyDirection, PolicyId, PortInterval, ProfileRules, RuleAction, RuleId,
    RuleIndex, RuleOwner, RuleSide, ServiceAccountId, SetId, SetKind, SetMember, TierDefaultAction,
    WorkloadId, WorkloadPolicy,
};

/// Maximum number of members in one message, which keeps it below gRPC's default limit of 4 MiB.
pub const MAX_MEMBERS_PER_MESSAGE: usize = 82_200;

/// Returns the messages that create a set: an update, and deltas if it is large.
pub fn encode_set<'s>(id: &'s SetId, set: &'s AddressSet) -> impl Iterator<Item = Payload> + use<'s> {
    let mut next = Some(None);
    std::iter::from_fn(move || {
        let (payload, rest) = encode_set_part(id, set, next.take()?);
        next = rest.map(Some);
        Some(payload)
    })
}

/// Returns one of the messages that create a set, and the last member in it if more messages have to follow. The first
/// message is for `after: None`, each further one for the last member of its predecessor.
pub fn encode_set_part(
    id: &SetId,
    set: &AddressSet,
    after: Option<SetMember>,
) -> (Payload, Option<SetMember>) {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut members = set.members.range((from, Bound::Unbounded));
    let mut last = None;
    let part = members.by_ref().take(MAX_MEMBERS_PER_MESSAGE).inspect(|member| last = Some(**member));
    let part: Vec<String> = part.map(member_text).collect();
    let rest = members.next().and(last);
    if after.is_some() {
        return (encode_delta(id, part, Vec::new()), rest);
    }
    let kind = match set.kind {
        SetKind::Nets => proto::ip_set_update::IpSetType::Net,
        SetKind::Ports => proto::ip_set_update::IpSetType::IpAndPort,
    };
    let update = proto::IpSetUpdate { id: id.to_string(), members: part, r#type: kind.into() };
    (Payload::IpsetUpdate(update), rest)
}

/// Returns the messages that change the members of a set.
pub fn encode_members<'s>(
    id: &'s SetId,
    added: &'s [SetMember],
    removed: &'s [SetMember],
) -> impl Iterator<Item = Payload> + use<'s> {
    let mut added = added.iter();
    let mut removed = removed.iter();
    std::iter::from_fn(move || {
        let added: Vec<String> = added.by_ref().take(MAX_MEMBERS_PER_MESSAGE).map(member_text).collect();
        let space = MAX_MEMBERS_PER_MESSAGE - added.len();
        let removed: Vec<String> = removed.by_ref().take(space).map(member_text).collect();
        (!added.is_empty() || !removed.is_empty()).then(|| encode_delta(id, added, removed))
    })
}

fn encode_delta(id: &SetId, added_members: Vec<String>, removed_members: Vec<String>) -> Payload {
    Payload::IpsetDeltaUpdate(proto::IpSetDeltaUpdate { id: id.to_string(), added_members, removed_members })
}

pub fn encode_set_removal(id: &SetId) -> Payload {
    Payload::IpsetRemove(proto::IpSetRemove { id: id.to_string() })
}

/// Returns the message about a policy; `None` removes it.
pub fn encode_policy(id: &PolicyId, policy: Option<&PlannedPolicy>) -> Payload {
    let wire_id = Some(encode_policy_id(id));
    let Some(policy) = policy else {
        return Payload::ActivePolicyRemove(proto::ActivePolicyRemove { id: wire_id });
    };
    let owner = RuleOwner::Policy(id.clone());
    let policy = proto::Policy {
        inbound_rules: encode_rules(&owner, PolicyDirection::Ingress, &policy.ingress),
        outbound_rules: encode_rules(&owner, PolicyDirection::Egress, &policy.egress),
        namespace: id.namespace.clone(),
        original_selector: policy.selector.clone(),
        tier: policy.tier.clone(),
        ..proto::Policy::default()
    };
    Payload::ActivePolicyUpdate(proto::ActivePolicyUpdate { id: wire_id, policy: Some(policy) })
}

/// Returns the message about a profile; `None` removes it.
pub fn encode_profile(name: &str, profile: Option<&ProfileRules>) -> Payload {
    let id = Some(proto::ProfileId { name: name.to_owned() });
    let Some(profile) = profile else {
        return Payload::ActiveProfileRemove(proto::ActiveProfileRemove { id });
    };
    let owner = RuleOwner::Profile(name.to_owned());
    let profile = proto::Profile {
        inbound_rules: encode_rules(&owner, PolicyDirection::Ingress, &profile.ingress),
        outbound_rules: encode_rules(&owner, PolicyDirection::Egress, &profile.egress),
    };
    Payload::ActiveProfileUpdate(proto::ActiveProfileUpdate { id, profile: Some(profile) })
}

/// Returns the message about an endpoint; `None` removes it.
pub fn encode_endpoint(id: &WorkloadId, endpoint: Option<&WorkloadPolicy>, mac: Option<[u8; 6]>) -> Payload {
    let id = Some(proto::WorkloadEndpointId {
        orchestrator_id: id.orchestrator.clone(),
        workload_id: id.workload.clone(),
        endpoint_id: id.endpoint.clone(),
    });
    let Some(endpoint) = endpoint else {
        return Payload::WorkloadEndpointRemove(proto::WorkloadEndpointRemove { id });
    };
    let nets = |of_family: fn(&IpAddr) -> bool| {
        let addresses = endpoint.addresses.iter().filter(|address| of_family(address));
        addresses.map(|address| ipnet::IpNet::from(*address).to_string()).collect()
    };
    let endpoint = proto::WorkloadEndpoint {
        state: if endpoint.up { ACTIVE_STATE } else { INACTIVE_STATE }.to_owned(),
        name: endpoint.interface.clone(),
        mac: mac.map(encode_mac).unwrap_or_default(),
        profile_ids: endpoint.profiles.clone(),
        ipv4_nets: nets(IpAddr::is_ipv4),
        ipv6_nets: nets(IpAddr::is_ipv6),
        tiers: endpoint.tiers.iter().map(encode_tier).collect(),
        allow_spoofed_source_prefixes: endpoint.allowed_sources.iter().map(ToString::to_string).collect(),
        ..proto::WorkloadEndpoint::default()
    };
    Payload::WorkloadEndpointUpdate(proto::WorkloadEndpointUpdate { id, endpoint: Some(endpoint) })
}

fn encode_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn encode_tier(tier: &EndpointTier) -> proto::TierInfo {
    let default_action = match tier.end {
        TierDefaultAction::Deny => DENY_ACTION,
        TierDefaultAction::Pass => PASS_ACTION,
    };
    proto::TierInfo {
        name: tier.name.clone(),
        ingress_policies: tier.ingress.iter().map(encode_policy_id).collect(),
        egress_policies: tier.egress.iter().map(encode_policy_id).collect(),
        default_action: default_action.to_owned(),
    }
}

fn encode_policy_id(id: &PolicyId) -> proto::PolicyId {
    let PolicyId { kind, namespace, name } = id;
    proto::PolicyId { name: name.clone(), namespace: namespace.clone(), kind: kind.name().to_owned() }
}

/// Returns the message about a namespace; `None` removes it.
pub fn encode_namespace(name: &str, labels: Option<&PeerLabels>) -> Payload {
    let id = Some(proto::NamespaceId { name: name.to_owned() });
    match labels {
        Some(labels) => {
            Payload::NamespaceUpdate(proto::NamespaceUpdate { id, labels: labels.as_ref().clone() })
        }
        None => Payload::NamespaceRemove(proto::NamespaceRemove { id }),
    }
}

/// Returns the message about a service account; `None` removes it.
pub fn encode_service_account(account: &ServiceAccountId, labels: Option<&PeerLabels>) -> Payload {
    let ServiceAccountId { namespace, name } = account;
    let id = Some(proto::ServiceAccountId { namespace: namespace.clone(), name: name.clone() });
    match labels {
        Some(labels) => {
            Payload::ServiceAccountUpdate(proto::ServiceAccountUpdate { id, labels: labels.as_ref().clone() })
        }
        None => Payload::ServiceAccountRemove(proto::ServiceAccountRemove { id }),
    }
}

fn encode_rules(owner: &RuleOwner, direction: PolicyDirection, rules: &[PlannedRule]) -> Vec<proto::Rule> {
    let messages = rules.iter().enumerate().map(|(position, rule)| {
        let id = RuleId { owner: owner.clone(), direction, index: RuleIndex::at(position) };
        encode_rule(rule, &id)
    });
    messages.collect()
}

/// Returns the message of a rule. The protocol has no field for a source service with ports: a rule with one denies
/// regardless of it, or matches nothing if it does not deny. Whether HTTP conditions apply without a proxy is left out:
/// the receiver is the proxy.
pub fn encode_rule(rule: &PlannedRule, id: &RuleId) -> proto::Rule {
    let source_service = rule.source.service.as_ref();
    if rule.action != RuleAction::Deny && source_service.is_some_and(has_ports) {
        return encode_rule(&PlannedRule::never(rule.action), id);
    }
    let PlannedRule { source, destination, .. } = rule;
    let source_peer = source.peer.as_deref();
    let destination_peer = destination.peer.as_deref();
    let ports_set = destination.service.iter().filter(|set| has_ports(set));
    proto::Rule {
        action: action_name(rule.action).to_owned(),
        ip_version: encode_ip_version(rule.ip_version).into(),
        protocol: rule.protocol.map(encode_protocol),
        not_protocol: rule.not_protocol.map(encode_protocol),
        icmp: rule.icmp.as_ref().map(encode_icmp),
        not_icmp: rule.not_icmp.as_ref().map(encode_not_icmp),
        src_net: encode_texts(&source.nets),
        not_src_net: encode_texts(&source.not_nets),
        src_ports: encode_ports(&source.ports),
        not_src_ports: encode_ports(&source.not_ports),
        src_ip_set_ids: encode_address_sets(source),
        not_src_ip_set_ids: encode_texts(&source.not_sets),
        src_named_port_ip_set_ids: encode_texts(&source.named_ports),
        not_src_named_port_ip_set_ids: encode_texts(&source.not_named_ports),
        dst_net: encode_texts(&destination.nets),
        not_dst_net: encode_texts(&destination.not_nets),
        dst_ports: encode_ports(&destination.ports),
        not_dst_ports: encode_ports(&destination.not_ports),
        dst_ip_set_ids: encode_address_sets(destination),
        not_dst_ip_set_ids: encode_texts(&destination.not_sets),
        dst_named_port_ip_set_ids: encode_texts(&destination.named_ports),
        not_dst_named_port_ip_set_ids: encode_texts(&destination.not_named_ports),
        dst_ip_port_set_ids: ports_set.map(ToString::to_string).collect(),
        original_src_selector: encode_peer_text(source_peer, |peer| &peer.selector),
        original_dst_selector: encode_peer_text(destination_peer, |peer| &peer.selector),
        original_src_namespace_selector: encode_peer_text(source_peer, |peer| &peer.namespace_selector),
        original_dst_namespace_selector: encode_peer_text(destination_peer, |peer| &peer.namespace_selector),
        original_not_src_selector: encode_peer_text(source_peer, |peer| &peer.not_selector),
        original_not_dst_selector: encode_peer_text(destination_peer, |peer| &peer.not_selector),
        src_service_account_match: source_peer.and_then(encode_accounts),
        dst_service_account_match: destination_peer.and_then(encode_accounts),
        http_match: rule.http.as_deref().map(encode_http),
        metadata: (!rule.annotations.is_empty())
            .then(|| proto::RuleMetadata { annotations: rule.annotations.clone() }),
        rule_id: id.to_string(),
        ..proto::Rule::default()
    }
}

/// Returns whether a set of a service has ports.
fn has_ports(set: &SetId) -> bool {
    set.0.starts_with(SERVICE_PORTS_PREFIX)
}

/// Returns the sets that must contain the address, with that of a service without ports.
fn encode_address_sets(side: &RuleSide) -> Vec<String> {
    let service = side.service.iter().filter(|set| !has_ports(set));
    side.sets.iter().chain(service).map(ToString::to_string).collect()
}

fn encode_texts(values: &[impl ToString]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn encode_ports(ports: &[PortInterval]) -> Vec<proto::PortRange> {
    ports.iter().map(|port| proto::PortRange { first: port.first.into(), last: port.last.into() }).collect()
}

fn encode_ip_version(version: Option<IpVersion>) -> proto::IpVersion {
    match version {
        None => proto::IpVersion::Any,
        Some(IpVersion::V4) => proto::IpVersion::Ipv4,
        Some(IpVersion::V6) => proto::IpVersion::Ipv6,
    }
}

fn encode_protocol(number: u8) -> proto::Protocol {
    proto::Protocol { number_or_name: Some(proto::protocol::NumberOrName::Number(number.into())) }
}

fn encode_icmp(icmp: &IcmpMatch) -> proto::rule::Icmp {
    match icmp.code {
        None => proto::rule::Icmp::IcmpType(icmp.r#type.into()),
        Some(code) => proto::rule::Icmp::IcmpTypeCode(encode_type_and_code(icmp.r#type, code)),
    }
}

fn encode_not_icmp(icmp: &IcmpMatch) -> proto::rule::NotIcmp {
    match icmp.code {
        None => proto::rule::NotIcmp::NotIcmpType(icmp.r#type.into()),
        Some(code) => proto::rule::NotIcmp::NotIcmpTypeCode(encode_type_and_code(icmp.r#type, code)),
    }
}

fn encode_type_and_code(r#type: u8, code: u8) -> proto::IcmpTypeAndCode {
    proto::IcmpTypeAndCode { r#type: r#type.into(), code: code.into() }
}

fn encode_peer_text(peer: Option<&PeerMatch>, field: fn(&PeerMatch) -> &String) -> String {
    peer.map(field).cloned().unwrap_or_default()
}

fn encode_accounts(peer: &PeerMatch) -> Option<proto::ServiceAccountMatch> {
    let names = peer.service_accounts.clone();
    let selector = peer.service_account_selector.clone();
    let is_present = !names.is_empty() || !selector.is_empty();
    is_present.then_some(proto::ServiceAccountMatch { selector, names })
}

fn encode_http(http: &HttpMatch) -> proto::HttpMatch {
    use proto::http_match::path_match::PathMatch;
    let path = |path: &HttpPathMatch| proto::http_match::PathMatch {
        path_match: Some(match path {
            HttpPathMatch::Exact(path) => PathMatch::Exact(path.clone()),
            HttpPathMatch::Prefix(path) => PathMatch::Prefix(path.clone()),
        }),
    };
    proto::HttpMatch { methods: http.methods.clone(), paths: http.paths.iter().map(path).collect() }
}
