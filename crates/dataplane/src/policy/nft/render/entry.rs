//! Renders the base chains of the table.
//!
//! Each base chain makes one decision about a packet: `accept` ends that chain and the kernel goes on to the next one,
//! `drop` ends the evaluation of the packet.

use super::super::ranges;
use super::super::rule::{Action, Family, Field, Match, Rule, Test, state};
use super::super::table::{Chain, Hook, Point};
use super::hosts::{HookRules, accepted_early};
use super::tunnels::Tunnels;
use super::{Allowed, POLICY, Workloads, metadata, names};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{AllowAction, DenyAction, EndpointToHost, Settings};

/// Multicast listener queries and reports, router and neighbour solicitations, neighbour advertisements.
const NEIGHBOUR_DISCOVERY: [u8; 6] = [130, 131, 132, 133, 135, 136];
/// Conntrack status bit `IPS_DST_NAT`: the destination was rewritten.
pub(super) const DNAT: u32 = 0x20;

const LOOPBACK_V4: &str = "127.0.0.0/8";
const LOOPBACK_V6: &str = "::1/128";
const NOBODY: &str = "0.0.0.0/8";
const LINK_LOCAL: &str = "fe80::/10";

const RAW: i32 = -300;
pub(super) const MANGLE: i32 = -150;
pub(super) const FILTER: i32 = 0;

/// Returns the base chains, the chains that they share, and the hooks at which packets carry the mark of allowed
/// packets. `source_nets` returns whether a family has a set of source nets.
pub(crate) fn chains(
    settings: &Settings,
    workloads: Workloads<'_>,
    service_ranges: &BTreeSet<IpNet>,
    source_nets: impl Fn(Family) -> bool,
    hooks: &HookRules,
    tunnels: Tunnels<'_>,
) -> (BTreeMap<String, Chain>, Vec<Allowed>) {
    let entry = Entry { settings, workloads, hooks, tunnels };
    let mut chains = BTreeMap::new();
    let mut enter = |name: &str, point, priority, rules: Vec<Rule>| {
        if !rules.is_empty() {
            chains.insert(name.to_owned(), Chain { hook: Some(Hook::filter(point, priority)), rules });
        }
    };
    enter("prerouting-raw", Point::Prerouting, RAW, entry.prerouting());
    enter("pre-dnat", Point::Prerouting, MANGLE - 1, entry.pre_dnat());
    enter("input", Point::Input, POLICY, entry.input());
    enter("forward-host-in", Point::Forward, POLICY, entry.forward_host_in());
    enter("forward-from", Point::Forward, POLICY + 1, entry.forward_from());
    enter("forward-to", Point::Forward, POLICY + 2, entry.forward_to());
    enter("forward-host-out", Point::Forward, POLICY + 3, hooks.forward_out.clone());
    enter("forward-services", Point::Forward, FILTER + 2, entry.forward_services(service_ranges));
    enter("output-raw", Point::Output, RAW, entry.output_raw());
    enter("output", Point::Output, POLICY, entry.output());
    enter("postrouting", Point::Postrouting, MANGLE, entry.postrouting());
    enter("forward-mss", Point::Forward, MANGLE, entry.forward_mss());
    for (name, hook, rules) in entry.marking() {
        chains.insert(name.to_owned(), Chain { hook: Some(hook), rules });
    }
    let mut share = |name: &str, rules| chains.insert(name.to_owned(), Chain { hook: None, rules });
    share("workload-source", source_rules(source_nets));
    share("workload-to-host", entry.workload_to_host());
    if settings.policy.filter_allow == AllowAction::Accept {
        share("workload-allowed", entry.workload_allowed());
    }
    if settings.policy.endpoint_to_host == EndpointToHost::Drop {
        share("host-closed", entry.host_closed());
        let rules = entry.workloads(Field::InInterface, "", &[Action::Goto("host-closed".into())]);
        let hook = Some(Hook::filter(Point::Input, POLICY + 1));
        chains.insert("input-after".into(), Chain { hook, rules });
    }
    (chains, entry.allowed())
}

pub(super) struct Entry<'s> {
    pub(super) settings: &'s Settings,
    workloads: Workloads<'s>,
    pub(super) hooks: &'s HookRules,
    pub(super) tunnels: Tunnels<'s>,
}

