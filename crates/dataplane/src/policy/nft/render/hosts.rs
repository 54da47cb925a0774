//! Renders the chains of host endpoints and the dispatch to them: a map from interface to chain, and one chain for all
//! other interfaces.

use super::super::ranges;
use super::super::rule::{NftAction, NftFamily, NftField, NftMatch, NftRule, NftTest, interface};
use super::super::table::{NftChain, NftElement};
use super::workloads::tracked;
use super::{PolicyStage, TierRenderer, names};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{EndpointTier, FailsafePort, HostEndpointAssignment, HostEndpointPolicy, PolicyDirection};

/// The part of the table that belongs to host endpoints.
#[derive(Default)]
pub struct HostChains {
    pub chains: BTreeMap<String, NftChain>,
    /// Maps from interface to chain.
    pub maps: BTreeMap<String, BTreeSet<NftElement>>,
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
    /// Whether packets can be marked as accepted.
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

    /// Whether an endpoint has policy for this decision.
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
    let renderer = HostRenderer { endpoints, assignment, tiers };
    let mut part = HostChains::default();
    if assignment.specific.is_empty() && assignment.everywhere.is_none() {
        return part;
    }
    use PolicyDirection::{Egress, Ingress};
    part.hooks = HookRules {
        untracked_in: renderer.question(HostDecision::Untracked(Ingress), &mut part),
        untracked_out: renderer.question(HostDecision::Untracked(Egress), &mut part),
        pre_dnat: renderer.question(HostDecision::PreDnat, &mut part),
        input: renderer.question(HostDecision::Local(Ingress), &mut part),
        forward_in: renderer.question(HostDecision::Forward(Ingress), &mut part),
        forward_out: renderer.question(HostDecision::Forward(Egress), &mut part),
        output: renderer.question(HostDecision::Local(Egress), &mut part),
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
    fn question(&self, question: HostDecision, part: &mut HostChains) -> Vec<NftRule> {
        // Before connection tracking, only endpoints of a single interface apply.
        let everywhere = match question {
            HostDecision::Untracked(_) => None,
            _ => self.assignment.everywhere.as_ref(),
        };
        let active = || self.assignment.specific.values().chain(everywhere);
        let mut concerned = active().filter_map(|name| self.endpoints.get(name));
        if !concerned.any(|endpoint| question.concerns(endpoint)) {
            return Vec::new();
        }
        for name in active() {
            if let Some(endpoint) = self.endpoints.get(name) {
                let chain = NftChain { hook: None, rules: self.answer(question, endpoint) };
                part.chains.insert(chain_name(question, name), chain);
            }
        }
        let field = match question.direction() {
            PolicyDirection::Ingress => NftField::InInterface,
            PolicyDirection::Egress => NftField::OutInterface,
        };
        let mut rules = Vec::new();
        if !self.assignment.specific.is_empty() {
            let specific = self.assignment.specific.iter();
            let elements = specific
                .map(|(device, name)| NftElement::goto(interface(device), &chain_name(question, name)));
            part.maps.insert(question.map().into(), elements.collect());
            rules.push(NftRule::new(
                Vec::new(),
                vec![NftAction::Dispatch { field, map: question.map().into() }],
            ));
        }
        if let Some(name) = everywhere {
            rules.push(NftRule::new(Vec::new(), vec![NftAction::Goto(chain_name(question, name))]));
        }
        rules
    }

    fn answer(&self, question: HostDecision, endpoint: &HostEndpointPolicy) -> Vec<NftRule> {
        let jump = |replies| {
            NftRule::new(Vec::new(), vec![NftAction::Jump(failsafe_name(question.direction(), replies))])
        };
        let direction = question.direction();
        let mut rules = Vec::new();
        let only = |list: &[EndpointTier], stage| self.tiers.only(list, direction, stage);
        match question {
            HostDecision::Local(_) => {
                rules.extend(tracked(self.tiers.settings.drop_invalid));
                rules.push(jump(false));
                rules.extend(self.tiers.with_profiles(&endpoint.tiers, &endpoint.profiles, direction));
            }
            HostDecision::Forward(_) => {
                rules.extend(tracked(self.tiers.settings.drop_invalid));
                rules.extend(only(&endpoint.forward, PolicyStage::Forward));
            }
            HostDecision::PreDnat if endpoint.pre_dnat.is_empty() => {}
            HostDecision::PreDnat => {
                rules.extend(tracked(self.tiers.settings.drop_invalid));
                rules.push(jump(false));
                rules.extend(only(&endpoint.pre_dnat, PolicyStage::PreDnat));
            }
            HostDecision::Untracked(_) if endpoint.untracked.is_empty() => {}
            HostDecision::Untracked(_) => {
                rules.extend([jump(false), jump(true)]);
                rules.extend(only(&endpoint.untracked, PolicyStage::Untracked));
            }
        }
        rules
    }

    /// Returns the rules for packets that no policy may deny: by destination port, or by source port for their replies.
    fn failsafes(&self, direction: PolicyDirection, replies: bool) -> Vec<NftRule> {
        let settings = self.tiers.settings;
        let inbound = (direction == PolicyDirection::Ingress) != replies;
        let list = if inbound { &settings.failsafe_inbound } else { &settings.failsafe_outbound };
        let port = if replies { NftField::SourcePort } else { NftField::DestinationPort };
        let mut grouped: BTreeMap<(Option<IpNet>, u8), Vec<&FailsafePort>> = BTreeMap::new();
        for safe in list {
            grouped.entry((safe.net, safe.protocol)).or_default().push(safe);
        }
        let rule = |((net, protocol), safes): ((Option<IpNet>, u8), Vec<&FailsafePort>)| {
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
            let ports: Vec<tortie_plan::PortInterval> = safes
                .iter()
                .map(|safe| tortie_plan::PortInterval { first: safe.port, last: safe.port })
                .collect();
            matches.push(NftMatch::is(NftField::Protocol, [protocol]));
            matches.push(NftMatch::new(port, NftTest::Within(ranges::from_ports(&ports))));
            NftRule::new(matches, vec![NftAction::Accept])
        };
        grouped.into_iter().map(rule).collect()
    }
}

fn failsafe_name(direction: PolicyDirection, replies: bool) -> String {
    let replies = if replies { "-replies" } else { "" };
    format!("failsafe-{}{replies}", names::direction_text(direction))
}

fn chain_name(question: HostDecision, endpoint: &str) -> String {
    names::fitting(format!("{}/", question.map()), endpoint)
}

/// Accepts packets that an earlier stage has accepted.
pub(super) fn accepted_early(may: bool, bit: u32) -> Option<NftRule> {
    may.then(|| NftRule::new(vec![NftMatch::mark(bit)], vec![NftAction::Accept]).says("accepted before"))
}
