//! Decodes any bytes as updates of nodes, each with its length, and records them. The limit of the ring and the packets
//! must hold, and every flow must be listed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tortie_flows::proto::{Flow, FlowUpdate};
use tortie_flows::ring::{FlowQuery, FlowRing, RingOptions, StatisticsQuery, TimeWindow};

const NOW: i64 = 1_700_000_010;
const MAX_BYTES: usize = 4 << 20;

fuzz_target!(|bytes: &[u8]| {
    let mut ring = FlowRing::new(RingOptions { window: 15, max_bytes: MAX_BYTES }, NOW);
    let mut rest = bytes;
    let mut packets: u64 = 0;
    while let Ok(update) = FlowUpdate::decode_length_delimited(&mut rest) {
        // Inputs rarely have a usable time: half of the updates get one.
        let Some(mut flow) = update.flow else { continue };
        if flow.start_time % 2 == 0 {
            flow.start_time = NOW - flow.start_time.rem_euclid(3600);
        }
        if ring.add(&flow, NOW).is_ok() {
            packets = packets.saturating_add(flow.packets_in.unsigned_abs());
        }
    }
    assert!(ring.bytes() <= MAX_BYTES);
    let query = FlowQuery { window: TimeWindow { gte: 0, lt: NOW + 100 }, ..FlowQuery::default() };
    let page = ring.select_page(&query, NOW);
    assert_eq!(page.flows.len(), ring.keys());
    let flows: Vec<Flow> = page
        .flows
        .iter()
        .map(|flow| ring.aggregate(*flow, &page.buckets).expect("listed").flow.expect("set"))
        .collect();
    let sum = flows.iter().fold(0u64, |sum, flow| sum.saturating_add(flow.packets_in.unsigned_abs()));
    // A single counter ends at the largest number of the protocol.
    if packets < i64::MAX.unsigned_abs() {
        assert_eq!(sum, packets);
    }
    let statistics = StatisticsQuery::new(Default::default()).expect("a valid request");
    let _ = ring.collect_statistics(&statistics, NOW);
    ring.advance(NOW + 7200);
    assert_eq!((ring.keys(), ring.bytes()), (0, 0));
});
