//! Renders the chains of host endpoints and the dispatch to them: a map from interface to chain, and one chain for all
//! other interfaces.

use super::super::ranges;
use super::super::rule::{Action, Family, Field, Match, Rule, Test, interface};
use super::super::table::{Chain, Element};
use super::workloads::tracked;
use super::{Stage, Tiers, names};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{Assignment, Direction, Failsafe, HostEndpoint, Tier};

/// The part of the table that belongs to host endpoints.
#[derive(Default)]
pub(crate) struct HostPart {
    pub chains: BTreeMap<String, Chain>,
    /// Maps from interface to chain.
    pub maps: BTreeMap<String, BTreeSet<Element>>,
    /// The rules that jump to the chains; empty for hooks without policy.
    pub hooks: HookRules,
}

#[derive(Default)]
pub(crate) struct HookRules {
    pub untracked_in: Vec<Rule>,
    pub untracked_out: Vec<Rule>,
    pub pre_dnat: Vec<Rule>,
    pub input: Vec<Rule>,
    pub forward_in: Vec<Rule>,
    pub forward_out: Vec<Rule>,
    pub output: Vec<Rule>,
    pub covered: Covered,
}

/// The interfaces of the host that have an endpoint.
#[derive(Default)]
pub(crate) struct Covered {
    /// Interfaces that have their own endpoint.
    pub interfaces: BTreeSet<Element>,
    /// Whether one endpoint covers all interfaces.
    pub everywhere: bool,
}

impl Covered {
    /// Returns the alternative conditions for a packet at a covered interface.
    pub fn conditions(&self, field: Field) -> Vec<Vec<Match>> {
        match (self.everywhere, self.interfaces.is_empty()) {
            (true, _) => vec![Vec::new()],
            (false, false) => vec![vec![Match::lookup([field], names::HOST_INTERFACES)]],
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
enum Question {
    Local(Direction),
    Forward(Direction),
    PreDnat,
    Untracked(Direction),
}

impl Question {
    fn map(self) -> &'static str {
        use Direction::{Egress, Ingress};
        match self {
            Question::Local(Ingress) => names::HOST_IN,
            Question::Local(Egress) => "host-out",
            Question::Forward(Ingress) => "host-forward-in",
            Question::Forward(Egress) => "host-forward-out",
            Question::PreDnat => "host-pre-dnat",
            Question::Untracked(Ingress) => "host-untracked-in",
            Question::Untracked(Egress) => "host-untracked-out",
        }
    }

    fn direction(self) -> Direction {
        match self {
            Question::Local(direction) | Question::Forward(direction) | Question::Untracked(direction) => {
                direction
            }
            Question::PreDnat => Direction::Ingress,
        }
    }

    /// Whether an endpoint has policy for this decision.
    fn concerns(self, endpoint: &HostEndpoint) -> bool {
        match self {
            Question::Local(_) | Question::Forward(_) => true,
            Question::PreDnat => !endpoint.pre_dnat.is_empty(),
            Question::Untracked(_) => !endpoint.untracked.is_empty(),
        }
    }
}

pub(crate) fn render(
    endpoints: &BTreeMap<String, HostEndpoint>,
    assignment: &Assignment,
    tiers: Tiers<'_>,
) -> HostPart {
    let renderer = HostRenderer { endpoints, assignment, tiers };
    let mut part = HostPart::default();
    if assignment.specific.is_empty() && assignment.everywhere.is_none() {
        return part;
    }
    use Direction::{Egress, Ingress};
    part.hooks = HookRules {
        untracked_in: renderer.question(Question::Untracked(Ingress), &mut part),
        untracked_out: renderer.question(Question::Untracked(Egress), &mut part),
        pre_dnat: renderer.question(Question::PreDnat, &mut part),
        input: renderer.question(Question::Local(Ingress), &mut part),
        forward_in: renderer.question(Question::Forward(Ingress), &mut part),
        forward_out: renderer.question(Question::Forward(Egress), &mut part),
        output: renderer.question(Question::Local(Egress), &mut part),
        covered: Covered {
            interfaces: assignment.specific.keys().map(|name| Element::key(interface(name))).collect(),
            everywhere: assignment.everywhere.is_some(),
        },
    };
    for (direction, replies) in [(Ingress, false), (Egress, false), (Ingress, true), (Egress, true)] {
        if !replies || !part.hooks.untracked_in.is_empty() {
            let chain = Chain { hook: None, rules: renderer.failsafes(direction, replies) };
            part.chains.insert(failsafe_name(direction, replies), chain);
        }
    }
    part
}

struct HostRenderer<'p> {
    endpoints: &'p BTreeMap<String, HostEndpoint>,
    assignment: &'p Assignment,
    tiers: Tiers<'p>,
}

impl HostRenderer<'_> {
    /// Renders the chains for one decision, and returns the rules that jump to them.
    fn question(&self, question: Question, part: &mut HostPart) -> Vec<Rule> {
        // Before connection tracking, only endpoints of a single interface apply.
        let everywhere = match question {
            Question::Untracked(_) => None,
            _ => self.assignment.everywhere.as_ref(),
        };
        let active = || self.assignment.specific.values().chain(everywhere);
        let mut concerned = active().filter_map(|name| self.endpoints.get(name));
        if !concerned.any(|endpoint| question.concerns(endpoint)) {
            return Vec::new();
        }
        for name in active() {
            if let Some(endpoint) = self.endpoints.get(name) {
                let chain = Chain { hook: None, rules: self.answer(question, endpoint) };
                part.chains.insert(chain_name(question, name), chain);
            }
        }
        let field = match question.direction() {
            Direction::Ingress => Field::InInterface,
            Direction::Egress => Field::OutInterface,
        };
        let mut rules = Vec::new();
        if !self.assignment.specific.is_empty() {
            let specific = self.assignment.specific.iter();
            let elements =
                specific.map(|(device, name)| Element::goto(interface(device), &chain_name(question, name)));
            part.maps.insert(question.map().into(), elements.collect());
            rules.push(Rule::new(Vec::new(), vec![Action::Dispatch { field, map: question.map().into() }]));
        }
        if let Some(name) = everywhere {
            rules.push(Rule::new(Vec::new(), vec![Action::Goto(chain_name(question, name))]));
        }
        rules
    }

