//! Converts received messages to updates of the plan.
//!
//! Messages come from another process. An object with a field that cannot be read is used in a form that allows less,
//! and the problem is reported.

mod rule;

pub use rule::decode_rule;

use crate::error::{DecodeError, DecodeProblem, ProblemObject};
use crate::names::{ACTIVE_STATE, PASS_ACTION, parse_member, parse_net, parse_policy_kind};
use crate::proto::{self, to_dataplane::Payload};
use std::sync::Arc;
use tortie_plan::{
    EndpointTier, PlanUpdate, PlannedPolicy, PlannedRule, PolicyDirection, PolicyId, ProfileRules,
    RuleAction, RuleId, RuleIndex, RuleOwner, ServiceAccountId, SetId, SetKind, SetMember, TierDefaultAction,
    WorkloadId, WorkloadPolicy,
};

/// Maximum number of rules that are accepted in one direction of a policy or profile.
pub const MAX_RULES_PER_DIRECTION: usize = 65_536;
/// Maximum number of problems that are reported for one message.
const MAX_PROBLEMS_PER_MESSAGE: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedMessage {
    pub event: SyncEvent,
    pub problems: Vec<DecodeProblem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncEvent {
    /// The first burst is complete.
    InSync,
    /// Changes that must take effect together.
    Updates(Vec<PlanUpdate>),
    /// A message that is not about policy. It has no effect.
    Other,
}

/// Decodes a message. An error means that the message does not name its object; ignoring such a message allows nothing,
/// because endpoints cannot refer to the object either.
pub fn decode_message(message: proto::ToDataplane) -> Result<DecodedMessage, DecodeError> {
    let mut problems = Vec::new();
    let Some(payload) = message.payload else {
        return Ok(DecodedMessage { event: SyncEvent::Other, problems });
    };
    let updates = match payload {
        Payload::InSync(_) => return Ok(DecodedMessage { event: SyncEvent::InSync, problems }),
        Payload::IpsetUpdate(update) => {
            let set = decode_set_id(&update.id)?;
            decode_set(set, &update, &mut problems)
        }
        Payload::IpsetDeltaUpdate(delta) => {
            let set = decode_set_id(&delta.id)?;
            vec![decode_delta(set, &delta, &mut problems)]
        }
        Payload::IpsetRemove(removal) => vec![PlanUpdate::Set(decode_set_id(&removal.id)?, None)],
        Payload::ActiveProfileUpdate(update) => {
            let name = decode_profile_id(update.id)?;
            let profile = decode_profile(&name, &update.profile.unwrap_or_default(), &mut problems);
            vec![PlanUpdate::Profile(name, Some(Arc::new(profile)))]
        }
        Payload::ActiveProfileRemove(removal) => {
            vec![PlanUpdate::Profile(decode_profile_id(removal.id)?, None)]
        }
        Payload::ActivePolicyUpdate(update) => {
            let id = decode_policy_id(update.id)?;
            let policy = decode_policy(&id, &update.policy.unwrap_or_default(), &mut problems);
            vec![PlanUpdate::Policy(id, Some(Arc::new(policy)))]
        }
        Payload::ActivePolicyRemove(removal) => vec![PlanUpdate::Policy(decode_policy_id(removal.id)?, None)],
        Payload::WorkloadEndpointUpdate(update) => {
            let id = decode_endpoint_id(update.id)?;
            let endpoint = decode_endpoint(update.endpoint.unwrap_or_default());
            let endpoint = endpoint.map_err(|error| {
                problems.push(DecodeProblem { object: ProblemObject::Endpoint(id.clone()), error });
            });
            vec![PlanUpdate::WorkloadPolicy(id, endpoint.ok())]
        }
        Payload::WorkloadEndpointRemove(removal) => {
            vec![PlanUpdate::WorkloadPolicy(decode_endpoint_id(removal.id)?, None)]
        }
        Payload::ServiceAccountUpdate(update) => {
            vec![PlanUpdate::ServiceAccount(decode_account_id(update.id)?, Some(Arc::new(update.labels)))]
        }
        Payload::ServiceAccountRemove(removal) => {
            vec![PlanUpdate::ServiceAccount(decode_account_id(removal.id)?, None)]
        }
        Payload::NamespaceUpdate(update) => {
            vec![PlanUpdate::Namespace(decode_namespace_id(update.id)?, Some(Arc::new(update.labels)))]
        }
        Payload::NamespaceRemove(removal) => {
            vec![PlanUpdate::Namespace(decode_namespace_id(removal.id)?, None)]
        }
    };
    Ok(DecodedMessage { event: SyncEvent::Updates(updates), problems })
}

/// Decodes a whole set. A set with an unreadable member becomes unknown: without the member, a rule that denies would
/// deny less.
fn decode_set(set: SetId, update: &proto::IpSetUpdate, problems: &mut Vec<DecodeProblem>) -> Vec<PlanUpdate> {
    match decode_members_of_kind(update) {
        Ok((kind, added)) => vec![
            PlanUpdate::Set(set.clone(), Some(kind)),
            PlanUpdate::Members { set, added, removed: Vec::new() },
        ],
        Err(error) => {
            problems.push(DecodeProblem { object: ProblemObject::Set(set.clone()), error });
            vec![PlanUpdate::Set(set, None)]
        }
    }
}

fn decode_members_of_kind(update: &proto::IpSetUpdate) -> Result<(SetKind, Vec<SetMember>), DecodeError> {
    let kind = match proto::ip_set_update::IpSetType::try_from(update.r#type) {
        Ok(proto::ip_set_update::IpSetType::IpAndPort) => SetKind::Ports,
        Ok(proto::ip_set_update::IpSetType::Ip | proto::ip_set_update::IpSetType::Net) => SetKind::Nets,
        Err(_) => return Err(DecodeError::invalid("type", update.r#type, "a type of set: 0, 1 or 2")),
    };
    let members = decode_members(&update.members)?;
    for (member, text) in members.iter().zip(&update.members) {
        let fits = matches!(member, SetMember::Port { .. }) == (kind == SetKind::Ports);
        if !fits {
            return Err(DecodeError::invalid("members", text, "a member of the set's type"));
        }
    }
    Ok((kind, members))
}

fn decode_delta(
    set: SetId,
    delta: &proto::IpSetDeltaUpdate,
    problems: &mut Vec<DecodeProblem>,
) -> PlanUpdate {
    let added = decode_members(&delta.added_members);
    let removed = decode_members(&delta.removed_members);
    match added.and_then(|added| Ok((added, removed?))) {
        Ok((added, removed)) => PlanUpdate::Members { set, added, removed },
        Err(error) => {
            problems.push(DecodeProblem { object: ProblemObject::Set(set.clone()), error });
            PlanUpdate::Set(set, None)
        }
    }
}

fn decode_members(texts: &[String]) -> Result<Vec<SetMember>, DecodeError> {
    texts.iter().map(|text| parse_member(text)).collect()
}

/// Decodes a policy and adds rules that cannot be read as they are to `problems`.
pub fn decode_policy(
    id: &PolicyId,
    policy: &proto::Policy,
    problems: &mut Vec<DecodeProblem>,
) -> PlannedPolicy {
    let owner = RuleOwner::Policy(id.clone());
    PlannedPolicy {
        tier: policy.tier.clone(),
        selector: policy.original_selector.clone(),
        ingress: decode_rules(&owner, PolicyDirection::Ingress, &policy.inbound_rules, problems),
        egress: decode_rules(&owner, PolicyDirection::Egress, &policy.outbound_rules, problems),
    }
}

fn decode_profile(name: &str, profile: &proto::Profile, problems: &mut Vec<DecodeProblem>) -> ProfileRules {
    let owner = RuleOwner::Profile(name.to_owned());
    ProfileRules {
        ingress: decode_rules(&owner, PolicyDirection::Ingress, &profile.inbound_rules, problems),
        egress: decode_rules(&owner, PolicyDirection::Egress, &profile.outbound_rules, problems),
    }
}

fn decode_rules(
    owner: &RuleOwner,
    direction: PolicyDirection,
    rules: &[proto::Rule],
    problems: &mut Vec<DecodeProblem>,
) -> Vec<PlannedRule> {
    let mut report = |position: usize, error: DecodeError| {
        if problems.len() < MAX_PROBLEMS_PER_MESSAGE {
            let id = RuleId { owner: owner.clone(), direction, index: RuleIndex::at(position) };
            problems.push(DecodeProblem { object: ProblemObject::Rule(id), error });
        }
    };
    if rules.len() > MAX_RULES_PER_DIRECTION {
        let error = DecodeError::TooMany { field: "rules", count: rules.len(), max: MAX_RULES_PER_DIRECTION };
        report(0, error);
        return vec![PlannedRule::new(RuleAction::Deny)];
    }
    let mut decoded = Vec::with_capacity(rules.len());
    for (position, rule) in rules.iter().enumerate() {
        let (rule, errors) = decode_rule(rule);
        errors.into_iter().for_each(|error| report(position, error));
        decoded.push(rule);
    }
    decoded
}

/// Decodes an endpoint. The receiver is its proxy, so the endpoint has one.
fn decode_endpoint(endpoint: proto::WorkloadEndpoint) -> Result<WorkloadPolicy, DecodeError> {
    let nets = endpoint.ipv4_nets.iter().chain(&endpoint.ipv6_nets);
    let addresses = nets.map(|net| parse_net("endpoint: nets", net).map(|net| net.addr()));
    let sources = endpoint.allow_spoofed_source_prefixes.iter();
    let sources = sources.map(|net| parse_net("endpoint: allow_spoofed_source_prefixes", net));
    Ok(WorkloadPolicy {
        interface: endpoint.name,
        up: endpoint.state == ACTIVE_STATE,
        addresses: addresses.collect::<Result<_, _>>()?,
        allowed_sources: sources.collect::<Result<_, _>>()?,
        tiers: endpoint.tiers.into_iter().map(decode_tier).collect::<Result<_, _>>()?,
        profiles: endpoint.profile_ids,
        http_proxy: true,
    })
}

fn decode_tier(tier: proto::TierInfo) -> Result<EndpointTier, DecodeError> {
    let passes = tier.default_action.eq_ignore_ascii_case(PASS_ACTION);
    Ok(EndpointTier {
        name: tier.name,
        end: if passes { TierDefaultAction::Pass } else { TierDefaultAction::Deny },
        ingress: decode_policy_ids(tier.ingress_policies)?,
        egress: decode_policy_ids(tier.egress_policies)?,
    })
}

fn decode_policy_ids(ids: Vec<proto::PolicyId>) -> Result<Arc<[PolicyId]>, DecodeError> {
    ids.into_iter().map(|id| decode_policy_id(Some(id))).collect()
}

fn decode_set_id(id: &str) -> Result<SetId, DecodeError> {
    if id.is_empty() {
        return Err(DecodeError::Missing { field: "set id" });
    }
    Ok(SetId::new(id))
}

fn decode_policy_id(id: Option<proto::PolicyId>) -> Result<PolicyId, DecodeError> {
    let proto::PolicyId { name, namespace, kind } = id.ok_or(DecodeError::Missing { field: "policy id" })?;
    require("policy id: name", &name)?;
    Ok(PolicyId { kind: parse_policy_kind(&kind)?, namespace, name })
}

fn decode_profile_id(id: Option<proto::ProfileId>) -> Result<String, DecodeError> {
    let name = id.ok_or(DecodeError::Missing { field: "profile id" })?.name;
    require("profile id: name", &name)?;
    Ok(name)
}

fn decode_endpoint_id(id: Option<proto::WorkloadEndpointId>) -> Result<WorkloadId, DecodeError> {
    let id = id.ok_or(DecodeError::Missing { field: "endpoint id" })?;
    require("endpoint id: workload_id", &id.workload_id)?;
    Ok(WorkloadId { orchestrator: id.orchestrator_id, workload: id.workload_id, endpoint: id.endpoint_id })
}

fn decode_account_id(id: Option<proto::ServiceAccountId>) -> Result<ServiceAccountId, DecodeError> {
    let proto::ServiceAccountId { namespace, name } =
        id.ok_or(DecodeError::Missing { field: "service account id" })?;
    require("service account id: name", &name)?;
    Ok(ServiceAccountId { namespace, name })
}

fn decode_namespace_id(id: Option<proto::NamespaceId>) -> Result<String, DecodeError> {
    let name = id.ok_or(DecodeError::Missing { field: "namespace id" })?.name;
    require("namespace id: name", &name)?;
    Ok(name)
}

fn require(field: &'static str, text: &str) -> Result<(), DecodeError> {
    if text.is_empty() { Err(DecodeError::Missing { field }) } else { Ok(()) }
}
