//! A recording contains everything that the plan depends on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;
use tortie_compute::{ParameterEnvironment, PlanCompute};
use tortie_model::ipam::AddressBlock;
use tortie_model::key::AffinityType;
use tortie_model::{FeedEvent, Kind, Resource, StoreKey, StoreValue};
use tortie_plan::NodePlan;
use tortie_sync::record::{
    RECORDING_VERSION, RecordingError, RecordingHeader, RecordingReader, RecordingWriter, json,
};
use tortie_testkit::conformance::{cases, world};

/// Event that ends a batch: the node flushes after it.
const FLUSH_EVENT: &str = "turn";

fn header() -> RecordingHeader {
    RecordingHeader {
        version: RECORDING_VERSION,
        node: "n1".to_owned(),
        environment: BTreeMap::new(),
        settings: BTreeMap::new(),
        bgp: None,
        held: Vec::new(),
    }
}

fn key(resource: &Resource) -> StoreKey {
    StoreKey::resource(resource.kind(), &resource.metadata().namespace, &resource.metadata().name)
}

fn put(resource: Resource, revision: u64) -> FeedEvent {
    FeedEvent::Put { key: key(&resource), value: StoreValue::Resource(resource), revision: revision.into() }
}

/// A node with compute and plan only, without a dataplane.
struct ComputeOnlyNode {
    compute: PlanCompute,
    plan: NodePlan,
    /// The plan after each flush.
    plans: Vec<String>,
}

impl ComputeOnlyNode {
    fn new() -> ComputeOnlyNode {
        let compute = PlanCompute::new("n1", ParameterEnvironment::default());
        ComputeOnlyNode { compute, plan: NodePlan::default(), plans: Vec::new() }
    }

    fn hear(&mut self, event: &FeedEvent) {
        match event {
            FeedEvent::Put { key, value, .. } => self.compute.put(key, value),
            FeedEvent::Delete { key, .. } => self.compute.delete(key),
            _ => {}
        }
    }

    fn turn(&mut self) {
        for update in self.compute.flush() {
            self.plan.apply(update);
        }
        self.plans.push(format!("{:#?}", self.plan));
    }
}

#[test]
fn the_conformance_run_replays_to_the_same_plans() {
    let (mut turns, mut changed) = (0, 0);
    for case in cases() {
        let mut file = Vec::new();
        let mut recorder = RecordingWriter::new(&mut file, u64::MAX, &header()).unwrap();
        let mut node = ComputeOnlyNode::new();
        let mut revision = 0;
        let mut events: Vec<Option<FeedEvent>> = Vec::new();
        let mut count = || {
            revision += 1;
            revision
        };
        events.extend(world().into_iter().map(|resource| Some(put(resource, count()))));
        events.extend([Some(FeedEvent::InSync), None]);
        for step in &case.steps {
            events.extend(step.applied().into_iter().map(|resource| Some(put(resource, count()))));
            let gone = step.deleted().into_iter();
            events.extend(gone.map(|r| Some(FeedEvent::Delete { key: key(&r), revision: count().into() })));
            events.push(None);
        }
        for (at, event) in events.iter().enumerate() {
            let line = match event {
                Some(event) => {
                    node.hear(event);
                    json::feed_to_json(event).unwrap()
                }
                None => {
                    node.turn();
                    json!(FLUSH_EVENT)
                }
            };
            assert!(recorder.record(Duration::from_micros(at as u64), &line));
        }

        let (_, mut reader) = RecordingReader::new(&file[..]).unwrap();
        let mut replayed = ComputeOnlyNode::new();
        while let Some(line) = reader.next_line().unwrap() {
            match json::feed_from_json(&line.event).unwrap() {
                Some(event) => replayed.hear(&event),
                None => {
                    assert_eq!(line.event, FLUSH_EVENT);
                    replayed.turn();
                }
            }
        }
        assert_eq!(node.plans, replayed.plans, "case {} ({})", case.number, case.title);
        assert!(node.plan.workload_policies.len() > 1, "{:#?}", node.plan);
        turns += node.plans.len();
        changed += node.plans.windows(2).filter(|pair| pair[0] != pair[1]).count();
    }
    assert!(cases().len() >= 30 && turns > 60 && changed > 30, "{turns} turns, {changed} changed the plan");
}

