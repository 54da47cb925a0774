//! Parses any text as the query of a URL of whisker-backend and applies its filter to flows. Every flow that is found must
//! also be found without the filter.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;
use tortie_flows::FlowsParameters;
use tortie_flows::proto::{Flow, FlowKey, PolicyHit, PolicyTrace};
use tortie_flows::ring::{FlowQuery, FlowRing, PageRequest, RingOptions, TimeWindow};

const NOW: i64 = 1_700_000_010;

fuzz_target!(|text: &str| {
    let Ok(parameters) = FlowsParameters::parse(text) else { return };
    let Ok(page) = PageRequest::new(parameters.page, parameters.page_size) else { return };
    let window = TimeWindow { gte: parameters.start_time_gte, lt: parameters.start_time_lt };
    let sort = parameters.sort_by.first().map(|sort| i32::from(*sort));
    let Ok(query) = FlowQuery::new(window, parameters.filter.clone(), sort, page) else { return };
    let found = ring().select_page(&query, NOW);
    assert!(found.total <= ring().keys() && found.flows.len() <= found.total);
    for flow in &found.flows {
        assert!(ring().aggregate(*flow, &found.buckets).is_some());
    }
    if let Some(kind) = parameters.hint_type {
        let hints =
            ring().list_hints(kind.into(), window, &parameters.filter, NOW).expect("a checked filter");
        assert!(hints.is_sorted());
    }
});

fn ring() -> &'static FlowRing {
    static RING: OnceLock<FlowRing> = OnceLock::new();
    RING.get_or_init(|| {
        let mut ring = FlowRing::new(RingOptions { window: 15, max_bytes: 1 << 20 }, NOW);
        for number in 0..20 {
            let hit = PolicyHit {
                kind: 1 + number % 6,
                name: format!("policy-{number}"),
                action: 1,
                ..PolicyHit::default()
            };
            let trace = PolicyTrace { enforced_policies: vec![hit.clone()], pending_policies: vec![hit] };
            let key = FlowKey {
                source_name: ["web", "pub", "db"][number as usize % 3].to_owned(),
                source_namespace: "shop".to_owned(),
                dest_name: format!("db-{number}"),
                dest_namespace: "-".to_owned(),
                dest_port: i64::from(number % 4) * 80,
                proto: "tcp".to_owned(),
                reporter: 1 + number % 2,
                action: 1 + number % 3,
                policies: Some(trace),
                ..FlowKey::default()
            };
            let flow = Flow { key: Some(key), start_time: NOW - i64::from(number) * 60, ..Flow::default() };
            ring.add(&flow, NOW).expect("a valid flow");
        }
        ring
    })
}
