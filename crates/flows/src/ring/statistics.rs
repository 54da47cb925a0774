//! Statistics: what each policy or rule allowed, denied and passed.

use super::filter::{check_policy_match, match_hit};
use super::intern::InternId;
use super::key::decode_trace;
use super::query::{MAX_RESULT_BYTES, QueryError};
use super::sample::{BucketNumber, FlowCounters, clamp};
use super::window::TimeWindow;
use super::{FlowRing, FlowSlot};
use crate::proto::{
    Action, Filter, PolicyHit, PolicyKind, PolicyMatch, PolicyTrace, Reporter, RuleDirection, StatisticType,
    StatisticsGroupBy, StatisticsRequest, StatisticsResult,
};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Size of one point of a result: the time and six sums.
const POINT_BYTES: usize = 7 * size_of::<i64>();

#[derive(Clone, Debug)]
pub struct StatisticsQuery {
    window: TimeWindow,
    kind: StatisticType,
    group_by: StatisticsGroupBy,
    policy: PolicyMatch,
    time_series: bool,
}

impl StatisticsQuery {
    pub fn new(request: StatisticsRequest) -> Result<StatisticsQuery, QueryError> {
        let policy = request.policy_match.unwrap_or_default();
        check_policy_match(&policy)?;
        let unknown = |field, value| QueryError::Unknown { field, value };
        let kind = StatisticType::try_from(request.r#type).map_err(|_| unknown("type", request.r#type))?;
        let group_by = StatisticsGroupBy::try_from(request.group_by)
            .map_err(|_| unknown("group_by", request.group_by))?;
        let window = TimeWindow { gte: request.start_time_gte, lt: request.start_time_lt };
        Ok(StatisticsQuery { window, kind, group_by, policy, time_series: request.time_series })
    }
}

/// Identity of a group: tier, namespace, name, kind, and for rules action, index and direction.
type GroupKey = (String, String, String, i32, Option<(i32, i64, i32)>);

/// Sums by action and direction, for each bucket or for the whole window.
#[derive(Default)]
struct GroupSums(BTreeMap<BucketNumber, [[u64; 2]; 3]>);

impl FlowRing {
    /// Sums the flows that each policy or rule decided. A hit at the end of a tier counts for its trigger; of the pending
    /// hits only those of staged policies count, because the others repeat enforced ones.
    pub fn collect_statistics(
        &self,
        query: &StatisticsQuery,
        now: i64,
    ) -> Result<Vec<StatisticsResult>, QueryError> {
        let buckets = query.window.buckets(self, now);
        let points = if query.time_series { buckets.len() } else { 1 };
        let mut bytes = 0;
        let mut groups: HashMap<GroupKey, usize> = HashMap::new();
        let mut sums: Vec<GroupSums> = Vec::new();
        // The groups and actions of each trace and reporter.
        let mut known: HashMap<(InternId, u8), Vec<(usize, usize)>> = HashMap::new();
        let everything = Filter::default();
        self.visit_matching(&everything, &buckets, |_, slot, samples| {
            if bytes > MAX_RESULT_BYTES {
                return;
            }
            let memo = known.entry((slot.key.trace, slot.key.reporter)).or_insert_with(|| {
                let trace = decode_trace(self.traces.get(slot.key.trace));
                let mut found = Vec::new();
                for (key, action) in list_groups(query, &trace, slot.key.reporter) {
                    let group_bytes = estimate_group(&key, points);
                    let group = *groups.entry(key).or_insert(sums.len());
                    if group == sums.len() {
                        sums.push(GroupSums::default());
                        bytes += group_bytes;
                    }
                    found.push((group, action));
                }
                found
            });
            for (group, action) in memo.iter() {
                sums[*group].add_samples(query, *action, slot, samples.clone(), buckets.start);
            }
        });
        if bytes > MAX_RESULT_BYTES {
            return Err(QueryError::TooLarge);
        }
        let mut groups: Vec<(GroupKey, usize)> = groups.into_iter().collect();
        groups.sort_unstable();
        let results =
            groups.into_iter().map(|(key, group)| self.render_group(query, key, &sums[group], &buckets));
        Ok(results.collect())
    }

