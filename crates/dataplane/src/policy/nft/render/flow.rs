//! Renders the recording of flows: what deciding rules write into the label of a connection, and the chains that enter
//! new connections and denied packets into sets.
//!
//! A chain of type `nat` sees only the first packet of a connection, after all decisions, so established packets cost
//! nothing. A known key costs one lookup, which counts. New keys pass a limit, so that neither a scan nor a flood can
//! make the recording itself expensive; beyond the limit, and if the set is full, connections are only counted.

use super::super::flow::{FlowIdentity, FlowLabel, FlowSlot};
use super::super::ranges;
use super::super::rule::{NftAction, NftFamily, NftField, NftMatch, NftRule, NftTest};
use super::super::table::{ChainHook, HookPoint, NftChain, NftSet, SetType};
use super::dispatch::PROTOCOLS_WITH_PORTS;
use super::{PolicyStage, WorkloadInterfaces, names};
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::flow::{FlowCause, FlowSourceSettings};
use tortie_plan::{DenyAction, PacketRate, PlannedRule, PolicyDirection, PolicySettings, RuleId};

/// Before sources are translated, and after all chains that could drop the packet.
const RECORD_PRIORITY: i32 = 90;

/// Comments of the counters of packets without a key.
pub const OVER_LIMIT_COMMENT: &str = "flows: too many new keys";
pub const FULL_SET_COMMENT: &str = "flows: no room for the key";

/// Prefixes of messages about first packets.
pub const ALLOWED_MESSAGE: &str = "A";
pub const DENIED_MESSAGE: &str = "D";

/// Causes of drops of packets without a connection, which have no label; each has its own chain.
const UNTRACKED_DROPS: [(FlowCause, FlowSlot); 11] = [
    (FlowCause::Spoofed, FlowSlot::Egress),
    (FlowCause::Loopback, FlowSlot::Egress),
    (FlowCause::LinkLocal, FlowSlot::Egress),
    (FlowCause::InvalidConnection, FlowSlot::Egress),
    (FlowCause::InvalidConnection, FlowSlot::Ingress),
    (FlowCause::InvalidConnection, FlowSlot::Passage),
    (FlowCause::UnknownWorkload, FlowSlot::Egress),
    (FlowCause::UnknownWorkload, FlowSlot::Ingress),
    (FlowCause::ClosedEndpoint, FlowSlot::Egress),
    (FlowCause::ClosedEndpoint, FlowSlot::Ingress),
    (FlowCause::UnknownTunnel, FlowSlot::Ingress),
];

/// Returns the slot for the decisions of a stage; `None` before connection tracking, where nothing is recorded.
fn slot(stage: PolicyStage, direction: PolicyDirection) -> Option<FlowSlot> {
    match stage {
        PolicyStage::Normal => Some(FlowSlot::of_endpoint(direction)),
        PolicyStage::Forward | PolicyStage::PreDnat => Some(FlowSlot::Passage),
        PolicyStage::Untracked => None,
    }
}

/// Returns the action that records the decision of a rule.
pub fn label_of_rule(
    settings: &PolicySettings,
    stage: PolicyStage,
    id: &RuleId,
    rule: &PlannedRule,
) -> Option<NftAction> {
    settings.flows?;
    let slot = slot(stage, id.direction)?;
    Some(NftAction::SetLabel(FlowLabel::new(slot, FlowIdentity::of_rule(id, rule))))
}

/// Returns the action that records another decision of a stage.
pub fn label_of_end(
    settings: &PolicySettings,
    stage: PolicyStage,
    direction: PolicyDirection,
    cause: &FlowCause,
) -> Option<NftAction> {
    settings.flows?;
    Some(label(slot(stage, direction)?, cause))
}

fn label(slot: FlowSlot, cause: &FlowCause) -> NftAction {
    NftAction::SetLabel(FlowLabel::new(slot, FlowIdentity::of_cause(cause)))
}

