//! Renders the base chains of the table.
//!
//! Each base chain makes one decision about a packet: `accept` ends that chain and the kernel goes on to the next one,
//! `drop` ends the evaluation of the packet.

use super::super::flow::FlowSlot;
use super::super::ranges;
use super::super::rule::{NftAction, NftFamily, NftField, NftMatch, NftRule, NftTest, state};
use super::super::table::{ChainHook, HookPoint, NftChain};
use super::hosts::{HookRules, accepted_early};
use super::tunnels::TunnelRenderer;
use super::{POLICY_PRIORITY, PolicyStage, WorkloadInterfaces, flow, metadata, names};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::flow::FlowCause;
use tortie_plan::{
    AllowAction, DataplaneSettings, DenyAction, EndpointToHostAction, PolicyDirection, PolicySettings,
};

/// Multicast listener queries and reports, router and neighbour solicitations, neighbour advertisements.
const NEIGHBOUR_DISCOVERY: [u8; 6] = [130, 131, 132, 133, 135, 136];
/// Conntrack status bit `IPS_DST_NAT`: the destination was rewritten.
pub(super) const CONNTRACK_DST_NAT: u32 = 0x20;

const LOOPBACK_V4: &str = "127.0.0.0/8";
const LOOPBACK_V6: &str = "::1/128";
const THIS_NETWORK_V4: &str = "0.0.0.0/8";
const LINK_LOCAL: &str = "fe80::/10";

const RAW_PRIORITY: i32 = -300;
pub(super) const MANGLE_PRIORITY: i32 = -150;
pub(super) const FILTER_PRIORITY: i32 = 0;

/// Renders the base chains and the chains that they share.
pub struct BaseChainRenderer<'s> {
    pub settings: &'s DataplaneSettings,
    pub workloads: WorkloadInterfaces<'s>,
    pub hooks: &'s HookRules,
    pub tunnels: TunnelRenderer<'s>,
}