impl Entry<'_> {
    /// Returns rules that apply the actions to packets from or to workload interfaces.
    pub(super) fn workloads(&self, field: Field, comment: &str, actions: &[Action]) -> Vec<Rule> {
        self.workloads.rules(field, comment, actions)
    }

    pub(super) fn accepted_bit(&self) -> u32 {
        self.settings.policy.marks.accepted
    }

    fn unmark(&self) -> Option<Rule> {
        let may = self.hooks.may_accept_early();
        may.then(|| Rule::new(Vec::new(), vec![Action::ClearMark(self.accepted_bit())]))
    }

    fn accepted(&self) -> Option<Rule> {
        accepted_early(self.hooks.may_accept_early(), self.accepted_bit())
    }

    fn prerouting(&self) -> Vec<Rule> {
        let workloads = self.workloads(Field::InInterface, "", &[Action::Goto("workload-source".into())]);
        let untracked = self.tunnels.untracked().into_iter().chain(self.hooks.untracked_in.clone());
        let arrivals = self.settings.host_encryption.then(|| self.tunnels.open_arrivals());
        let arrivals = arrivals.into_iter().flatten();
        self.unmark().into_iter().chain(workloads).chain(arrivals).chain(untracked).collect()
    }

    fn pre_dnat(&self) -> Vec<Rule> {
        if self.hooks.pre_dnat.is_empty() {
            return Vec::new();
        }
        self.accepted().into_iter().chain(self.hooks.pre_dnat.clone()).collect()
    }

    fn input(&self) -> Vec<Rule> {
        let mut rules = self.tunnels.strangers();
        rules.extend(self.workloads(Field::InInterface, "", &[Action::Goto("workload-to-host".into())]));
        if !self.hooks.input.is_empty() {
            rules.extend(self.tunnels.input());
            rules.extend(self.accepted());
            rules.extend(self.hooks.input.clone());
        }
        rules
    }

    fn forward_host_in(&self) -> Vec<Rule> {
        if self.hooks.forward_in.is_empty() {
            return Vec::new();
        }
        self.accepted().into_iter().chain(self.hooks.forward_in.clone()).collect()
    }

    fn forward_from(&self) -> Vec<Rule> {
        let unknown = [Action::Count, Action::Drop];
        let mut rules = vec![dispatch(Field::InInterface, names::FROM)];
        rules.extend(self.workloads(Field::InInterface, "from an unknown workload", &unknown));
        rules
    }

    fn forward_to(&self) -> Vec<Rule> {
        let unknown = [Action::Count, Action::Drop];
        let mut rules = vec![dispatch(Field::OutInterface, names::TO)];
        rules.extend(self.workloads(Field::OutInterface, "to an unknown workload", &unknown));
        rules
    }

    /// Denies packets that are still addressed to a service: service destinations are rewritten before this chain, so
    /// the service does not exist, and forwarding the packet could only cause a routing loop.
    fn forward_services(&self, ranges: &BTreeSet<IpNet>) -> Vec<Rule> {
        let Some(action) = self.settings.policy.service_loop.filter(|_| !ranges.is_empty()) else {
            return Vec::new();
        };
        let deny = match action {
            DenyAction::Drop => Action::Drop,
            DenyAction::Reject => Action::Reject,
        };
        let known = Match::connection(state::ESTABLISHED | state::RELATED);
        let mut rules = vec![Rule::new(vec![known], vec![Action::Accept])];
        for family in Family::BOTH {
            let ranges = ranges::of_nets(ranges, family);
            if !ranges.is_empty() {
                let to_them = Match::new(Field::Destination(family), Test::Within(ranges));
                let actions = vec![Action::Count, deny.clone()];
                rules.push(Rule::new(vec![Match::family(family), to_them], actions).says("no such service"));
            }
        }
        rules
    }

    /// Clamps the MSS option of SYN packets to the path MTU.
    fn forward_mss(&self) -> Vec<Rule> {
        const TCP: u8 = 6;
        const SYN: u32 = 2;
        if !self.settings.clamp_mss {
            return Vec::new();
        }
        let begins = [Match::is(Field::Protocol, [TCP]), Match::new(Field::TcpFlags, Test::Any(SYN))];
        let rule =
            |workload: Match| Rule::new([vec![workload], begins.to_vec()].concat(), vec![Action::ClampMss]);
        let both = [Field::InInterface, Field::OutInterface];
        both.into_iter().flat_map(|field| self.workloads.conditions(field)).map(rule).collect()
    }

    fn output_raw(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = self.unmark().into_iter().chain(self.tunnels.untracked()).collect();
        if !self.hooks.untracked_out.is_empty() {
            rules.extend(self.workloads(
                Field::OutInterface,
                "the host reaches its workloads",
                &[Action::Accept],
            ));
            rules.extend(self.hooks.untracked_out.clone());
        }
        rules
    }

    fn output(&self) -> Vec<Rule> {
        if self.hooks.output.is_empty() {
            return Vec::new();
        }
        let mut rules =
            self.workloads(Field::OutInterface, "the host reaches its workloads", &[Action::Accept]);
        rules.extend(self.accepted());
        let rewritten = Match::new(Field::ConnectionStatus, Test::Any(DNAT));
        rules.push(Rule::new(vec![rewritten], vec![Action::Accept]).says("asked when its way is known"));
        rules.extend(self.tunnels.output());
        rules.extend(self.hooks.output.clone());
        rules
    }

    /// Returns the rules for packets from the host with a rewritten destination: their egress interface is known only
    /// now.
    fn postrouting(&self) -> Vec<Rule> {
        if self.hooks.output.is_empty() {
            return Vec::new();
        }
        let other = |condition: Match| Rule::new(vec![condition.not()], vec![Action::Accept]);
        let mut rules = vec![
            other(Match::is(Field::InIndex, [0; 4])).says("not from the host"),
            other(Match::new(Field::ConnectionStatus, Test::Any(DNAT))),
        ];
        rules.extend(self.workloads(
            Field::OutInterface,
            "the host reaches its workloads",
            &[Action::Accept],
        ));
        rules.extend(self.accepted());
        // Tunnel packets are untracked, so the check for a rewritten destination above does not cover them.
        rules.extend(self.tunnels.output());
        rules.extend(self.hooks.output.clone());
        rules
    }

    fn workload_to_host(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        if self.settings.policy.drop_invalid {
            let invalid = Match::connection(state::INVALID);
            rules.push(Rule::new(vec![invalid], vec![Action::Count, Action::Drop]).says("invalid"));
        }
        rules.extend(metadata::accepted(self.settings.policy.metadata));
        rules.extend([
            discovery(),
            dispatch(Field::InInterface, names::FROM),
            closed("from an unknown workload"),
        ]);
        rules
    }

    fn host_closed(&self) -> Vec<Rule> {
        let known = Match::connection(state::ESTABLISHED | state::RELATED);
        let mut rules = vec![Rule::new(vec![known], vec![Action::Accept])];
        rules.extend(metadata::accepted(self.settings.policy.metadata));
        rules.extend([discovery(), closed("the host is closed to workloads")]);
        rules
    }
}