/// Returns the actions that deny a packet whose label has been written.
pub fn deny_labelled(denial: NftAction, label: Option<NftAction>) -> Vec<NftAction> {
    let Some(label) = label else { return vec![denial] };
    let chain = if denial == NftAction::Reject { names::FLOWS_REJECTED } else { names::FLOWS_DENIED };
    vec![label, NftAction::Goto(chain.to_owned())]
}

/// Returns the actions that drop a packet which connection tracking knows.
pub fn drop_tracked(settings: &PolicySettings, slot: FlowSlot, cause: &FlowCause) -> Vec<NftAction> {
    if settings.flows.is_none() {
        return vec![NftAction::Count, NftAction::Drop];
    }
    vec![NftAction::Count, label(slot, cause), NftAction::Goto(names::FLOWS_DENIED.to_owned())]
}

/// Returns the actions that drop a packet which may have no connection. The pair must be in `UNTRACKED_DROPS`.
pub fn drop_untracked(settings: &PolicySettings, slot: FlowSlot, cause: &FlowCause) -> Vec<NftAction> {
    if settings.flows.is_none() || !UNTRACKED_DROPS.contains(&(cause.clone(), slot)) {
        return vec![NftAction::Count, NftAction::Drop];
    }
    vec![NftAction::Count, NftAction::Goto(names::untracked_drop(cause, slot))]
}

/// The chains and sets of the recording.
#[derive(Default)]
pub struct FlowChains {
    pub chains: BTreeMap<String, NftChain>,
    pub sets: BTreeMap<String, NftSet>,
}

/// Returns the chains and sets of the recording; none if it is off.
pub fn render(settings: &PolicySettings, workloads: WorkloadInterfaces<'_>) -> FlowChains {
    let mut rendered = FlowChains::default();
    let Some(flows) = settings.flows else { return rendered };
    for family in NftFamily::BOTH {
        for allowed in [true, false] {
            let kind = SetType::Flows { family, size: flows.max_keys.max(1) };
            let set = NftSet { kind, elements: BTreeSet::new() };
            rendered.sets.insert(names::flows(allowed, family), set);
        }
    }
    let tracked = tracked_keys();
    let mut add = |name: &str, hook: Option<ChainHook>, rules: Vec<NftRule>| {
        rendered.chains.insert(name.to_owned(), NftChain { hook, rules });
    };
    add(names::FLOWS_ALLOWED, None, record(&tracked, true, flows, &NftAction::Accept));
    add(names::FLOWS_DENIED, None, record(&tracked, false, flows, &NftAction::Drop));
    if settings.deny == DenyAction::Reject || settings.service_loop == Some(DenyAction::Reject) {
        add(names::FLOWS_REJECTED, None, record(&tracked, false, flows, &NftAction::Reject));
    }
    for (cause, slot) in UNTRACKED_DROPS {
        let label = FlowLabel::new(slot, FlowIdentity::of_cause(&cause));
        let rules = record(&untracked_keys(label), false, flows, &NftAction::Drop);
        add(&names::untracked_drop(&cause, slot), None, rules);
    }
    let hook = |point| Some(ChainHook::nat(point, RECORD_PRIORITY));
    add("flows-input", hook(HookPoint::Input), vec![record_labelled()]);
    let mut postrouting = Vec::new();
    let from_host = NftMatch::is(NftField::InIndex, [0; 4]);
    for to_workload in workloads.conditions(NftField::OutInterface) {
        let host_to_workload = label(FlowSlot::Ingress, &FlowCause::HostToWorkload);
        let matches = vec![from_host.clone(), to_workload];
        postrouting
            .push(NftRule::new(matches, vec![host_to_workload]).says("the host reaches its workloads"));
    }
    postrouting.push(record_labelled());
    add("flows-postrouting", hook(HookPoint::Postrouting), postrouting);
    rendered
}

/// Records connections about which a decision was made.
fn record_labelled() -> NftRule {
    let labelled = NftMatch::is(NftField::Label, FlowLabel::default().0).not();
    NftRule::new(vec![labelled], vec![NftAction::Goto(names::FLOWS_ALLOWED.to_owned())])
}

