//! The ring of flows against a naive model, with random histories and queries.
#![allow(clippy::unwrap_used, clippy::panic)]

mod model;

use model::*;
use proptest::prelude::*;
use prost::Message;
use std::collections::BTreeMap;
use tortie_flows::proto::*;
use tortie_flows::ring::*;

/// Makes a flow unusable.
type FlowChange = fn(&mut Flow);

const NO_LIMIT: usize = usize::MAX / 2;

fn new_ring(max_bytes: usize) -> FlowRing {
    FlowRing::new(RingOptions { window: WINDOW as u32, max_bytes }, START)
}

fn query(filter: &Filter, window: TimeWindow, sort: SortBy, page: i64, size: i64) -> FlowQuery {
    let page = PageRequest::new(page, size).unwrap();
    FlowQuery::new(window, filter.clone(), Some(sort.into()), page).unwrap()
}

fn list(ring: &FlowRing, query: &FlowQuery, now: i64) -> Vec<FlowResult> {
    let page = ring.select_page(query, now);
    page.flows.iter().map(|flow| ring.aggregate(*flow, &page.buckets).unwrap()).collect()
}

fn list_all(ring: &FlowRing, now: i64) -> Vec<FlowResult> {
    // The bucket of the future included.
    let window = TimeWindow { gte: 0, lt: now + 100 };
    list(ring, &query(&Filter::default(), window, SortBy::Time, 0, 0), now)
}

/// Applies a history to the ring and to the model. Returns the time at its end.
fn apply(ring: &mut FlowRing, model: &mut ModelRing, history: &[HistoryStep]) -> i64 {
    let mut now = START;
    for (pause, age, flow) in history {
        now += pause;
        let start_time = now - age * WINDOW;
        let flow = Flow { start_time, end_time: start_time, ..flow.clone() };
        let recorded = ring.add(&flow, now).is_ok();
        assert_eq!(recorded, model.add(&flow, now), "{start_time} at {now}");
    }
    now
}

