//! Marks packets that policy has allowed, after all policy chains and before the filter chains of other programs. An
//! `accept` in our chain ends only that chain; the mark lets rules in foreign chains recognise packets that they must
//! not drop.

use super::super::rule::{Action, Field, Match, Rule, Test, state};
use super::super::table::{Hook, Point};
use super::entry::{DNAT, Entry, FILTER, MANGLE, discovery};
use super::metadata;
use std::ops::Range;
use tortie_plan::{AllowAction, EndpointToHost};

/// Priority of the first policy chain: all policy is evaluated before other programs filter.
pub(crate) const POLICY: i32 = FILTER - 10;
/// Priority behind the last policy chain.
const MARK: i32 = FILTER - 5;
/// Priority of the security tables for mandatory access control, whose verdicts we never override.
const SECURITY: i32 = 50;
const TRANSLATE: i32 = -100;

/// A hook at which packets that policy has allowed carry the mark, and the priorities of foreign chains that see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub point: Point,
    /// Priorities of chains that run after ours.
    pub priorities: Range<i32>,
    /// The mark.
    pub bits: u32,
}

impl Entry<'_> {
    /// Returns the chains that set the mark: name, hook, rules.
    pub(super) fn marking(&self) -> Vec<(&'static str, Hook, Vec<Rule>)> {
        if self.settings.policy.filter_allow == AllowAction::Return {
            return Vec::new();
        }
        let chains = [
            ("input-allowed", Point::Input, self.input_allowed()),
            ("forward-allowed", Point::Forward, self.forward_allowed()),
            ("output-allowed", Point::Output, self.output_allowed()),
        ];
        let marking = chains.into_iter().filter(|(_, _, rules)| !rules.is_empty());
        marking.map(|(name, point, rules)| (name, Hook::filter(point, MARK), rules)).collect()
    }

    /// Returns the hooks and priorities at which packets carry the mark.
    pub(super) fn allowed(&self) -> Vec<Allowed> {
        let bits = self.accepted_bit();
        let filtered = self.marking().into_iter();
        let mut allowed: Vec<Allowed> = filtered
            .map(|(_, hook, _)| Allowed { point: hook.point, priorities: MARK + 1..SECURITY, bits })
            .collect();
        if self.settings.policy.mangle_allow == AllowAction::Accept && self.hooks.may_accept_early() {
            allowed.push(Allowed { point: Point::Prerouting, priorities: MANGLE..TRANSLATE, bits });
        }
        allowed
    }

    /// Clears a mark that another program has set. If host endpoints mark packets early, it is cleared before that.
    fn begin(&self) -> Vec<Rule> {
        let early = self.hooks.may_accept_early();
        let clear = (!early).then(|| Rule::new(Vec::new(), vec![Action::ClearMark(self.accepted_bit())]));
        clear.into_iter().collect()
    }

    fn forward_allowed(&self) -> Vec<Rule> {
        let mut rules = self.begin();
        for field in [Field::InInterface, Field::OutInterface] {
            rules.extend(self.workloads(field, "", &[self.allow()]));
            rules.extend(self.at_host_endpoints(field));
        }
        rules
    }

    fn input_allowed(&self) -> Vec<Rule> {
        let mut rules = self.begin();
        rules.extend(self.workloads(Field::InInterface, "", &[Action::Goto("workload-allowed".into())]));
        rules.extend(self.tunnels.input().into_iter().map(|rule| self.allowing(rule)));
        rules.extend(self.at_host_endpoints(Field::InInterface));
        rules
    }

    /// Returns the rules for packets from workloads to the host. Unless the setting accepts them, the host's own rules
    /// decide about new connections.
    pub(super) fn workload_allowed(&self) -> Vec<Rule> {
        if self.settings.policy.endpoint_to_host == EndpointToHost::Accept {
            return vec![Rule::new(Vec::new(), vec![self.allow()])];
        }
        let known = Match::connection(state::ESTABLISHED | state::RELATED);
        let service = metadata::accepted(self.settings.policy.metadata);
        let further = service.into_iter().chain([discovery()]).map(|rule| self.allowing(rule));
        std::iter::once(Rule::new(vec![known], vec![self.allow()])).chain(further).collect()
    }

    /// Returns the rules for packets that the host sends. Packets to workloads are not subject to policy, and packets
    /// with a rewritten destination are evaluated later.
    fn output_allowed(&self) -> Vec<Rule> {
        let tunnels = self.tunnels.output().into_iter().map(|rule| self.allowing(rule));
        let allowed: Vec<Rule> = tunnels.chain(self.at_host_endpoints(Field::OutInterface)).collect();
        if allowed.is_empty() {
            return Vec::new();
        }
        let mut rules = self.begin();
        rules.extend(self.workloads(Field::OutInterface, "", &[Action::Accept]));
        let rewritten = Match::new(Field::ConnectionStatus, Test::Any(DNAT));
        rules.push(Rule::new(vec![rewritten], vec![Action::Accept]));
        rules.extend(allowed);
        rules
    }

    fn allow(&self) -> Action {
        Action::SetMark(self.accepted_bit())
    }

    /// Returns a rule that marks the packets which the given rule matches.
    fn allowing(&self, rule: Rule) -> Rule {
        Rule { actions: vec![self.allow()], ..rule }
    }

    fn at_host_endpoints(&self, field: Field) -> impl Iterator<Item = Rule> + use<> {
        let allow = self.allow();
        self.hooks
            .covered
            .conditions(field)
            .into_iter()
            .map(move |matches| Rule::new(matches, vec![allow.clone()]))
    }
}
