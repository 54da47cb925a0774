//! Evaluates filters. Each distinct name and policy trace is compared once per query.

use super::FlowRing;
use super::intern::{InternId, InternTable};
use super::key::{FlowKey, decode_trace};
use crate::proto::{
    Action, Filter, MatchType, PolicyHit, PolicyKind, PolicyMatch, PolicyTrace, Reporter, StringMatch,
};

/// Names under which whisker-backend shows addresses outside the cluster, with those that flows have.
pub const NETWORK_NAMES: [(&str, &str); 2] = [("PUBLIC NETWORK", "pub"), ("PRIVATE NETWORK", "pvt")];
/// Namespace of objects without one.
pub const NO_NAMESPACE: &str = "-";

/// A filter with the results for the names and traces that were compared so far.
pub struct FilterMatcher<'a> {
    names: &'a InternTable,
    traces: &'a InternTable,
    filter: &'a Filter,
    source_names: MatchMemo,
    source_namespaces: MatchMemo,
    dest_names: MatchMemo,
    dest_namespaces: MatchMemo,
    protocols: MatchMemo,
    by_trace: MatchMemo,
}

/// Results by interned number.
#[derive(Default)]
struct MatchMemo(Vec<Option<bool>>);

impl MatchMemo {
    fn get_or(&mut self, id: InternId, capacity: usize, compare: impl FnOnce() -> bool) -> bool {
        if self.0.is_empty() {
            self.0.resize(capacity, None);
        }
        let Some(known) = self.0.get_mut(id.index()) else { return compare() };
        *known.get_or_insert_with(compare)
    }
}

impl<'a> FilterMatcher<'a> {
    pub fn new(ring: &'a FlowRing, filter: &'a Filter) -> FilterMatcher<'a> {
        FilterMatcher {
            names: &ring.names,
            traces: &ring.traces,
            filter,
            source_names: MatchMemo::default(),
            source_namespaces: MatchMemo::default(),
            dest_names: MatchMemo::default(),
            dest_namespaces: MatchMemo::default(),
            protocols: MatchMemo::default(),
            by_trace: MatchMemo::default(),
        }
    }

    pub fn matches(&mut self, key: &FlowKey) -> bool {
        let (filter, names) = (self.filter, self.names);
        if filter.reporter != 0 && filter.reporter != i32::from(key.reporter) {
            return false;
        }
        if !filter.actions.is_empty() && !filter.actions.contains(&i32::from(key.action)) {
            return false;
        }
        let port = i64::from(key.dest_port);
        if !filter.dest_ports.is_empty() && !filter.dest_ports.iter().any(|wanted| wanted.port == port) {
            return false;
        }
        match_name(&mut self.source_namespaces, names, &filter.source_namespaces, key.source_namespace)
            && match_name(&mut self.dest_namespaces, names, &filter.dest_namespaces, key.dest_namespace)
            && match_name(&mut self.source_names, names, &filter.source_names, key.source_name)
            && match_name(&mut self.dest_names, names, &filter.dest_names, key.dest_name)
            && match_name(&mut self.protocols, names, &filter.protocols, key.protocol)
            && self.matches_trace(key.trace)
    }

    fn matches_trace(&mut self, trace: InternId) -> bool {
        let (filter, traces) = (self.filter, self.traces);
        if filter.policies.is_empty() && filter.pending_actions.is_empty() {
            return true;
        }
        self.by_trace.get_or(trace, traces.capacity(), || {
            let trace = decode_trace(traces.get(trace));
            let policies = filter.policies.is_empty()
                || filter.policies.iter().any(|wanted| all_hits(&trace).any(|hit| match_hit(wanted, hit)));
            let pending = &trace.pending_policies;
            policies
                && (filter.pending_actions.is_empty()
                    || pending.iter().any(|hit| filter.pending_actions.contains(&hit.action)))
        })
    }
}

fn match_name(memo: &mut MatchMemo, names: &InternTable, wanted: &[StringMatch], id: InternId) -> bool {
    wanted.is_empty()
        || memo.get_or(id, names.capacity(), || wanted.iter().any(|one| match_text(one, names.text(id))))
}

/// Returns whether a text matches; the comparison is case-sensitive.
pub fn match_text(wanted: &StringMatch, text: &str) -> bool {
    let is_shown_name = NETWORK_NAMES.iter().any(|(shown, stored)| wanted.value == *shown && text == *stored);
    is_shown_name
        || match wanted.r#type() {
            MatchType::Exact => wanted.value == text,
            MatchType::Fuzzy => text.contains(&wanted.value),
        }
}

/// Returns the enforced and the pending hits, without triggers.
pub fn all_hits(trace: &PolicyTrace) -> impl Iterator<Item = &PolicyHit> {
    trace.enforced_policies.iter().chain(&trace.pending_policies)
}

/// Returns whether all given fields hold for a hit. A hit of a global policy has an empty namespace, which the namespace
/// `-` matches.
pub fn match_hit(wanted: &PolicyMatch, hit: &PolicyHit) -> bool {
    let namespace = if hit.namespace.is_empty() { NO_NAMESPACE } else { &hit.namespace };
    (wanted.kind == 0 || wanted.kind == hit.kind)
        && (wanted.action == 0 || wanted.action == hit.action)
        && (wanted.tier.is_empty() || wanted.tier == hit.tier)
        && (wanted.name.is_empty() || wanted.name == hit.name)
        && (wanted.namespace.is_empty() || wanted.namespace == namespace)
}

/// A value of a filter that the protocol does not define. It would match nothing, or be ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter: {field}: the value {value} is unknown")]
pub struct FilterError {
    pub field: &'static str,
    pub value: i32,
}

/// Checks the enumerations of a filter.
pub fn check_filter(filter: &Filter) -> Result<(), FilterError> {
    for (field, wanted) in [
        ("source_names", &filter.source_names),
        ("source_namespaces", &filter.source_namespaces),
        ("dest_names", &filter.dest_names),
        ("dest_namespaces", &filter.dest_namespaces),
        ("protocols", &filter.protocols),
    ] {
        for one in wanted {
            MatchType::try_from(one.r#type).map_err(|_| FilterError { field, value: one.r#type })?;
        }
    }
    for (field, actions) in [("actions", &filter.actions), ("pending_actions", &filter.pending_actions)] {
        for action in actions {
            Action::try_from(*action).map_err(|_| FilterError { field, value: *action })?;
        }
    }
    Reporter::try_from(filter.reporter)
        .map_err(|_| FilterError { field: "reporter", value: filter.reporter })?;
    filter.policies.iter().try_for_each(check_policy_match)
}

pub fn check_policy_match(wanted: &PolicyMatch) -> Result<(), FilterError> {
    PolicyKind::try_from(wanted.kind)
        .map_err(|_| FilterError { field: "kind of policies", value: wanted.kind })?;
    Action::try_from(wanted.action)
        .map_err(|_| FilterError { field: "action of policies", value: wanted.action })?;
    Ok(())
}
