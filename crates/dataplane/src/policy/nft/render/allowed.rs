//! What policy has allowed gets a mark, behind all that is asked and before others filter: an `accept` of ours ends a chain
//! of ours alone, so it is by the mark that chains of others know what is not theirs to drop.

use super::super::rule::{Action, Field, Match, Rule, Test, state};
use super::super::table::{Hook, Point};
use super::entry::{DNAT, Entry, FILTER, MANGLE, discovery};
use super::metadata;
use std::ops::Range;
use tortie_plan::{AllowAction, EndpointToHost};

/// Where the questions of policy begin: all of them are answered before others filter.
pub(crate) const POLICY: i32 = FILTER - 10;
/// Behind the last of them.
const MARK: i32 = FILTER - 5;
/// The tables of mandatory access control, which nobody overrules, begin here.
const SECURITY: i32 = 50;
const TRANSLATE: i32 = -100;

/// A place where packets that policy has allowed have the mark, and where the chains of others may stand that see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub point: Point,
    /// Of chains that come behind ours.
    pub priorities: Range<i32>,
    /// The mark.
    pub bits: u32,
}

impl Entry<'_> {
    /// The chains that mark: name, where the kernel enters them, rules.
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

    /// Where marks are to be seen.
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

    /// A mark that somebody else has set is none. Where host endpoints mark packets early, that is seen to before.
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

    /// What workloads send to the host. Unless the host is open to them, its own rules judge what begins.
    pub(super) fn workload_allowed(&self) -> Vec<Rule> {
        if self.settings.policy.endpoint_to_host == EndpointToHost::Accept {
            return vec![Rule::new(Vec::new(), vec![self.allow()])];
        }
        let known = Match::connection(state::ESTABLISHED | state::RELATED);
        let service = metadata::accepted(self.settings.policy.metadata);
        let further = service.into_iter().chain([discovery()]).map(|rule| self.allowing(rule));
        std::iter::once(Rule::new(vec![known], vec![self.allow()])).chain(further).collect()
    }

    /// What the host sends. Nobody asks what it sends to workloads, and what has a rewritten destination is asked later.
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

    /// The same packets, marked.
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
