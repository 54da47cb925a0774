//! A naive model of the ring: a list of all updates, from which every answer is computed by definition. Also the generators
//! of the property tests.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use tortie_flows::proto::*;
use tortie_flows::ring::{HISTORY_BUCKETS, StatisticsQuery, TimeWindow, resolve_time};

pub const WINDOW: i64 = 15;
/// A time at which a bucket begins.
pub const START: i64 = 1_700_000_010;

/// Updates with their buckets.
#[derive(Default)]
pub struct ModelRing {
    updates: Vec<(i64, Flow)>,
    current: i64,
}

impl ModelRing {
    pub fn advance(&mut self, now: i64) {
        self.current = self.current.max(now / WINDOW);
    }

    fn range(&self) -> std::ops::Range<i64> {
        self.current - i64::from(HISTORY_BUCKETS)..self.current + 2
    }

    /// Returns whether the flow was recorded.
    pub fn add(&mut self, flow: &Flow, now: i64) -> bool {
        self.advance(now);
        let bucket = flow.start_time / WINDOW;
        let recorded = self.range().contains(&bucket);
        if recorded {
            self.updates.push((bucket, flow.clone()));
        }
        recorded
    }

    fn in_window(&self, window: TimeWindow, now: i64) -> Vec<&(i64, Flow)> {
        let gte = if window.gte == 0 { i64::MIN } else { resolve_time(window.gte, now) };
        let lt = if window.lt == 0 { now + 1 } else { resolve_time(window.lt, now) };
        let inside = |bucket: i64| self.range().contains(&bucket) && (gte..lt).contains(&(bucket * WINDOW));
        self.updates.iter().filter(|(bucket, _)| inside(*bucket)).collect()
    }

    /// Returns the matching flows, summed over the window, by key.
    pub fn list(&self, filter: &Filter, window: TimeWindow, now: i64) -> BTreeMap<Vec<u8>, Flow> {
        let mut flows: BTreeMap<Vec<u8>, Flow> = BTreeMap::new();
        for (bucket, update) in self.in_window(window, now) {
            let mut key = update.key.clone().unwrap();
            key.policies.get_or_insert_default();
            if !matches(filter, &key) {
                continue;
            }
            let (start, end) = (bucket * WINDOW, (bucket + 1) * WINDOW);
            let sorted = |labels: &[String]| labels.iter().cloned().collect::<BTreeSet<_>>();
            let (source, dest) = (sorted(&update.source_labels), sorted(&update.dest_labels));
            let Some(flow) = flows.get_mut(&key.encode_to_vec()) else {
                let mut flow = Flow { start_time: start, end_time: end, ..update.clone() };
                flow.source_labels = source.into_iter().collect();
                flow.dest_labels = dest.into_iter().collect();
                flow.key = Some(key.clone());
                flows.insert(key.encode_to_vec(), flow);
                continue;
            };
            flow.start_time = flow.start_time.min(start);
            flow.end_time = flow.end_time.max(end);
            flow.source_labels.retain(|label| source.contains(label));
            flow.dest_labels.retain(|label| dest.contains(label));
            flow.packets_in += update.packets_in;
            flow.packets_out += update.packets_out;
            flow.bytes_in += update.bytes_in;
            flow.bytes_out += update.bytes_out;
            flow.num_connections_started += update.num_connections_started;
            flow.num_connections_completed += update.num_connections_completed;
            flow.num_connections_live += update.num_connections_live;
        }
        flows
    }

    pub fn hints(&self, kind: FilterType, filter: &Filter, window: TimeWindow, now: i64) -> Vec<String> {
        let mut values = BTreeSet::new();
        for flow in self.list(filter, window, now).into_values() {
            let key = flow.key.unwrap();
            let trace = key.policies.unwrap();
            let hits = trace.enforced_policies.iter().chain(&trace.pending_policies);
            for hit in hits.filter(|hit| hit.kind() != PolicyKind::Profile) {
                values.extend(match kind {
                    FilterType::PolicyTier => Some(hit.tier.clone()),
                    FilterType::PolicyName => Some(hit.name.clone()),
                    FilterType::PolicyKind => Some(hit.kind().as_str_name().to_owned()),
                    FilterType::PolicyNamespace => Some(hit.namespace.clone()),
                    _ => None,
                });
            }
            values.extend(match kind {
                FilterType::DestName => Some(key.dest_name),
                FilterType::SourceName => Some(key.source_name),
                FilterType::DestNamespace => Some(key.dest_namespace),
                FilterType::SourceNamespace => Some(key.source_namespace),
                _ => None,
            });
        }
        values.into_iter().collect()
    }

