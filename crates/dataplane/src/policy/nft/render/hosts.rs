//! Renders the chains of host endpoints and the dispatch to them: a map from interface to chain, and one chain for all
//! other interfaces.

use super::super::flow::FlowSlot;
use super::super::ranges;
use super::super::rule::{NftAction, NftFamily, NftField, NftMatch, NftRule, NftTest, interface};
use super::super::table::{NftChain, NftElement};
use super::workloads::tracked;
use super::{DispatchedRules, PolicyStage, TierRenderer, names};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{HostEndpointAssignment, HostEndpointPolicy, PolicyDirection, PortInterval};

/// The part of the table that belongs to host endpoints.
#[derive(Default)]
pub struct HostChains {
    pub chains: BTreeMap<String, NftChain>,
    /// Maps from interface to chain.
    pub maps: BTreeMap<String, BTreeSet<NftElement>>,
    /// Maps from protocol and port to the chains of policies.
    pub port_maps: BTreeMap<String, BTreeSet<NftElement>>,
    /// The rules that jump to the chains; empty for hooks without policy.
    pub hooks: HookRules,
}

#[derive(Default)]
pub struct HookRules {
    pub untracked_in: Vec<NftRule>,
    pub untracked_out: Vec<NftRule>,
    pub pre_dnat: Vec<NftRule>,
    pub input: Vec<NftRule>,
    pub forward_in: Vec<NftRule>,
    pub forward_out: Vec<NftRule>,
    pub output: Vec<NftRule>,
    pub covered: CoveredInterfaces,
}

/// The interfaces of the host that have an endpoint.
#[derive(Default)]
pub struct CoveredInterfaces {
    /// Interfaces that have their own endpoint.
    pub interfaces: BTreeSet<NftElement>,
    /// Whether one endpoint covers all interfaces.
    pub everywhere: bool,
}

impl CoveredInterfaces {
    /// Returns the alternative conditions for a packet at a covered interface.
    pub fn conditions(&self, field: NftField) -> Vec<Vec<NftMatch>> {
        match (self.everywhere, self.interfaces.is_empty()) {
            (true, _) => vec![Vec::new()],
            (false, false) => vec![vec![NftMatch::lookup([field], names::HOST_INTERFACES)]],
            (false, true) => Vec::new(),
        }
    }
}

impl HookRules {
    /// Returns whether packets can be marked as accepted.
    pub fn may_accept_early(&self) -> bool {
        !(self.untracked_in.is_empty() && self.untracked_out.is_empty() && self.pre_dnat.is_empty())
    }
}

/// A policy decision about packets at an interface of the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostDecision {
    Local(PolicyDirection),
    Forward(PolicyDirection),
    PreDnat,
    Untracked(PolicyDirection),
}

impl HostDecision {
    fn map(self) -> &'static str {
        use PolicyDirection::{Egress, Ingress};
        match self {
            HostDecision::Local(Ingress) => names::HOST_IN_MAP,
            HostDecision::Local(Egress) => "host-out",
            HostDecision::Forward(Ingress) => "host-forward-in",
            HostDecision::Forward(Egress) => "host-forward-out",
            HostDecision::PreDnat => "host-pre-dnat",
            HostDecision::Untracked(Ingress) => "host-untracked-in",
            HostDecision::Untracked(Egress) => "host-untracked-out",
        }
    }

    fn direction(self) -> PolicyDirection {
        match self {
            HostDecision::Local(direction)
            | HostDecision::Forward(direction)
            | HostDecision::Untracked(direction) => direction,
            HostDecision::PreDnat => PolicyDirection::Ingress,
        }
    }

    /// Returns whether an endpoint has policy for this decision.
    fn concerns(self, endpoint: &HostEndpointPolicy) -> bool {
        match self {
            HostDecision::Local(_) | HostDecision::Forward(_) => true,
            HostDecision::PreDnat => !endpoint.pre_dnat.is_empty(),
            HostDecision::Untracked(_) => !endpoint.untracked.is_empty(),
        }
    }
}