impl BaseChainRenderer<'_> {
    /// Returns all chains. `source_nets` contains the families that have a set of source nets.
    pub fn chains(
        &self,
        service_ranges: &BTreeSet<IpNet>,
        source_nets: &[NftFamily],
    ) -> BTreeMap<String, NftChain> {
        let mut chains = BTreeMap::new();
        for (name, point, priority, rules) in [
            ("prerouting-raw", HookPoint::Prerouting, RAW_PRIORITY, self.prerouting()),
            ("pre-dnat", HookPoint::Prerouting, MANGLE_PRIORITY - 1, self.pre_dnat()),
            ("input", HookPoint::Input, POLICY_PRIORITY, self.input()),
            ("forward-host-in", HookPoint::Forward, POLICY_PRIORITY, self.forward_host_in()),
            ("forward-from", HookPoint::Forward, POLICY_PRIORITY + 1, self.forward_from()),
            ("forward-to", HookPoint::Forward, POLICY_PRIORITY + 2, self.forward_to()),
            ("forward-host-out", HookPoint::Forward, POLICY_PRIORITY + 3, self.hooks.forward_out.clone()),
            (
                "forward-services",
                HookPoint::Forward,
                FILTER_PRIORITY + 2,
                self.forward_services(service_ranges),
            ),
            ("output-raw", HookPoint::Output, RAW_PRIORITY, self.output_raw()),
            ("output", HookPoint::Output, POLICY_PRIORITY, self.output()),
            ("postrouting", HookPoint::Postrouting, MANGLE_PRIORITY, self.postrouting()),
            ("forward-mss", HookPoint::Forward, MANGLE_PRIORITY, self.forward_mss()),
            ("input-after", HookPoint::Input, POLICY_PRIORITY + 1, self.input_after()),
        ] {
            if !rules.is_empty() {
                let hook = Some(ChainHook::filter(point, priority));
                chains.insert(name.to_owned(), NftChain { hook, rules });
            }
        }
        for (name, hook, rules) in self.marking() {
            chains.insert(name.to_owned(), NftChain { hook: Some(hook), rules });
        }
        let mut shared = vec![
            ("workload-source", source_rules(&self.settings.policy, source_nets)),
            ("workload-to-host", self.workload_to_host()),
        ];
        if self.settings.policy.filter_allow == AllowAction::Accept {
            shared.push(("workload-allowed", self.workload_allowed()));
        }
        if self.closes_host() {
            shared.push(("host-closed", self.host_closed()));
        }
        for (name, rules) in shared {
            chains.insert(name.to_owned(), NftChain { hook: None, rules });
        }
        chains
    }

    fn closes_host(&self) -> bool {
        self.settings.policy.endpoint_to_host == EndpointToHostAction::Drop
    }

    /// Returns rules that apply the actions to packets from or to workload interfaces.
    pub(super) fn workloads(&self, field: NftField, comment: &str, actions: &[NftAction]) -> Vec<NftRule> {
        self.workloads.rules(field, comment, actions)
    }

    pub(super) fn accepted_bit(&self) -> u32 {
        self.settings.policy.marks.accepted
    }

    fn drop_untracked(&self, slot: FlowSlot, cause: &FlowCause) -> Vec<NftAction> {
        flow::drop_untracked(&self.settings.policy, slot, cause)
    }

    fn unmark(&self) -> Option<NftRule> {
        let may = self.hooks.may_accept_early();
        may.then(|| NftRule::new(Vec::new(), vec![NftAction::ClearMark(self.accepted_bit())]))
    }

    fn accepted(&self) -> Option<NftRule> {
        accepted_early(self.hooks.may_accept_early(), self.accepted_bit())
    }

    fn prerouting(&self) -> Vec<NftRule> {
        let workloads =
            self.workloads(NftField::InInterface, "", &[NftAction::Goto("workload-source".into())]);
        let untracked = self.tunnels.untracked().into_iter().chain(self.hooks.untracked_in.clone());
        let arrivals = self.settings.host_encryption.then(|| self.tunnels.open_arrivals());
        let arrivals = arrivals.into_iter().flatten();
        self.unmark().into_iter().chain(workloads).chain(arrivals).chain(untracked).collect()
    }

    fn pre_dnat(&self) -> Vec<NftRule> {
        if self.hooks.pre_dnat.is_empty() {
            return Vec::new();
        }
        self.accepted().into_iter().chain(self.hooks.pre_dnat.clone()).collect()
    }

    fn input(&self) -> Vec<NftRule> {
        let mut rules = self.tunnels.strangers(&self.settings.policy);
        rules.extend(self.workloads(
            NftField::InInterface,
            "",
            &[NftAction::Goto("workload-to-host".into())],
        ));
        if !self.hooks.input.is_empty() {
            rules.extend(self.tunnels.input());
            rules.extend(self.accepted());
            rules.extend(self.hooks.input.clone());
        }
        rules
    }

    fn input_after(&self) -> Vec<NftRule> {
        if !self.closes_host() {
            return Vec::new();
        }
        self.workloads(NftField::InInterface, "", &[NftAction::Goto("host-closed".into())])
    }

    fn forward_host_in(&self) -> Vec<NftRule> {
        if self.hooks.forward_in.is_empty() {
            return Vec::new();
        }
        self.accepted().into_iter().chain(self.hooks.forward_in.clone()).collect()
    }

    fn forward_from(&self) -> Vec<NftRule> {
        let unknown = self.drop_untracked(FlowSlot::Egress, &FlowCause::UnknownWorkload);
        let mut rules = vec![dispatch(NftField::InInterface, names::FROM_WORKLOAD_MAP)];
        rules.extend(self.workloads(NftField::InInterface, "from an unknown workload", &unknown));
        rules
    }

    fn forward_to(&self) -> Vec<NftRule> {
        let unknown = self.drop_untracked(FlowSlot::Ingress, &FlowCause::UnknownWorkload);
        let mut rules = vec![dispatch(NftField::OutInterface, names::TO_WORKLOAD_MAP)];
        rules.extend(self.workloads(NftField::OutInterface, "to an unknown workload", &unknown));
        rules
    }

    /// Denies packets that are still addressed to a service: service destinations are rewritten before this chain, so
    /// the service does not exist, and forwarding the packet could only cause a routing loop.
    fn forward_services(&self, ranges: &BTreeSet<IpNet>) -> Vec<NftRule> {
        let Some(action) = self.settings.policy.service_loop.filter(|_| !ranges.is_empty()) else {
            return Vec::new();
        };
        let denial = match action {
            DenyAction::Drop => NftAction::Drop,
            DenyAction::Reject => NftAction::Reject,
        };
        let (stage, direction) = (PolicyStage::Forward, PolicyDirection::Egress);
        let label = flow::label_of_end(&self.settings.policy, stage, direction, &FlowCause::ServiceLoop);
        let deny = flow::deny_labelled(denial, label);
        let known = NftMatch::connection(state::ESTABLISHED | state::RELATED);
        let mut rules = vec![NftRule::new(vec![known], vec![NftAction::Accept])];
        for family in NftFamily::BOTH {
            let ranges = ranges::from_nets(ranges, family);
            if !ranges.is_empty() {
                let to_them = NftMatch::new(NftField::Destination(family), NftTest::Within(ranges));
                let actions = [vec![NftAction::Count], deny.clone()].concat();
                rules.push(
                    NftRule::new(vec![NftMatch::family(family), to_them], actions).says("no such service"),
                );
            }
        }
        rules
    }

    /// Clamps the MSS option of SYN packets to the path MTU.
    fn forward_mss(&self) -> Vec<NftRule> {
        const TCP: u8 = 6;
        const SYN: u32 = 2;
        if !self.settings.clamp_mss {
            return Vec::new();
        }
        let begins =
            [NftMatch::is(NftField::Protocol, [TCP]), NftMatch::new(NftField::TcpFlags, NftTest::Any(SYN))];
        let mut rules = Vec::new();
        for field in [NftField::InInterface, NftField::OutInterface] {
            for workload in self.workloads.conditions(field) {
                let matches = [vec![workload], begins.to_vec()].concat();
                rules.push(NftRule::new(matches, vec![NftAction::ClampMss]));
            }
        }
        rules
    }

    fn output_raw(&self) -> Vec<NftRule> {
        let mut rules: Vec<NftRule> = self.unmark().into_iter().chain(self.tunnels.untracked()).collect();
        if !self.hooks.untracked_out.is_empty() {
            rules.extend(self.workloads(
                NftField::OutInterface,
                "the host reaches its workloads",
                &[NftAction::Accept],
            ));
            rules.extend(self.hooks.untracked_out.clone());
        }
        rules
    }

    fn output(&self) -> Vec<NftRule> {
        if self.hooks.output.is_empty() {
            return Vec::new();
        }
        let mut rules =
            self.workloads(NftField::OutInterface, "the host reaches its workloads", &[NftAction::Accept]);
        rules.extend(self.accepted());
        let rewritten = NftMatch::new(NftField::ConnectionStatus, NftTest::Any(CONNTRACK_DST_NAT));
        rules
            .push(NftRule::new(vec![rewritten], vec![NftAction::Accept]).says("asked when its way is known"));
        rules.extend(self.tunnels.output());
        rules.extend(self.hooks.output.clone());
        rules
    }

    /// Returns the rules for packets from the host with a rewritten destination: their egress interface is known only
    /// now.
    fn postrouting(&self) -> Vec<NftRule> {
        if self.hooks.output.is_empty() {
            return Vec::new();
        }
        let from_host = NftMatch::is(NftField::InIndex, [0; 4]);
        let rewritten = NftMatch::new(NftField::ConnectionStatus, NftTest::Any(CONNTRACK_DST_NAT));
        let mut rules = vec![
            NftRule::new(vec![from_host.not()], vec![NftAction::Accept]).says("not from the host"),
            NftRule::new(vec![rewritten.not()], vec![NftAction::Accept]),
        ];
        rules.extend(self.workloads(
            NftField::OutInterface,
            "the host reaches its workloads",
            &[NftAction::Accept],
        ));
        rules.extend(self.accepted());
        // Tunnel packets are untracked, so the check for a rewritten destination above does not cover them.
        rules.extend(self.tunnels.output());
        rules.extend(self.hooks.output.clone());
        rules
    }

    fn workload_to_host(&self) -> Vec<NftRule> {
        let mut rules = Vec::new();
        if self.settings.policy.drop_invalid {
            let invalid = NftMatch::connection(state::INVALID);
            let drop = self.drop_untracked(FlowSlot::Egress, &FlowCause::InvalidConnection);
            rules.push(NftRule::new(vec![invalid], drop).says("invalid"));
        }
        rules.extend(metadata::accepted(self.settings.policy.metadata));
        rules.extend([
            discovery(),
            dispatch(NftField::InInterface, names::FROM_WORKLOAD_MAP),
            NftRule::new(Vec::new(), self.drop_untracked(FlowSlot::Egress, &FlowCause::UnknownWorkload))
                .says("from an unknown workload"),
        ]);
        rules
    }

    fn host_closed(&self) -> Vec<NftRule> {
        let known = NftMatch::connection(state::ESTABLISHED | state::RELATED);
        let mut rules = vec![NftRule::new(vec![known], vec![NftAction::Accept])];
        rules.extend(metadata::accepted(self.settings.policy.metadata));
        let drop = flow::drop_tracked(&self.settings.policy, FlowSlot::Ingress, &FlowCause::ClosedHost);
        let closed = NftRule::new(Vec::new(), drop).says("the host is closed to workloads");
        rules.extend([discovery(), closed]);
        rules
    }
}

