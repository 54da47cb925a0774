//! Marks packets that policy has allowed, after all policy chains and before the filter chains of other programs. An
//! `accept` in our chain ends only that chain; the mark lets rules in foreign chains recognise packets that they must
//! not drop.

use super::super::rule::{NftAction, NftField, NftMatch, NftRule, NftTest, state};
use super::super::table::{ChainHook, HookPoint};
use super::entry::{BaseChainRenderer, CONNTRACK_DST_NAT, FILTER_PRIORITY, MANGLE_PRIORITY, discovery};
use super::metadata;
use std::ops::Range;
use tortie_plan::{AllowAction, EndpointToHostAction};

/// Priority of the first policy chain: all policy is evaluated before other programs filter.
pub const POLICY_PRIORITY: i32 = FILTER_PRIORITY - 10;
/// Priority behind the last policy chain.
const MARK_PRIORITY: i32 = FILTER_PRIORITY - 5;
/// Priority of the security tables for mandatory access control, whose verdicts we never override.
const SECURITY_PRIORITY: i32 = 50;
const DNAT_PRIORITY: i32 = -100;

/// A hook at which packets that policy has allowed carry the mark, and the priorities of foreign chains that see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkedHook {
    pub point: HookPoint,
    /// Priorities of chains that run after ours.
    pub priorities: Range<i32>,
    /// The mark.
    pub bits: u32,
}

impl BaseChainRenderer<'_> {
    /// Returns the chains that set the mark: name, hook, rules.
    pub(super) fn marking(&self) -> Vec<(&'static str, ChainHook, Vec<NftRule>)> {
        if self.settings.policy.filter_allow == AllowAction::Return {
            return Vec::new();
        }
        let chains = [
            ("input-allowed", HookPoint::Input, self.input_allowed()),
            ("forward-allowed", HookPoint::Forward, self.forward_allowed()),
            ("output-allowed", HookPoint::Output, self.output_allowed()),
        ];
        let marking = chains.into_iter().filter(|(_, _, rules)| !rules.is_empty());
        marking.map(|(name, point, rules)| (name, ChainHook::filter(point, MARK_PRIORITY), rules)).collect()
    }

    /// Returns the hooks and priorities at which packets carry the mark.
    pub fn allowed(&self) -> Vec<MarkedHook> {
        let bits = self.accepted_bit();
        let filtered = self.marking().into_iter();
        let mut allowed: Vec<MarkedHook> = filtered
            .map(|(_, hook, _)| MarkedHook {
                point: hook.point,
                priorities: MARK_PRIORITY + 1..SECURITY_PRIORITY,
                bits,
            })
            .collect();
        if self.settings.policy.mangle_allow == AllowAction::Accept && self.hooks.may_accept_early() {
            allowed.push(MarkedHook {
                point: HookPoint::Prerouting,
                priorities: MANGLE_PRIORITY..DNAT_PRIORITY,
                bits,
            });
        }
        allowed
    }

    /// Clears a mark that another program has set. If host endpoints mark packets early, it is cleared before that.
    fn begin(&self) -> Vec<NftRule> {
        let early = self.hooks.may_accept_early();
        let clear =
            (!early).then(|| NftRule::new(Vec::new(), vec![NftAction::ClearMark(self.accepted_bit())]));
        clear.into_iter().collect()
    }

    fn forward_allowed(&self) -> Vec<NftRule> {
        let mut rules = self.begin();
        for field in [NftField::InInterface, NftField::OutInterface] {
            rules.extend(self.workloads(field, "", &[self.allow()]));
            rules.extend(self.at_host_endpoints(field));
        }
        rules
    }

    fn input_allowed(&self) -> Vec<NftRule> {
        let mut rules = self.begin();
        rules.extend(self.workloads(
            NftField::InInterface,
            "",
            &[NftAction::Goto("workload-allowed".into())],
        ));
        rules.extend(self.tunnels.input().into_iter().map(|rule| self.allowing(rule)));
        rules.extend(self.at_host_endpoints(NftField::InInterface));
        rules
    }

    /// Returns the rules for packets from workloads to the host. Unless the setting accepts them, the host's own rules
    /// decide about new connections.
    pub(super) fn workload_allowed(&self) -> Vec<NftRule> {
        if self.settings.policy.endpoint_to_host == EndpointToHostAction::Accept {
            return vec![NftRule::new(Vec::new(), vec![self.allow()])];
        }
        let known = NftMatch::connection(state::ESTABLISHED | state::RELATED);
        let service = metadata::accepted(self.settings.policy.metadata);
        let further = service.into_iter().chain([discovery()]).map(|rule| self.allowing(rule));
        std::iter::once(NftRule::new(vec![known], vec![self.allow()])).chain(further).collect()
    }

    /// Returns the rules for packets that the host sends. Packets to workloads are not subject to policy, and packets
    /// with a rewritten destination are evaluated later.
    fn output_allowed(&self) -> Vec<NftRule> {
        let tunnels = self.tunnels.output().into_iter().map(|rule| self.allowing(rule));
        let allowed: Vec<NftRule> = tunnels.chain(self.at_host_endpoints(NftField::OutInterface)).collect();
        if allowed.is_empty() {
            return Vec::new();
        }
        let mut rules = self.begin();
        rules.extend(self.workloads(NftField::OutInterface, "", &[NftAction::Accept]));
        let rewritten = NftMatch::new(NftField::ConnectionStatus, NftTest::Any(CONNTRACK_DST_NAT));
        rules.push(NftRule::new(vec![rewritten], vec![NftAction::Accept]));
        rules.extend(allowed);
        rules
    }

    fn allow(&self) -> NftAction {
        NftAction::SetMark(self.accepted_bit())
    }

    /// Returns a rule that marks the packets which the given rule matches.
    fn allowing(&self, rule: NftRule) -> NftRule {
        NftRule { actions: vec![self.allow()], ..rule }
    }

    fn at_host_endpoints(&self, field: NftField) -> impl Iterator<Item = NftRule> + use<> {
        let allow = self.allow();
        self.hooks
            .covered
            .conditions(field)
            .into_iter()
            .map(move |matches| NftRule::new(matches, vec![allow.clone()]))
    }
}