fn sort_text(sort: SortBy, flow: &Flow) -> String {
    let key = flow.key.clone().unwrap();
    match sort {
        SortBy::SourceName => key.source_name,
        SortBy::SourceNamespace => key.source_namespace,
        SortBy::DestName => key.dest_name,
        SortBy::DestNamespace => key.dest_namespace,
        _ => String::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn answers_equal_the_naive_model(
        history in any_history(),
        filter in any_filter(),
        window in any_window(),
        sort in prop::sample::select(vec![
            SortBy::Time, SortBy::SourceName, SortBy::SourceNamespace, SortBy::DestName, SortBy::DestNamespace,
        ]),
        size in 1..6i64,
    ) {
        let (mut ring, mut model) = (new_ring(NO_LIMIT), ModelRing::default());
        let now = apply(&mut ring, &mut model, &history);
        let wanted = model.list(&filter, window, now);
        let found = list(&ring, &query(&filter, window, sort, 0, 0), now);
        let by_key: BTreeMap<Vec<u8>, Flow> = found
            .iter()
            .map(|result| result.flow.clone().unwrap())
            .map(|flow| (flow.key.clone().unwrap().encode_to_vec(), flow))
            .collect();
        prop_assert_eq!(found.len(), by_key.len(), "each flow once");
        prop_assert_eq!(&by_key, &wanted);
        let ids: std::collections::HashSet<i64> = found.iter().map(|result| result.id).collect();
        prop_assert_eq!(ids.len(), found.len());
        let order: Vec<(String, i64)> = found
            .iter()
            .map(|result| result.flow.as_ref().unwrap())
            .map(|flow| (sort_text(sort, flow), -flow.start_time))
            .collect();
        prop_assert!(order.is_sorted(), "{:?}", order);
        // The pages together are the list.
        let mut pages = Vec::new();
        for page in 0.. {
            let part = query(&filter, window, sort, page, size);
            let selected = ring.select_page(&part, now);
            prop_assert_eq!(selected.total, found.len());
            if selected.flows.is_empty() {
                prop_assert_eq!(page as usize, PageRequest::new(0, size).unwrap().total_pages(found.len()));
                break;
            }
            pages.extend(list(&ring, &part, now));
        }
        prop_assert_eq!(pages, found);
        for kind in 1..9 {
            let kind = FilterType::try_from(kind).unwrap();
            let hints = ring.list_hints(kind.into(), window, &filter, now).unwrap();
            prop_assert_eq!(hints, model.hints(kind, &filter, window, now), "{:?}", kind);
        }
        for time_series in [false, true] {
            let results = ring.collect_statistics(&statistics_query(window, time_series), now).unwrap();
            for name in ["web", "db"] {
                let sums = results.iter().filter(|result| result.policy.as_ref().unwrap().name == name);
                // Policies with the same name in several tiers may count the same flow.
                let highest = sums.clone().map(|result| result.allowed_in.iter().sum::<i64>()).max().unwrap_or(0);
                let total: i64 = sums.map(|result| result.allowed_in.iter().sum::<i64>()).sum();
                let packets = model.packets_allowed_in(name, window, now);
                prop_assert!(highest <= packets && packets <= total, "{highest} {packets} {total}");
            }
        }
    }

    #[test]
    fn the_limit_holds_and_totals_stay(history in any_history(), limit in 1000..40_000usize) {
        let (mut ring, mut model) = (new_ring(limit), ModelRing::default());
        let now = apply(&mut ring, &mut model, &history);
        // Folding keys are never folded: one for each verdict, with a sample in each bucket.
        let floor = 12 * 242 * 200;
        prop_assert!(ring.bytes() <= limit.max(floor), "{} of {limit}", ring.bytes());
        let window = TimeWindow { gte: 0, lt: now + 100 };
        for reporter in 0..3 {
            for action in 0..4 {
                let sums = |flows: Vec<Flow>| -> [i64; 7] {
                    let mut sums = [0; 7];
                    for flow in flows {
                        let key = flow.key.as_ref().unwrap();
                        if key.reporter == reporter && key.action == action {
                            let values = [
                                flow.packets_in, flow.packets_out, flow.bytes_in, flow.bytes_out,
                                flow.num_connections_started, flow.num_connections_completed,
                                flow.num_connections_live,
                            ];
                            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                        }
                    }
                    sums
                };
                let wanted = sums(model.list(&Filter::default(), window, now).into_values().collect());
                let found = list_all(&ring, now).into_iter().map(|result| result.flow.unwrap()).collect();
                prop_assert_eq!(sums(found), wanted, "reporter {} action {}", reporter, action);
            }
        }
    }

    #[test]
    fn an_empty_ring_keeps_no_memory(history in any_history()) {
        let (mut ring, mut model) = (new_ring(30_000), ModelRing::default());
        let now = apply(&mut ring, &mut model, &history);
        ring.advance(now + 2 * 3600);
        prop_assert_eq!((ring.keys(), ring.bytes()), (0, 0));
        prop_assert!(list_all(&ring, now + 2 * 3600).is_empty());
    }

    #[test]
    fn buckets_stream_each_flow_once(history in any_history(), filter in any_filter()) {
        let (mut ring, mut model) = (new_ring(NO_LIMIT), ModelRing::default());
        let now = apply(&mut ring, &mut model, &history);
        for bucket in ring.oldest()..ring.current() + 2 {
            let start = ring.start_of(bucket);
            let window = TimeWindow { gte: start, lt: start + WINDOW };
            let snapshot = ring.snapshot_bucket(bucket).unwrap();
            let (found, gone) = ring.read_snapshot(&snapshot, 0..snapshot.flows.len(), &filter);
            let flows: BTreeMap<Vec<u8>, Flow> = found
                .iter()
                .map(|result| result.flow.clone().unwrap())
                .map(|flow| (flow.key.clone().unwrap().encode_to_vec(), flow))
                .collect();
            prop_assert_eq!((flows.len(), gone), (found.len(), 0));
            prop_assert_eq!(flows, model.list(&filter, window, now));
        }
    }
}

fn flow(name: &str, start_time: i64, packets: i64) -> Flow {
    let key = FlowKey {
        source_name: name.to_owned(),
        source_type: 1,
        action: 1,
        reporter: 1,
        ..FlowKey::default()
    };
    Flow { key: Some(key), start_time, packets_in: packets, ..Flow::default() }
}

#[test]
fn the_least_active_keys_are_folded() {
    let mut ring = new_ring(100_000);
    ring.add(&flow("busy", START, 1_000_000), START).unwrap();
    let mut folded = 0;
    for number in 0..10_000 {
        folded += ring.add(&flow(&format!("scan-{number}"), START, 1), START).unwrap().folded_keys;
        assert!(ring.bytes() <= 100_000);
    }
    assert!(folded > 9_000, "{folded}");
    assert_eq!(ring.folded_keys(), folded as u64);
    let flows = list_all(&ring, START);
    let packets = |name: &str| -> i64 {
        let flows = flows.iter().map(|result| result.flow.as_ref().unwrap());
        flows.filter(|flow| flow.key.as_ref().unwrap().source_name == name).map(|flow| flow.packets_in).sum()
    };
    assert_eq!(packets("busy"), 1_000_000);
    assert_eq!(packets(FOLDED_NAME), folded as i64);
    let total: i64 = flows.iter().map(|result| result.flow.as_ref().unwrap().packets_in).sum();
    assert_eq!(total, 1_010_000);
}

#[test]
fn names_of_folded_keys_do_not_evade_folding() {
    let mut ring = new_ring(100_000);
    for number in 0..5_000 {
        let mut update = flow(FOLDED_NAME, START, 1);
        let key = update.key.as_mut().unwrap();
        key.source_type = 0;
        key.dest_name = if number % 2 == 0 { FOLDED_NAME.to_owned() } else { format!("name-{number}") };
        key.action = number % 250;
        ring.add(&update, START).unwrap();
        assert!(ring.bytes() <= 100_000, "{number}: {}", ring.bytes());
    }
}

#[test]
fn ids_are_stable_while_keys_live() {
    let mut ring = new_ring(NO_LIMIT);
    ring.add(&flow("web", START, 1), START).unwrap();
    let id = list_all(&ring, START)[0].id;
    let later = START + 3000;
    ring.add(&flow("web", later, 1), later).unwrap();
    assert_eq!(list_all(&ring, later)[0].id, id);
    let much_later = later + 4000;
    ring.add(&flow("web", much_later, 1), much_later).unwrap();
    assert_ne!(list_all(&ring, much_later)[0].id, id, "the key had left the ring");
}

#[test]
fn removed_flows_are_counted_as_gone() {
    let mut ring = new_ring(NO_LIMIT);
    ring.add(&flow("web", START, 1), START).unwrap();
    let snapshot = ring.snapshot_bucket(ring.current()).unwrap();
    ring.advance(START + 4000);
    ring.add(&flow("db", START + 4000, 1), START + 4000).unwrap();
    let (found, gone) = ring.read_snapshot(&snapshot, 0..1, &Filter::default());
    assert_eq!((found.len(), gone), (0, 1), "its place is used again");
    assert!(ring.snapshot_bucket(snapshot.bucket).is_none(), "the bucket has left the ring");
}

#[test]
fn unusable_flows_are_rejected() {
    let mut ring = new_ring(NO_LIMIT);
    let mut reject = |change: FlowChange| {
        let mut update = flow("web", START, 1);
        change(&mut update);
        ring.add(&update, START).unwrap_err().to_string()
    };
    let cases: [(FlowChange, &str); 8] = [
        (|flow| flow.key = None, "the update has no key"),
        (|flow| flow.bytes_in = -1, "bytes_in: -1 is not from 0 to 9223372036854775807"),
        (|flow| flow.key.as_mut().unwrap().dest_port = 70_000, "dest_port: 70000 is not from 0 to 65535"),
        (|flow| flow.key.as_mut().unwrap().action = -1, "action: -1 is not from 0 to 255"),
        (|flow| flow.source_labels = vec!["a\nb".to_owned()], "source_labels contains a line break"),
        (|flow| flow.dest_labels = vec!["a".to_owned(); 600], "dest_labels has 600 entries, more than 512"),
        (|flow| flow.key.as_mut().unwrap().proto = "x".repeat(2000), "proto has 2000 bytes, more than 1024"),
        (|flow| flow.start_time = START - 3616, "start_time 1699996394 is outside the recorded time"),
    ];
    for (change, message) in cases {
        let error = reject(change);
        assert!(error.starts_with(message), "{error}");
    }
    let deep = reject(|flow| {
        let hit = PolicyHit { trigger: Some(Box::default()), ..PolicyHit::default() };
        let hit = PolicyHit { trigger: Some(Box::new(hit)), ..PolicyHit::default() };
        let trace = PolicyTrace { enforced_policies: vec![hit], pending_policies: vec![] };
        flow.key.as_mut().unwrap().policies = Some(trace);
    });
    assert_eq!(deep, "a trigger of a policy hit has a trigger");
    assert_eq!((ring.keys(), ring.bytes()), (0, 0));
}

#[test]
fn late_flows_are_marked() {
    let mut ring = new_ring(NO_LIMIT);
    let late = |ring: &mut FlowRing, start| ring.add(&flow("web", start, 1), START).unwrap().was_complete;
    assert!(!late(&mut ring, START));
    assert!(!late(&mut ring, START - WINDOW));
    assert!(late(&mut ring, START - 2 * WINDOW));
}

#[test]
fn requests_are_checked() {
    let page = |page, size| PageRequest::new(page, size).unwrap_err().to_string();
    assert_eq!(page(-1, 5), "page: -1 is negative");
    assert_eq!(page(0, -5), "page_size: -5 is negative");
    assert_eq!(page(2, 0), "page: page 2 needs a page_size above 0");
    let query = |filter, sort| {
        FlowQuery::new(TimeWindow::default(), filter, Some(sort), PageRequest::default())
            .unwrap_err()
            .to_string()
    };
    assert!(query(Filter::default(), 3).starts_with("sort_by: DestType is not supported"));
    assert!(query(Filter::default(), 6).starts_with("sort_by: SourceType is not supported"));
    assert_eq!(query(Filter::default(), 9), "sort_by: the value 9 is unknown");
    let filter = Filter { actions: vec![7], ..Filter::default() };
    assert_eq!(query(filter, 0), "filter: actions: the value 7 is unknown");
    let ring = new_ring(NO_LIMIT);
    let hint = |kind| ring.list_hints(kind, TimeWindow::default(), &Filter::default(), START).unwrap_err();
    assert_eq!(hint(0).to_string(), "type: the type of the hints is missing");
    assert_eq!(hint(17).to_string(), "type: the value 17 is unknown");
}

/// Nodes determine the number of policies.
#[test]
fn results_are_bounded() {
    const POLICIES: usize = 256;
    let mut ring = new_ring(NO_LIMIT);
    let add_flows = |ring: &mut FlowRing, numbers: std::ops::Range<usize>| {
        for number in numbers {
            let hit = |index: usize| PolicyHit {
                kind: PolicyKind::GlobalNetworkPolicy.into(),
                name: format!("{number}-{index}-{}", "x".repeat(1000)),
                action: Action::Allow.into(),
                ..PolicyHit::default()
            };
            let mut update = flow(&format!("web-{number}"), START, 1);
            let enforced_policies = (0..POLICIES).map(hit).collect();
            update.key.as_mut().unwrap().policies =
                Some(PolicyTrace { enforced_policies, ..PolicyTrace::default() });
            ring.add(&update, START).unwrap();
        }
    };
    let statistics = |ring: &FlowRing, time_series| {
        ring.collect_statistics(&statistics_query(TimeWindow::default(), time_series), START)
    };
    let hints = |ring: &FlowRing, kind: FilterType| {
        ring.list_hints(kind.into(), TimeWindow::default(), &Filter::default(), START)
    };
    let too_large = "the result would be larger than 64 MiB; request a shorter time or filter";
    add_flows(&mut ring, 0..20);
    assert_eq!(statistics(&ring, false).unwrap().len(), 20 * POLICIES);
    assert_eq!(statistics(&ring, true).unwrap_err().to_string(), too_large);
    assert_eq!(hints(&ring, FilterType::PolicyName).unwrap().len(), 20 * POLICIES);
    add_flows(&mut ring, 20..270);
    assert_eq!(hints(&ring, FilterType::PolicyName).unwrap_err().to_string(), too_large);
    assert_eq!(hints(&ring, FilterType::SourceName).unwrap().len(), 270);
}

#[test]
fn rule_statistics_have_a_direction() {
    let mut ring = new_ring(NO_LIMIT);
    let hit = |name: &str, kind: PolicyKind, action: Action| PolicyHit {
        kind: kind.into(),
        name: name.to_owned(),
        tier: "default".to_owned(),
        action: action.into(),
        rule_index: 2,
        ..PolicyHit::default()
    };
    let end = PolicyHit {
        kind: PolicyKind::EndOfTier.into(),
        action: Action::Deny.into(),
        rule_index: -1,
        trigger: Some(Box::new(hit("deny-web", PolicyKind::CalicoNetworkPolicy, Action::Unspecified))),
        ..PolicyHit::default()
    };
    let mut update = flow("web", START, 5);
    let key = update.key.as_mut().unwrap();
    key.reporter = Reporter::Dst.into();
    key.policies = Some(PolicyTrace {
        enforced_policies: vec![hit("pass", PolicyKind::GlobalNetworkPolicy, Action::Pass), end],
        pending_policies: vec![
            hit("staged", PolicyKind::StagedNetworkPolicy, Action::Allow),
            hit("pass", PolicyKind::GlobalNetworkPolicy, Action::Pass),
        ],
    });
    update.num_connections_live = 3;
    ring.add(&update, START).unwrap();
    let statistics = |kind: StatisticType| {
        let request = StatisticsRequest {
            r#type: kind.into(),
            group_by: StatisticsGroupBy::PolicyRule.into(),
            ..StatisticsRequest::default()
        };
        ring.collect_statistics(&StatisticsQuery::new(request).unwrap(), START).unwrap()
    };
    let packets = statistics(StatisticType::PacketCount);
    let rows: Vec<_> = packets
        .iter()
        .map(|result| {
            let policy = result.policy.as_ref().unwrap();
            let sums = (result.allowed_in[0], result.denied_in[0], result.passed_in[0]);
            (policy.name.as_str(), policy.rule_index, result.direction(), sums)
        })
        .collect();
    let ingress = RuleDirection::Ingress;
    assert_eq!(
        rows,
        [
            ("deny-web", -1, ingress, (0, 5, 0)),
            ("pass", 2, ingress, (0, 0, 5)),
            ("staged", 2, ingress, (5, 0, 0)),
        ]
    );
    assert!(packets.iter().all(|result| result.x.is_empty()));
    let live = statistics(StatisticType::LiveConnectionCount);
    assert_eq!((live[0].denied_in[0], live[0].denied_out[0]), (3, 0));
}