#[test]
fn every_event_of_a_feed_reads_back() {
    let cidr = "10.65.0.0/26".parse().unwrap();
    let block = AddressBlock {
        cidr,
        ..serde_json::from_value(json!({
            "cidr": "10.65.0.0/26", "affinity": "host:n1", "allocations": [null, null], "unallocated": [0, 1],
            "attributes": [], "strictAffinity": false,
        }))
        .unwrap()
    };
    let affinity = StoreKey::BlockAffinity { affinity: AffinityType::Host, owner: "n1".to_owned(), cidr };
    let tier = StoreKey::resource(Kind::Tier, "", "web");
    let mut events: Vec<FeedEvent> = world().into_iter().map(|resource| put(resource, 7)).collect();
    events.extend([
        FeedEvent::Put { key: StoreKey::Block { cidr }, value: StoreValue::Block(block), revision: 8.into() },
        FeedEvent::Delete { key: affinity, revision: "not-a-number".parse().unwrap() },
        FeedEvent::Unreadable {
            key: tier,
            revision: 3.into(),
            text: "{\u{1}".to_owned(),
            reason: "EOF".to_owned(),
        },
        FeedEvent::InSync,
        FeedEvent::ConnectionLost { reason: "refused".to_owned() },
        FeedEvent::ConnectionBack { failed_attempts: 175 },
    ]);
    for event in events {
        let mut event = event;
        // The store sets the resource version to the revision.
        if let FeedEvent::Put { value: StoreValue::Resource(resource), revision, .. } = &mut event {
            resource.metadata_mut().resource_version = revision.to_string();
        }
        let json = json::feed_to_json(&event).unwrap();
        assert_eq!(json::feed_from_json(&json).unwrap(), Some(event), "{json}");
    }
    let strange = StoreKey::Handle { id: "x".to_owned() };
    assert!(json::key_to_json(&strange).unwrap_err().to_string().contains("cannot be part of a feed"));
    let error =
        json::feed_from_json(&json!({ "put": { "key": { "kind": "Tire", "name": "x" } } })).unwrap_err();
    assert_eq!(error.to_string(), "\"Tire\" is no kind");
}

#[test]
fn a_recording_counts_events_beyond_its_limit() {
    let mut file = Vec::new();
    let mut recorder = RecordingWriter::new(&mut file, 400, &header()).unwrap();
    let event = json::feed_to_json(&FeedEvent::ConnectionLost { reason: "x".repeat(50) }).unwrap();
    let written = (0..20).filter(|at| recorder.record(Duration::from_secs(*at), &event)).count();
    assert_eq!(recorder.lost(), 20 - written as u64);
    // A later event is not recorded even if it would fit, so that the recording has no gaps.
    assert!(!recorder.record(Duration::ZERO, &json!("inSync")));
    assert!(file.len() <= 400, "{} bytes", file.len());
    let (_, mut reader) = RecordingReader::new(&file[..]).unwrap();
    let mut read = 0;
    while let Some(line) = reader.next_line().unwrap() {
        assert_eq!(line.event, event);
        read += 1;
    }
    assert!(written > 0 && read == written, "{written} written, {read} read");
}

/// A writer that reports a full disk after some bytes.
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 =
            self.0.checked_sub(bytes.len()).ok_or_else(|| io::Error::from(io::ErrorKind::StorageFull))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_only_the_recording() {
    let mut recorder = RecordingWriter::new(FullDisk(100), u64::MAX, &header()).unwrap();
    assert!(recorder.record(Duration::ZERO, &json!("inSync")));
    assert!(!recorder.record(Duration::ZERO, &json!("inSync")));
    assert!(!recorder.record(Duration::ZERO, &json!("inSync")));
    assert_eq!(recorder.lost(), 2);
}

#[test]
fn a_truncated_line_ends_a_recording() {
    let read = |text: &str| RecordingReader::new(text.as_bytes().to_vec().as_slice()).map(|_| ());
    assert!(matches!(read(""), Err(RecordingError::Line { line: 1, .. })));
    assert!(matches!(read("hello\n"), Err(RecordingError::Line { line: 1, .. })));
    let older = read("{\"recording\":1,\"node\":\"n\",\"environment\":{}}\n");
    assert!(matches!(older, Err(RecordingError::Version(1))), "{older:?}");
    let text = "{\"recording\":2,\"node\":\"n\",\"environment\":{}}\n{\"at\":1,\"event\":\"inSync\"}\n{\"at\":2,\"eve";
    let (header, mut reader) = RecordingReader::new(text.as_bytes()).unwrap();
    assert_eq!(header.node, "n");
    assert_eq!(reader.next_line().unwrap().unwrap().number, 2);
    assert_eq!(reader.next_line().unwrap(), None);
    let (_, mut reader) =
        RecordingReader::new(&b"{\"recording\":2,\"node\":\"n\",\"environment\":{}}\n{\"at\":1}\n"[..])
            .unwrap();
    assert_eq!(
        reader.next_line().unwrap_err().to_string(),
        "line 2 is not one of a recording: it has no event"
    );
}
