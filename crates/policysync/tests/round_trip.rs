//! Objects of the plan are the same after they have been encoded to bytes and decoded.

// Test helpers may panic like tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{any_endpoint, any_policy, any_policy_id, any_rule, any_set, any_workload_id};
use proptest::prelude::*;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_plan::{
    AddressSet, NodePlan, PlanUpdate, PlannedRule, PolicyDirection, ProfileRules, RuleAction, RuleId,
    RuleIndex, RuleOwner, ServiceAccountId, SetId, SetKind, SetMember,
};
use tortie_policysync::proto::{ToDataplane, to_dataplane::Payload};
use tortie_policysync::{
    MAX_MEMBERS_PER_MESSAGE, SyncEvent, decode_message, decode_rule, encode_endpoint, encode_members,
    encode_namespace, encode_policy, encode_profile, encode_rule, encode_service_account, encode_set,
    encode_set_removal,
};

/// Sends a message through its encoding and returns the updates.
fn transfer(payload: Payload) -> Vec<PlanUpdate> {
    let bytes = ToDataplane { sequence_number: 7, payload: Some(payload) }.encode_to_vec();
    let decoded = decode_message(ToDataplane::decode(bytes.as_slice()).unwrap()).unwrap();
    assert_eq!(decoded.problems, []);
    match decoded.event {
        SyncEvent::Updates(updates) => updates,
        other => panic!("{other:?}"),
    }
}

fn rule_id() -> RuleId {
    let owner = RuleOwner::Policy("np/shop/web".parse().unwrap());
    RuleId { owner, direction: PolicyDirection::Ingress, index: RuleIndex::at(2) }
}

fn receive_set(id: &SetId, payloads: impl Iterator<Item = Payload>) -> Option<AddressSet> {
    let mut plan = NodePlan::default();
    payloads.flat_map(transfer).for_each(|update| plan.apply(update));
    plan.sets.remove(id)
}

proptest! {
    #[test]
    fn rules_survive_their_encoding(rule in any_rule()) {
        let (decoded, errors) = decode_rule(&encode_rule(&rule, &rule_id()));
        prop_assert_eq!(errors, []);
        prop_assert_eq!(decoded, rule);
    }

    #[test]
    fn policies_survive_their_encoding(id in any_policy_id(), policy in any_policy()) {
        let expected = PlanUpdate::Policy(id.clone(), Some(Arc::new(policy.clone())));
        prop_assert_eq!(transfer(encode_policy(&id, Some(&policy))), [expected]);
        prop_assert_eq!(transfer(encode_policy(&id, None)), [PlanUpdate::Policy(id, None)]);
        let profile = ProfileRules { ingress: policy.ingress, egress: policy.egress };
        let expected = PlanUpdate::Profile("kns.a".to_owned(), Some(Arc::new(profile.clone())));
        prop_assert_eq!(transfer(encode_profile("kns.a", Some(&profile))), [expected]);
    }

    #[test]
    fn sets_survive_their_encoding(set in any_set()) {
        let id = SetId::new("s:a");
        prop_assert_eq!(receive_set(&id, encode_set(&id, &set)), Some(set.clone()));
        let members: Vec<SetMember> = set.members.iter().copied().collect();
        let empty = AddressSet { kind: set.kind, members: BTreeSet::new() };
        let filled = encode_set(&id, &empty).chain(encode_members(&id, &members, &[]));
        prop_assert_eq!(receive_set(&id, filled), Some(set.clone()));
        let emptied = encode_set(&id, &set).chain(encode_members(&id, &[], &members));
        prop_assert_eq!(receive_set(&id, emptied), Some(empty));
    }

    #[test]
    fn endpoints_survive_their_encoding(id in any_workload_id(), endpoint in any_endpoint()) {
        let expected = PlanUpdate::WorkloadPolicy(id.clone(), Some(endpoint.clone()));
        prop_assert_eq!(transfer(encode_endpoint(&id, Some(&endpoint), Some([2; 6]))), [expected]);
        prop_assert_eq!(transfer(encode_endpoint(&id, None, None)), [PlanUpdate::WorkloadPolicy(id, None)]);
    }
}

#[test]
fn labels_survive_their_encoding() {
    let labels = Arc::new(BTreeMap::from([("team".to_owned(), "a".to_owned())]));
    let account = ServiceAccountId { namespace: "shop".to_owned(), name: "web".to_owned() };
    for labels in [Some(labels), None] {
        let namespace = PlanUpdate::Namespace("shop".to_owned(), labels.clone());
        assert_eq!(transfer(encode_namespace("shop", labels.as_ref())), [namespace]);
        let expected = PlanUpdate::ServiceAccount(account.clone(), labels.clone());
        assert_eq!(transfer(encode_service_account(&account, labels.as_ref())), [expected]);
    }
}

#[test]
fn inexpressible_rules_still_match_nothing() {
    for action in [RuleAction::Allow, RuleAction::Pass, RuleAction::Log, RuleAction::Deny] {
        let never = PlannedRule::never(action);
        assert_eq!(decode_rule(&encode_rule(&never, &rule_id())), (never.clone(), Vec::new()));
        let mut rule = PlannedRule::new(action);
        rule.source.service = Some(SetId::new("svc:shop/web"));
        let expected = if action == RuleAction::Deny { PlannedRule::new(action) } else { never };
        assert_eq!(decode_rule(&encode_rule(&rule, &rule_id())).0, expected, "a source service with ports");
    }
}

#[test]
fn service_sets_without_ports_restrict_addresses() {
    let mut rule = PlannedRule::new(RuleAction::Allow);
    rule.source.service = Some(SetId::new("svcnoport:shop/web"));
    let wire = encode_rule(&rule, &rule_id());
    assert_eq!(wire.src_ip_set_ids, ["svcnoport:shop/web"]);
    assert_eq!(wire.rule_id, "np/shop/web ingress rule 3");
    assert_eq!(decode_rule(&wire).0.source.sets, [SetId::new("svcnoport:shop/web")]);
}

#[test]
fn large_sets_are_split() {
    let id = SetId::new("s:large");
    let address = |number: usize| std::net::Ipv4Addr::from(u32::try_from(number).unwrap());
    let member = |number| SetMember::Net(ipnet::IpNet::from(std::net::IpAddr::V4(address(number))));
    let members: BTreeSet<SetMember> = (0..2 * MAX_MEMBERS_PER_MESSAGE + 1).map(member).collect();
    let set = AddressSet { kind: SetKind::Nets, members };
    let payloads: Vec<Payload> = encode_set(&id, &set).collect();
    assert!(
        matches!(&payloads[0], Payload::IpsetUpdate(update) if update.members.len() == MAX_MEMBERS_PER_MESSAGE)
    );
    assert_eq!(payloads.len(), 3);
    for payload in &payloads {
        let message = ToDataplane { sequence_number: u64::MAX, payload: Some(payload.clone()) };
        assert!(message.encoded_len() < 4 << 20, "{} bytes", message.encoded_len());
    }
    assert_eq!(receive_set(&id, payloads.into_iter()), Some(set));
    assert_eq!(transfer(encode_set_removal(&id)), [PlanUpdate::Set(id, None)]);
}