    /// Returns the packets that enforced or staged policies named `name` allowed in.
    pub fn packets_allowed_in(&self, name: &str, window: TimeWindow, now: i64) -> i64 {
        let updates = self.in_window(window, now).into_iter();
        let allowing = updates.filter(|(_, flow)| {
            let trace = flow.key.as_ref().unwrap().policies.clone().unwrap_or_default();
            let allows = |hit: &PolicyHit| {
                hit.action() == Action::Allow && hit.trigger.as_deref().unwrap_or(hit).name == name
            };
            let staged = |hit: &&PolicyHit| hit.kind() == PolicyKind::StagedNetworkPolicy;
            trace.enforced_policies.iter().any(allows)
                || trace.pending_policies.iter().filter(staged).any(allows)
        });
        allowing.map(|(_, flow)| flow.packets_in).sum()
    }
}

fn matches(filter: &Filter, key: &FlowKey) -> bool {
    let text = |wanted: &[StringMatch], value: &str| {
        wanted.is_empty()
            || wanted.iter().any(|one| {
                let is_equal = one.value == value || (one.value == "PUBLIC NETWORK" && value == "pub");
                is_equal || (one.r#type() == MatchType::Fuzzy && value.contains(&one.value))
            })
    };
    let trace = key.policies.clone().unwrap_or_default();
    let hit = |wanted: &PolicyMatch, hit: &PolicyHit| {
        (wanted.kind == 0 || wanted.kind == hit.kind)
            && (wanted.tier.is_empty() || wanted.tier == hit.tier)
            && (wanted.name.is_empty() || wanted.name == hit.name)
            && (wanted.action == 0 || wanted.action == hit.action)
            && (wanted.namespace.is_empty()
                || wanted.namespace == hit.namespace
                || (wanted.namespace == "-" && hit.namespace.is_empty()))
    };
    let hits: Vec<&PolicyHit> = trace.enforced_policies.iter().chain(&trace.pending_policies).collect();
    text(&filter.source_names, &key.source_name)
        && text(&filter.source_namespaces, &key.source_namespace)
        && text(&filter.dest_names, &key.dest_name)
        && text(&filter.dest_namespaces, &key.dest_namespace)
        && text(&filter.protocols, &key.proto)
        && (filter.dest_ports.is_empty() || filter.dest_ports.iter().any(|port| port.port == key.dest_port))
        && (filter.actions.is_empty() || filter.actions.contains(&key.action))
        && (filter.reporter == 0 || filter.reporter == key.reporter)
        && (filter.policies.is_empty()
            || filter.policies.iter().any(|wanted| hits.iter().any(|known| hit(wanted, known))))
        && (filter.pending_actions.is_empty()
            || trace.pending_policies.iter().any(|hit| filter.pending_actions.contains(&hit.action)))
}

fn any_name() -> impl Strategy<Value = String> {
    select(vec!["web", "web-7d9f-*", "db", "pub", "pvt", ""]).prop_map(str::to_owned)
}

fn any_namespace() -> impl Strategy<Value = String> {
    select(vec!["shop", "bank", "-", ""]).prop_map(str::to_owned)
}

fn any_hit() -> impl Strategy<Value = PolicyHit> {
    let kind = select(vec![1, 2, 3, 6, 9, 10]);
    let tier = select(vec!["default", "security", ""]).prop_map(str::to_owned);
    (kind, any_namespace(), any_name(), tier, 1..4i32, -1..3i64).prop_map(
        |(kind, namespace, name, tier, action, rule_index)| {
            let is_end = kind == i32::from(PolicyKind::EndOfTier);
            let trigger = PolicyHit { kind: 1, name: "web".to_owned(), ..PolicyHit::default() };
            let trigger = is_end.then(|| Box::new(trigger));
            PolicyHit { kind, namespace, name, tier, action, policy_index: 0, rule_index, trigger }
        },
    )
}

fn any_labels() -> impl Strategy<Value = Vec<String>> {
    let label = select(vec!["app=web", "app=db", "tier=front", "env=prod"]).prop_map(str::to_owned);
    prop::collection::vec(label, 0..4)
}

fn any_key() -> impl Strategy<Value = FlowKey> {
    let hits = || prop::collection::vec(any_hit(), 0..3);
    let port = select(vec![0, 80, 443, 65535]);
    let names = (any_name(), any_namespace(), any_name(), any_namespace());
    (names, port, select(vec!["tcp", "udp"]), 0..3i32, 0..4i32, hits(), hits()).prop_map(
        |(names, dest_port, proto, reporter, action, enforced_policies, pending_policies)| {
            let (source_name, source_namespace, dest_name, dest_namespace) = names;
            FlowKey {
                source_name,
                source_namespace,
                source_type: 1,
                dest_name,
                dest_namespace,
                dest_type: 1,
                dest_port,
                proto: proto.to_owned(),
                reporter,
                action,
                policies: Some(PolicyTrace { enforced_policies, pending_policies }),
                ..FlowKey::default()
            }
        },
    )
}

/// One step of a history: seconds that pass, the age of the flow in buckets, and the flow.
pub type HistoryStep = (i64, i64, Flow);

fn any_step(keys: Vec<FlowKey>) -> impl Strategy<Value = HistoryStep> {
    let pause = prop_oneof![6 => 0..4i64, 2 => 10..40i64, 1 => 1000..5000i64];
    let age = prop_oneof![6 => 0..3i64, 2 => -2..260i64];
    (pause, age, any::<Index>(), any_labels(), any_labels(), prop::array::uniform7(0..1000i64)).prop_map(
        move |(pause, age, key, source_labels, dest_labels, numbers)| {
            let [packets_in, packets_out, bytes_in, bytes_out, started, completed, live] = numbers;
            let flow = Flow {
                key: Some(key.get(&keys).clone()),
                source_labels,
                dest_labels,
                packets_in,
                packets_out,
                bytes_in,
                bytes_out,
                num_connections_started: started,
                num_connections_completed: completed,
                num_connections_live: live,
                ..Flow::default()
            };
            (pause, age, flow)
        },
    )
}

/// Generates a history of updates with few distinct keys.
pub fn any_history() -> impl Strategy<Value = Vec<HistoryStep>> {
    prop::collection::vec(any_key(), 1..12)
        .prop_flat_map(|keys| prop::collection::vec(any_step(keys), 1..120))
}

fn any_matches(value: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<StringMatch>> {
    let value = prop_oneof![4 => value, 1 => select(vec!["we", "PUBLIC NETWORK"]).prop_map(str::to_owned)];
    let one = (value, 0..2i32).prop_map(|(value, r#type)| StringMatch { value, r#type });
    prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(one, 1..3)]
}

pub fn any_filter() -> impl Strategy<Value = Filter> {
    let names = (
        any_matches(any_name()),
        any_matches(any_namespace()),
        any_matches(any_name()),
        any_matches(any_namespace()),
    );
    let actions = || prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(1..4i32, 1..3)];
    let wanted = any_hit().prop_map(|hit| PolicyMatch {
        kind: if hit.rule_index < 1 { hit.kind } else { 0 },
        tier: hit.tier,
        namespace: if hit.rule_index == 1 { hit.namespace } else { String::new() },
        name: if hit.rule_index == 0 { hit.name } else { String::new() },
        action: if hit.action == 1 { 1 } else { 0 },
    });
    let policies = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(wanted, 1..3)];
    let ports =
        prop_oneof![3 => Just(Vec::new()), 1 => Just(vec![PortMatch { port: 80 }, PortMatch { port: 443 }])];
    let protocols = any_matches(Just("tcp".to_owned()));
    let reporter = prop_oneof![3 => Just(0), 1 => 1..3i32];
    (names, protocols, ports, actions(), policies, reporter, actions()).prop_map(
        |(names, protocols, dest_ports, actions, policies, reporter, pending_actions)| Filter {
            source_names: names.0,
            source_namespaces: names.1,
            dest_names: names.2,
            dest_namespaces: names.3,
            protocols,
            dest_ports,
            actions,
            policies,
            reporter,
            pending_actions,
        },
    )
}

pub fn any_window() -> impl Strategy<Value = TimeWindow> {
    let gte = prop_oneof![3 => Just(0), 2 => -4000..0i64, 1 => START..START + 5000];
    let lt = prop_oneof![3 => Just(0), 2 => -2000..0i64, 1 => START..START + 5000];
    (gte, lt).prop_map(|(gte, lt)| TimeWindow { gte, lt })
}

/// Returns a query for all policies.
pub fn statistics_query(window: TimeWindow, time_series: bool) -> StatisticsQuery {
    StatisticsQuery::new(StatisticsRequest {
        start_time_gte: window.gte,
        start_time_lt: window.lt,
        time_series,
        ..StatisticsRequest::default()
    })
    .unwrap()
}
