//! The flow collector without its network: processor time of an update, memory, and times of queries, by the number of
//! keys. The growth with the keys is the comparison: an update must cost the same with many keys.

use crate::measure::{self, growth, table, time};
use crate::{SuiteResult, heap};
use prost::Message;
use std::hint::black_box;
use std::net::Ipv4Addr;
use tortie_flows::proto::{
    Action, Filter, Flow, FlowKey, FlowUpdate, PolicyHit, PolicyKind, PolicyTrace, SortBy, StringMatch,
};
use tortie_flows::ring::{FlowQuery, FlowRing, PageRequest, RingOptions};
use tortie_flows::{NodeConnection, ResendFilter};

const KEY_COUNTS: [usize; 3] = [20_000, 100_000, 1_000_000];
const WINDOW_SECONDS: u32 = 15;
/// A time at which a bucket begins.
const START: i64 = 1_700_000_010;
/// Every key has data in this many buckets.
const BUCKETS: i64 = 2;
const MAX_RING_BYTES: usize = 4 << 30;
/// As in the collector.
const MAX_REMEMBERED_FLOWS: usize = 1 << 20;
/// Encoded updates that exist at a time.
const BATCH_UPDATES: usize = 10_000;
const REPETITIONS: usize = 9;

pub fn run() -> SuiteResult {
    let mut rows = Vec::new();
    let mut first_cost = 0.0;
    for keys in KEY_COUNTS {
        let before = heap::live();
        let (ring, cost) = fill_ring(keys)?;
        let used = heap::live() - before;
        if first_cost == 0.0 {
            first_cost = cost;
        }
        let page = PageRequest::new(0, 100)?;
        let namespace = StringMatch { value: "ns-7".to_owned(), ..StringMatch::default() };
        let filter = Filter { source_namespaces: vec![namespace], ..Filter::default() };
        let queries = [
            FlowQuery { page, ..FlowQuery::default() },
            FlowQuery { page, filter, ..FlowQuery::default() },
            FlowQuery { page, sort: SortBy::DestName, ..FlowQuery::default() },
            FlowQuery::default(),
        ];
        let mut row = vec![keys.to_string(), time(cost), growth(cost, first_cost), format!("{used:.0} MB")];
        row.extend(queries.iter().map(|query| time(query_cost(&ring, query))));
        rows.push(row);
    }
    table(
        "Flow collector: updates decoded and recorded, and queries, in processor time",
        &[
            "keys",
            "update",
            "growth",
            "memory",
            "page of 100",
            "page of one namespace",
            "page by name",
            "everything",
        ],
        &rows,
    );
    Ok(())
}

/// Returns a ring with so many keys, and the nanoseconds of an update.
fn fill_ring(keys: usize) -> Result<(FlowRing, f64), Box<dyn std::error::Error>> {
    let options = RingOptions { window: WINDOW_SECONDS, max_bytes: MAX_RING_BYTES };
    let mut ring = FlowRing::new(options, START);
    let mut resends = ResendFilter::new(MAX_REMEMBERED_FLOWS);
    let from = NodeConnection { peer: Ipv4Addr::LOCALHOST.into(), number: 0 };
    let mut spent = 0.0;
    for bucket in 0..BUCKETS {
        let start = START + bucket * i64::from(WINDOW_SECONDS);
        for first in (0..keys).step_by(BATCH_UPDATES) {
            let numbers = first..(first + BATCH_UPDATES).min(keys);
            let updates: Vec<Vec<u8>> = numbers.map(|number| encode_update(number, start)).collect();
            let begun = measure::now();
            for update in &updates {
                let update = FlowUpdate::decode(update.as_slice())?;
                let Some(flow) = &update.flow else { continue };
                if !resends.is_resent(from, flow, start) {
                    ring.add(flow, start)?;
                }
            }
            spent += measure::now() - begun;
        }
    }
    Ok((ring, spent / (keys as f64 * BUCKETS as f64)))
}

/// Returns the nanoseconds of a query, as the lowest of several.
fn query_cost(ring: &FlowRing, query: &FlowQuery) -> f64 {
    let now = START + BUCKETS * i64::from(WINDOW_SECONDS);
    let mut lowest = f64::MAX;
    for _ in 0..REPETITIONS {
        let begun = measure::now();
        let page = ring.select_page(query, now);
        for flow in &page.flows {
            black_box(ring.aggregate(*flow, &page.buckets));
        }
        lowest = lowest.min(measure::now() - begun);
    }
    lowest
}

/// Returns an update like those of Felix: a thousand workloads, 50 namespaces, 200 policies.
fn encode_update(number: usize, start_time: i64) -> Vec<u8> {
    let namespace = format!("ns-{}", number % 50);
    let dest_namespace = format!("ns-{}", number % 37);
    let hit = PolicyHit {
        kind: PolicyKind::CalicoNetworkPolicy.into(),
        namespace: namespace.clone(),
        name: format!("allow-{}", number % 200),
        tier: "default".to_owned(),
        action: Action::Allow.into(),
        rule_index: (number % 5) as i64,
        ..PolicyHit::default()
    };
    let key = FlowKey {
        source_name: format!("frontend-{}-7d9f8b6c5-*", number % 997),
        source_namespace: namespace,
        source_type: 1,
        dest_name: format!("backend-{}-6c5b4d-*", number / 997),
        dest_namespace: dest_namespace.clone(),
        dest_type: 1,
        dest_port: (number % 7 * 1000 + 80) as i64,
        dest_service_name: format!("service-{}", number % 300),
        dest_service_namespace: dest_namespace,
        dest_service_port_name: "http".to_owned(),
        dest_service_port: 80,
        proto: "tcp".to_owned(),
        reporter: (number % 2 + 1) as i32,
        action: Action::Allow.into(),
        policies: Some(PolicyTrace { enforced_policies: vec![hit.clone()], pending_policies: vec![hit] }),
    };
    let label = |name: &str, count: usize| format!("app={name}-{count}");
    let flow = Flow {
        key: Some(key),
        start_time,
        end_time: start_time,
        source_labels: vec![label("frontend", number % 997), "env=prod".to_owned(), "tier=web".to_owned()],
        dest_labels: vec![label("backend", number / 997), "env=prod".to_owned()],
        packets_in: 10,
        packets_out: 12,
        bytes_in: 1000,
        bytes_out: 3000,
        num_connections_started: 1,
        num_connections_completed: 1,
        num_connections_live: 0,
    };
    FlowUpdate { flow: Some(flow) }.encode_to_vec()
}