pub fn render(
    endpoints: &BTreeMap<String, HostEndpointPolicy>,
    assignment: &HostEndpointAssignment,
    tiers: TierRenderer<'_>,
) -> HostChains {
    let renderer = HostRenderer { endpoints, assignment, tiers: tiers.for_hosts() };
    let mut part = HostChains::default();
    if assignment.specific.is_empty() && assignment.everywhere.is_none() {
        return part;
    }
    use PolicyDirection::{Egress, Ingress};
    part.hooks = HookRules {
        untracked_in: renderer.decide(HostDecision::Untracked(Ingress), &mut part),
        untracked_out: renderer.decide(HostDecision::Untracked(Egress), &mut part),
        pre_dnat: renderer.decide(HostDecision::PreDnat, &mut part),
        input: renderer.decide(HostDecision::Local(Ingress), &mut part),
        forward_in: renderer.decide(HostDecision::Forward(Ingress), &mut part),
        forward_out: renderer.decide(HostDecision::Forward(Egress), &mut part),
        output: renderer.decide(HostDecision::Local(Egress), &mut part),
        covered: CoveredInterfaces {
            interfaces: assignment.specific.keys().map(|name| NftElement::key(interface(name))).collect(),
            everywhere: assignment.everywhere.is_some(),
        },
    };
    for (direction, replies) in [(Ingress, false), (Egress, false), (Ingress, true), (Egress, true)] {
        if !replies || !part.hooks.untracked_in.is_empty() {
            let chain = NftChain { hook: None, rules: renderer.failsafes(direction, replies) };
            part.chains.insert(failsafe_name(direction, replies), chain);
        }
    }
    part
}

struct HostRenderer<'p> {
    endpoints: &'p BTreeMap<String, HostEndpointPolicy>,
    assignment: &'p HostEndpointAssignment,
    tiers: TierRenderer<'p>,
}