/// A kind of packet, and the fields that form its key.
struct KeyFields {
    family: NftFamily,
    matches: Vec<NftMatch>,
    fields: Vec<NftField>,
}

fn key_fields(
    family: NftFamily,
    protocols: Option<NftMatch>,
    port: NftField,
    identity: NftField,
) -> KeyFields {
    KeyFields {
        family,
        matches: [NftMatch::family(family)].into_iter().chain(protocols).collect(),
        fields: vec![
            NftField::Source(family),
            NftField::Destination(family),
            NftField::Protocol,
            port,
            identity,
        ],
    }
}

fn with_ports() -> NftMatch {
    NftMatch::new(NftField::Protocol, NftTest::Within(ranges::from_bytes(&PROTOCOLS_WITH_PORTS)))
}

/// Returns the keys of packets that have a connection: connection tracking has the type and code of ICMP.
fn tracked_keys() -> Vec<KeyFields> {
    let mut keys = Vec::new();
    for family in NftFamily::BOTH {
        keys.push(key_fields(family, Some(with_ports()), NftField::DestinationPort, NftField::Label));
        let others = Some(with_ports().not());
        keys.push(key_fields(family, others, NftField::OriginalPort, NftField::Label));
    }
    keys
}

/// Returns the keys of packets that may have no connection.
fn untracked_keys(label: FlowLabel) -> Vec<KeyFields> {
    let identity = NftField::Constant(label);
    let mut keys = Vec::new();
    for family in NftFamily::BOTH {
        let icmp = NftMatch::is(NftField::Protocol, [family.icmp()]);
        keys.push(key_fields(family, Some(with_ports()), NftField::DestinationPort, identity));
        keys.push(key_fields(family, Some(icmp.clone()), NftField::IcmpHead, identity));
        // A packet without ports that is ICMP was recorded above or had no room.
        let mut others = key_fields(family, Some(with_ports().not()), NftField::NoPort, identity);
        others.matches.push(icmp.not());
        keys.push(others);
    }
    keys
}

fn record(keys: &[KeyFields], allowed: bool, settings: FlowSourceSettings, end: &NftAction) -> Vec<NftRule> {
    let per_second = settings.new_keys_per_second.max(1);
    let over = NftAction::Over(PacketRate { per_second, burst: per_second });
    let mut rules = Vec::new();
    for KeyFields { family, matches, fields } in keys {
        let known = NftMatch::lookup(fields.clone(), names::flows(allowed, *family));
        rules.push(NftRule::new([matches.clone(), vec![known]].concat(), vec![end.clone()]));
    }
    rules.push(NftRule::new(Vec::new(), vec![over, NftAction::Count, end.clone()]).says(OVER_LIMIT_COMMENT));
    for KeyFields { family, matches, fields } in keys {
        let add = NftAction::AddKey { fields: fields.clone(), set: names::flows(allowed, *family) };
        let report = NftAction::ReportFlow(match fields.last() {
            // The message has no connection to take the label from.
            Some(NftField::Constant(label)) => format!("{DENIED_MESSAGE} {label}"),
            _ if allowed => ALLOWED_MESSAGE.to_owned(),
            _ => DENIED_MESSAGE.to_owned(),
        });
        rules.push(NftRule::new(matches.clone(), vec![add, report, end.clone()]));
    }
    rules.push(NftRule::new(Vec::new(), vec![NftAction::Count, end.clone()]).says(FULL_SET_COMMENT));
    rules
}

/// Returns the chains that record denied packets.
pub fn denied_chains() -> Vec<String> {
    let untracked = UNTRACKED_DROPS.iter().map(|(cause, slot)| names::untracked_drop(cause, *slot));
    let labelled = [names::FLOWS_DENIED, names::FLOWS_REJECTED].map(str::to_owned);
    labelled.into_iter().chain(untracked).collect()
}