    fn render_group(
        &self,
        query: &StatisticsQuery,
        key: GroupKey,
        sums: &GroupSums,
        buckets: &Range<BucketNumber>,
    ) -> StatisticsResult {
        let (tier, namespace, name, kind, rule) = key;
        let (action, rule_index, direction) = rule.unwrap_or_default();
        let policy = PolicyHit { tier, namespace, name, kind, action, rule_index, ..PolicyHit::default() };
        let mut result = StatisticsResult {
            policy: Some(policy),
            direction,
            group_by: query.group_by.into(),
            r#type: query.kind.into(),
            ..StatisticsResult::default()
        };
        let points = if query.time_series { buckets.clone() } else { buckets.start..buckets.start + 1 };
        for bucket in points {
            let [allowed, denied, passed] = sums.0.get(&bucket).copied().unwrap_or_default();
            result.allowed_in.push(clamp(allowed[0]));
            result.allowed_out.push(clamp(allowed[1]));
            result.denied_in.push(clamp(denied[0]));
            result.denied_out.push(clamp(denied[1]));
            result.passed_in.push(clamp(passed[0]));
            result.passed_out.push(clamp(passed[1]));
            if query.time_series {
                result.x.push(self.start_of(bucket));
            }
        }
        result
    }
}

/// Returns the estimated size of the result of a group.
fn estimate_group(key: &GroupKey, points: usize) -> usize {
    let (tier, namespace, name, ..) = key;
    size_of::<StatisticsResult>() + tier.len() + namespace.len() + name.len() + points * POINT_BYTES
}

/// Returns the groups that a trace belongs to, each once per action, with the position of the action's sums.
fn list_groups(query: &StatisticsQuery, trace: &PolicyTrace, reporter: u8) -> Vec<(GroupKey, usize)> {
    let pending = trace.pending_policies.iter().filter(|hit| is_staged(hit));
    let mut found = Vec::new();
    for hit in trace.enforced_policies.iter().chain(pending) {
        let place = match hit.action() {
            Action::Allow => 0,
            Action::Deny => 1,
            Action::Pass => 2,
            Action::Unspecified => continue,
        };
        let owner = hit.trigger.as_deref().unwrap_or(hit);
        if !match_hit(&PolicyMatch { action: 0, ..query.policy.clone() }, owner)
            || (query.policy.action != 0 && query.policy.action != hit.action)
        {
            continue;
        }
        let rule = match query.group_by {
            StatisticsGroupBy::Policy => None,
            StatisticsGroupBy::PolicyRule => {
                Some((hit.action, hit.rule_index, i32::from(direction_of(reporter))))
            }
        };
        let key = (owner.tier.clone(), owner.namespace.clone(), owner.name.clone(), owner.kind, rule);
        if !found.contains(&(key.clone(), place)) {
            found.push((key, place));
        }
    }
    found
}

fn is_staged(hit: &PolicyHit) -> bool {
    let kind = hit.trigger.as_deref().unwrap_or(hit).kind();
    matches!(
        kind,
        PolicyKind::StagedNetworkPolicy
            | PolicyKind::StagedGlobalNetworkPolicy
            | PolicyKind::StagedKubernetesNetworkPolicy
    )
}

/// Returns the direction of the rules that the reporter of a flow evaluated.
fn direction_of(reporter: u8) -> RuleDirection {
    match Reporter::try_from(i32::from(reporter)) {
        Ok(Reporter::Dst) => RuleDirection::Ingress,
        Ok(Reporter::Src) => RuleDirection::Egress,
        _ => RuleDirection::Any,
    }
}

impl GroupSums {
    fn add_samples(
        &mut self,
        query: &StatisticsQuery,
        action: usize,
        slot: &FlowSlot,
        samples: Range<usize>,
        first: BucketNumber,
    ) {
        for sample in &slot.samples[samples] {
            let bucket = if query.time_series { sample.bucket } else { first };
            let values = read_values(query.kind, slot.key.reporter, &sample.counters);
            let sums = &mut self.0.entry(bucket).or_default()[action];
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = sum.saturating_add(value);
            }
        }
    }
}

/// Returns the counters in and out. Connections count in the direction of the rules that were evaluated.
fn read_values(kind: StatisticType, reporter: u8, counters: &FlowCounters) -> [u64; 2] {
    match kind {
        StatisticType::PacketCount => [counters.packets_in, counters.packets_out],
        StatisticType::ByteCount => [counters.bytes_in, counters.bytes_out],
        StatisticType::LiveConnectionCount => match direction_of(reporter) {
            RuleDirection::Ingress => [counters.connections_live, 0],
            RuleDirection::Egress | RuleDirection::Any => [0, counters.connections_live],
        },
    }
}