impl HostRenderer<'_> {
    /// Renders the chains for one decision, and returns the rules that jump to them.
    fn decide(&self, decision: HostDecision, part: &mut HostChains) -> Vec<NftRule> {
        // Before connection tracking, only endpoints of a single interface apply.
        let everywhere = match decision {
            HostDecision::Untracked(_) => None,
            _ => self.assignment.everywhere.as_ref(),
        };
        let names = self.assignment.specific.values().chain(everywhere);
        let active: Vec<(&String, &HostEndpointPolicy)> =
            names.filter_map(|name| Some((name, self.endpoints.get(name)?))).collect();
        if !active.iter().any(|(_, endpoint)| decision.concerns(endpoint)) {
            return Vec::new();
        }
        for (name, endpoint) in active {
            let DispatchedRules { rules, maps, chains } = self.decision_rules(decision, endpoint);
            part.port_maps.extend(maps);
            part.chains.extend(chains);
            part.chains.insert(chain_name(decision, name), NftChain { hook: None, rules });
        }
        let field = match decision.direction() {
            PolicyDirection::Ingress => NftField::InInterface,
            PolicyDirection::Egress => NftField::OutInterface,
        };
        let mut rules = Vec::new();
        if !self.assignment.specific.is_empty() {
            let specific = self.assignment.specific.iter();
            let elements = specific
                .map(|(device, name)| NftElement::goto(interface(device), &chain_name(decision, name)));
            part.maps.insert(decision.map().into(), elements.collect());
            rules.push(NftRule::new(
                Vec::new(),
                vec![NftAction::Dispatch { fields: vec![field], map: decision.map().into() }],
            ));
        }
        if let Some(name) = everywhere {
            rules.push(NftRule::new(Vec::new(), vec![NftAction::Goto(chain_name(decision, name))]));
        }
        rules
    }

    /// Returns the rules of one endpoint for one decision.
    fn decision_rules(&self, decision: HostDecision, endpoint: &HostEndpointPolicy) -> DispatchedRules {
        let direction = decision.direction();
        let mut rules = Vec::new();
        let mut policies = DispatchedRules::default();
        match decision {
            HostDecision::Local(_) => {
                rules.extend(tracked(self.tiers.settings, FlowSlot::of_endpoint(direction)));
                rules.push(jump_to_failsafes(direction, false));
                policies = self.tiers.with_profiles(&endpoint.tiers, &endpoint.profiles, direction);
            }
            HostDecision::Forward(_) => {
                rules.extend(tracked(self.tiers.settings, FlowSlot::Passage));
                policies = self.tiers.only(&endpoint.forward, direction, PolicyStage::Forward);
            }
            HostDecision::PreDnat if endpoint.pre_dnat.is_empty() => {}
            HostDecision::PreDnat => {
                rules.extend(tracked(self.tiers.settings, FlowSlot::Passage));
                rules.push(jump_to_failsafes(direction, false));
                policies = self.tiers.only(&endpoint.pre_dnat, direction, PolicyStage::PreDnat);
            }
            HostDecision::Untracked(_) if endpoint.untracked.is_empty() => {}
            HostDecision::Untracked(_) => {
                rules.push(jump_to_failsafes(direction, false));
                rules.push(jump_to_failsafes(direction, true));
                policies = self.tiers.only(&endpoint.untracked, direction, PolicyStage::Untracked);
            }
        }
        rules.append(&mut policies.rules);
        DispatchedRules { rules, ..policies }
    }

    /// Returns the rules for packets that no policy may deny: by destination port, or by source port for their replies.
    fn failsafes(&self, direction: PolicyDirection, replies: bool) -> Vec<NftRule> {
        let settings = self.tiers.settings;
        let inbound = (direction == PolicyDirection::Ingress) != replies;
        let list = if inbound { &settings.failsafe_inbound } else { &settings.failsafe_outbound };
        let port = if replies { NftField::SourcePort } else { NftField::DestinationPort };
        let mut grouped: BTreeMap<(Option<IpNet>, u8), Vec<PortInterval>> = BTreeMap::new();
        for safe in list {
            let interval = PortInterval { first: safe.port, last: safe.port };
            grouped.entry((safe.net, safe.protocol)).or_default().push(interval);
        }
        let mut rules = Vec::new();
        for ((net, protocol), ports) in grouped {
            let mut matches = Vec::new();
            if let Some(net) = net {
                let family = NftFamily::from(net.addr());
                let remote = match direction {
                    PolicyDirection::Ingress => NftField::Source(family),
                    PolicyDirection::Egress => NftField::Destination(family),
                };
                matches.push(NftMatch::family(family));
                matches.push(NftMatch::new(remote, NftTest::Within(ranges::from_nets([&net], family))));
            }
            matches.push(NftMatch::is(NftField::Protocol, [protocol]));
            matches.push(NftMatch::new(port, NftTest::Within(ranges::from_ports(&ports))));
            rules.push(NftRule::new(matches, vec![NftAction::Accept]));
        }
        rules
    }
}

fn jump_to_failsafes(direction: PolicyDirection, replies: bool) -> NftRule {
    NftRule::new(Vec::new(), vec![NftAction::Jump(failsafe_name(direction, replies))])
}

fn failsafe_name(direction: PolicyDirection, replies: bool) -> String {
    let replies = if replies { "-replies" } else { "" };
    format!("failsafe-{}{replies}", names::direction_text(direction))
}

fn chain_name(decision: HostDecision, endpoint: &str) -> String {
    names::fitting(format!("{}/", decision.map()), endpoint)
}

/// Accepts packets that an earlier stage has accepted.
pub(super) fn accepted_early(may: bool, bit: u32) -> Option<NftRule> {
    may.then(|| NftRule::new(vec![NftMatch::mark(bit)], vec![NftAction::Accept]).says("accepted before"))
}