fn dispatch(field: NftField, map: &str) -> NftRule {
    NftRule::new(Vec::new(), vec![NftAction::Dispatch { fields: vec![field], map: map.into() }])
}

pub(super) fn discovery() -> NftRule {
    let kinds = ranges::from_bytes(&NEIGHBOUR_DISCOVERY);
    let matches = vec![
        NftMatch::family(NftFamily::V6),
        NftMatch::is(NftField::Protocol, [NftFamily::V6.icmp()]),
        NftMatch::new(NftField::IcmpType, NftTest::Within(kinds)),
    ];
    NftRule::new(matches, vec![NftAction::Accept]).says("neighbour discovery")
}

/// Drops packets to link-local addresses of other hosts, which must not be forwarded. If they were sent back to their
/// link, each address would become an entry in the host's neighbour table.
fn not_forwarded(settings: &PolicySettings) -> NftRule {
    const ADDRESS_TYPE_LOCAL: u32 = 2;
    let matches = vec![
        NftMatch::family(NftFamily::V6),
        within(NftField::Destination(NftFamily::V6), LINK_LOCAL),
        NftMatch::is(NftField::DestinationType, ADDRESS_TYPE_LOCAL.to_ne_bytes()).not(),
    ];
    NftRule::new(matches, flow::drop_untracked(settings, FlowSlot::Egress, &FlowCause::LinkLocal))
        .says("link-local addresses are not forwarded to")
}