fn dispatch(field: Field, map: &str) -> Rule {
    Rule::new(Vec::new(), vec![Action::Dispatch { field, map: map.into() }])
}

fn closed(comment: &str) -> Rule {
    Rule::new(Vec::new(), vec![Action::Count, Action::Drop]).says(comment)
}

pub(super) fn discovery() -> Rule {
    let kinds = ranges::of_bytes(&NEIGHBOUR_DISCOVERY);
    let matches = vec![
        Match::family(Family::V6),
        Match::is(Field::Protocol, [Family::V6.icmp()]),
        Match::new(Field::IcmpType, Test::Within(kinds)),
    ];
    Rule::new(matches, vec![Action::Accept]).says("neighbour discovery")
}

/// Drops packets to link-local addresses of other hosts, which must not be forwarded. If they were sent back to their
/// link, each address would become an entry in the host's neighbour table.
fn not_forwarded() -> Rule {
    const LOCAL: u32 = 2;
    let matches = vec![
        Match::family(Family::V6),
        within(Field::Destination(Family::V6), LINK_LOCAL),
        Match::is(Field::DestinationType, LOCAL.to_ne_bytes()).not(),
    ];
    Rule::new(matches, vec![Action::Count, Action::Drop]).says("link-local addresses are not forwarded to")
}

fn within(field: Field, net: &str) -> Match {
    let family = match field {
        Field::Source(family) | Field::Destination(family) => family,
        _ => Family::V4,
    };
    let net: Option<IpNet> = net.parse().ok();
    Match::new(field, Test::Within(ranges::of_nets(net.iter(), family)))
}

/// Returns the rules that restrict the sources of workloads. They accept only a workload's own addresses and those
/// routed to it, and no packets to or from the host's loopback: those would be delivered if `route_localnet` is set or
/// if a destination is rewritten.
fn source_rules(source_nets: impl Fn(Family) -> bool) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (family, loopback) in [(Family::V4, LOOPBACK_V4), (Family::V6, LOOPBACK_V6)] {
        let mut fields = vec![Field::Destination(family)];
        // Without a set of source nets, the lookups below match no such source.
        if source_nets(family) {
            fields.push(Field::Source(family));
        }
        for field in fields {
            let matches = vec![Match::family(family), within(field, loopback)];
            let drop = vec![Action::Count, Action::Drop];
            rules.push(Rule::new(matches, drop).says("the loopback of the host"));
        }
    }
    rules.push(not_forwarded());
    for family in Family::BOTH {
        let mut sets = vec![names::sources(family)];
        if source_nets(family) {
            sets.push(names::source_nets(family));
        }
        for set in sets {
            let fields = [Field::InInterface, Field::Source(family)];
            let matches = vec![Match::family(family), Match::lookup(fields, set)];
            rules.push(Rule::new(matches, vec![Action::Accept]));
        }
    }
    // Addresses that another program routes to the workload are also valid sources. Link-local addresses and 0.0.0.0/8
    // are excluded, as no route identifies their owner.
    for (family, without) in [(Family::V4, NOBODY), (Family::V6, LINK_LOCAL)] {
        let matches = vec![
            Match::family(family),
            Match::lookup([Field::InInterface], names::OPEN),
            within(Field::Source(family), without).not(),
            Match::is(Field::ReturnInterface, [0; 4]).not(),
        ];
        rules.push(Rule::new(matches, vec![Action::Accept]).says("routed to the workload"));
    }
    rules.push(closed("not a source of the workload"));
    rules
}