    fn answer(&self, question: Question, endpoint: &HostEndpoint) -> Vec<Rule> {
        let jump =
            |replies| Rule::new(Vec::new(), vec![Action::Jump(failsafe_name(question.direction(), replies))]);
        let direction = question.direction();
        let mut rules = Vec::new();
        let only = |list: &[Tier], stage| self.tiers.only(list, direction, stage);
        match question {
            Question::Local(_) => {
                rules.extend(tracked(self.tiers.settings.drop_invalid));
                rules.push(jump(false));
                rules.extend(self.tiers.with_profiles(&endpoint.tiers, &endpoint.profiles, direction));
            }
            Question::Forward(_) => {
                rules.extend(tracked(self.tiers.settings.drop_invalid));
                rules.extend(only(&endpoint.forward, Stage::Forward));
            }
            Question::PreDnat if endpoint.pre_dnat.is_empty() => {}
            Question::PreDnat => {
                rules.extend(tracked(self.tiers.settings.drop_invalid));
                rules.push(jump(false));
                rules.extend(only(&endpoint.pre_dnat, Stage::PreDnat));
            }
            Question::Untracked(_) if endpoint.untracked.is_empty() => {}
            Question::Untracked(_) => {
                rules.extend([jump(false), jump(true)]);
                rules.extend(only(&endpoint.untracked, Stage::Untracked));
            }
        }
        rules
    }

    /// Returns the rules for packets that no policy may deny: by destination port, or by source port for their replies.
    fn failsafes(&self, direction: Direction, replies: bool) -> Vec<Rule> {
        let settings = self.tiers.settings;
        let inbound = (direction == Direction::Ingress) != replies;
        let list = if inbound { &settings.failsafe_inbound } else { &settings.failsafe_outbound };
        let port = if replies { Field::SourcePort } else { Field::DestinationPort };
        let mut grouped: BTreeMap<(Option<IpNet>, u8), Vec<&Failsafe>> = BTreeMap::new();
        for safe in list {
            grouped.entry((safe.net, safe.protocol)).or_default().push(safe);
        }
        let rule = |((net, protocol), safes): ((Option<IpNet>, u8), Vec<&Failsafe>)| {
            let mut matches = Vec::new();
            if let Some(net) = net {
                let family = Family::of(net.addr());
                let remote = match direction {
                    Direction::Ingress => Field::Source(family),
                    Direction::Egress => Field::Destination(family),
                };
                matches.push(Match::family(family));
                matches.push(Match::new(remote, Test::Within(ranges::of_nets([&net], family))));
            }
            let ports: Vec<tortie_plan::PortRange> = safes
                .iter()
                .map(|safe| tortie_plan::PortRange { first: safe.port, last: safe.port })
                .collect();
            matches.push(Match::is(Field::Protocol, [protocol]));
            matches.push(Match::new(port, Test::Within(ranges::of_ports(&ports))));
            Rule::new(matches, vec![Action::Accept])
        };
        grouped.into_iter().map(rule).collect()
    }
}

fn failsafe_name(direction: Direction, replies: bool) -> String {
    let replies = if replies { "-replies" } else { "" };
    format!("failsafe-{}{replies}", names::direction_text(direction))
}

fn chain_name(question: Question, endpoint: &str) -> String {
    names::fitting(format!("{}/", question.map()), endpoint)
}

/// Accepts packets that an earlier stage has accepted.
pub(super) fn accepted_early(may: bool, bit: u32) -> Option<Rule> {
    may.then(|| Rule::new(vec![Match::mark(bit)], vec![Action::Accept]).says("accepted before"))
}