fn within(field: NftField, net: &str) -> NftMatch {
    let family = match field {
        NftField::Source(family) | NftField::Destination(family) => family,
        _ => NftFamily::V4,
    };
    let net: Option<IpNet> = net.parse().ok();
    NftMatch::new(field, NftTest::Within(ranges::from_nets(net.iter(), family)))
}

/// Returns the rules that restrict the sources of workloads. They accept only a workload's own addresses and those
/// routed to it, and no packets to or from the host's loopback: those would be delivered if `route_localnet` is set or
/// if a destination is rewritten.
fn source_rules(settings: &PolicySettings, source_nets: &[NftFamily]) -> Vec<NftRule> {
    let mut rules = Vec::new();
    for (family, loopback) in [(NftFamily::V4, LOOPBACK_V4), (NftFamily::V6, LOOPBACK_V6)] {
        let mut fields = vec![NftField::Destination(family)];
        // Without a set of source nets, the lookups below match no such source.
        if source_nets.contains(&family) {
            fields.push(NftField::Source(family));
        }
        for field in fields {
            let matches = vec![NftMatch::family(family), within(field, loopback)];
            let drop = flow::drop_untracked(settings, FlowSlot::Egress, &FlowCause::Loopback);
            rules.push(NftRule::new(matches, drop).says("the loopback of the host"));
        }
    }
    rules.push(not_forwarded(settings));
    for family in NftFamily::BOTH {
        let mut sets = vec![names::sources(family)];
        if source_nets.contains(&family) {
            sets.push(names::source_nets(family));
        }
        for set in sets {
            let fields = [NftField::InInterface, NftField::Source(family)];
            let matches = vec![NftMatch::family(family), NftMatch::lookup(fields, set)];
            rules.push(NftRule::new(matches, vec![NftAction::Accept]));
        }
    }
    // Addresses that another program routes to the workload are also valid sources. Link-local addresses and 0.0.0.0/8
    // are excluded, as no route identifies their owner.
    for (family, without) in [(NftFamily::V4, THIS_NETWORK_V4), (NftFamily::V6, LINK_LOCAL)] {
        let matches = vec![
            NftMatch::family(family),
            NftMatch::lookup([NftField::InInterface], names::UP_WORKLOADS_SET),
            within(NftField::Source(family), without).not(),
            NftMatch::is(NftField::ReturnInterface, [0; 4]).not(),
        ];
        rules.push(NftRule::new(matches, vec![NftAction::Accept]).says("routed to the workload"));
    }
    let drop = flow::drop_untracked(settings, FlowSlot::Egress, &FlowCause::Spoofed);
    rules.push(NftRule::new(Vec::new(), drop).says("not a source of the workload"));
    rules
}
