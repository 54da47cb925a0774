//! A recording of the events of a node's core replays to the same actions and the same plans.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tortie_model::{FeedEvent, Resource, StoreKey, StoreValue};
use tortie_node::engine::{
    ApplyFailure, EngineEvent, FailureScope, HeldAttachment, HttpProxyChange, LearntNextHops, LearntRoute,
    WaiterId, event_from_json, event_to_json, held_from_json, held_to_json,
};
use tortie_node::{replay_core, replay_from};
use tortie_plan::WorkloadId;
use tortie_sync::record::{
    RECORDING_VERSION, RecordedBgp, RecordingHeader, RecordingReader, RecordingWriter,
};
use tortie_testkit::conformance::{ConformanceCase, cases, world};

fn header(bgp: bool) -> RecordingHeader {
    let bgp = bgp.then(|| RecordedBgp { router_id: String::new(), by_bird: false });
    let environment = BTreeMap::from([("FELIX_LOGPREFIX".to_owned(), "x".to_owned())]);
    RecordingHeader {
        version: RECORDING_VERSION,
        node: "n1".into(),
        environment,
        settings: BTreeMap::new(),
        bgp,
        held: Vec::new(),
    }
}

fn key(resource: &Resource) -> StoreKey {
    StoreKey::resource(resource.kind(), &resource.metadata().namespace, &resource.metadata().name)
}

fn put(mut resource: Resource, revision: u64) -> EngineEvent {
    resource.metadata_mut().resource_version = revision.to_string();
    let key = key(&resource);
    let value = StoreValue::Resource(resource);
    EngineEvent::Feed(FeedEvent::Put { key, value, revision: revision.into() })
}

/// Returns the events of a node that goes through a conformance case: the feed, and a dataplane that applies
/// everything without failures.
fn events_of(case: &ConformanceCase) -> Vec<EngineEvent> {
    let mut revision = 0;
    let mut next = || {
        revision += 1;
        revision
    };
    let mut events: Vec<EngineEvent> = world().into_iter().map(|resource| put(resource, next())).collect();
    events.extend([
        EngineEvent::Feed(FeedEvent::InSync),
        EngineEvent::Turn,
        EngineEvent::Started,
        EngineEvent::Turn,
    ]);
    for step in &case.steps {
        events.extend(step.applied().into_iter().map(|resource| put(resource, next())));
        let gone = step.deleted().into_iter();
        events.extend(
            gone.map(|r| EngineEvent::Feed(FeedEvent::Delete { key: key(&r), revision: next().into() })),
        );
        events.extend([EngineEvent::Turn, EngineEvent::Applied(Vec::new()), EngineEvent::Turn]);
    }
    events
}

#[test]
fn the_conformance_run_replays_to_equal_plans() {
    let mut applied = 0;
    assert!(cases().len() >= 30);
    for case in cases() {
        let header = header(case.number % 2 == 0);
        let mut file = Vec::new();
        let mut recorder = RecordingWriter::new(&mut file, u64::MAX, &header).unwrap();
        let mut live = replay_core(&header).unwrap();
        let mut seen = Vec::new();
        for (at, event) in events_of(&case).into_iter().enumerate() {
            let at = Duration::from_micros(at as u64);
            assert!(recorder.record(at, &event_to_json(&event).unwrap()));
            let actions = live.handle(at, event);
            seen.push(format!("{actions:#?} {:#?}", live.plan()));
        }
        let (header, mut reader) = RecordingReader::new(&file[..]).unwrap();
        let mut again = replay_core(&header).unwrap();
        let mut replayed = Vec::new();
        while let Some(line) = reader.next_line().unwrap() {
            let actions = again.handle(line.at, event_from_json(&line.event).unwrap());
            replayed.push(format!("{actions:#?} {:#?}", again.plan()));
        }
        assert_eq!(seen, replayed, "case {} ({})", case.number, case.title);
        let mut printed = Vec::new();
        replay_from(&file[..], &mut printed).unwrap();
        let printed = String::from_utf8(printed).unwrap();
        let plan = format!("plan at the end: {:#?}\n", live.plan());
        assert!(printed.ends_with(&plan), "case {}: {printed}", case.number);
        applied += printed.lines().filter(|line| line.contains("Policy(")).count();
    }
    assert!(applied > 30, "{applied} changes of policies");
}

/// Replays a node that restarts after the datastore lost the endpoint of a live attachment.
#[test]
fn attachments_of_the_journal_are_recorded() {
    let found = world().into_iter().find(|resource| matches!(resource, Resource::WorkloadEndpoint(_)));
    let endpoint = found.expect("a world with workloads");
    let held = [
        HeldAttachment { key: key(&endpoint), endpoint: Some(StoreValue::Resource(endpoint.clone())) },
        HeldAttachment { key: StoreKey::resource(endpoint.kind(), "shop", "unknown"), endpoint: None },
    ];
    for one in &held {
        assert_eq!(held_from_json(&held_to_json(one).unwrap()).unwrap(), *one);
    }
    let node = match &endpoint {
        Resource::WorkloadEndpoint(endpoint) => endpoint.spec.node.clone(),
        _ => unreachable!("found above"),
    };
    let header = RecordingHeader {
        node,
        held: held.iter().map(|one| held_to_json(one).unwrap()).collect(),
        ..header(false)
    };
    let mut file = Vec::new();
    let mut recorder = RecordingWriter::new(&mut file, u64::MAX, &header).unwrap();
    for event in [EngineEvent::Feed(FeedEvent::InSync), EngineEvent::Turn] {
        assert!(recorder.record(Duration::ZERO, &event_to_json(&event).unwrap()));
    }
    let mut printed = Vec::new();
    replay_from(&file[..], &mut printed).unwrap();
    let (_, plan) = std::str::from_utf8(&printed).unwrap().split_once("plan at the end: ").unwrap();
    assert!(plan.contains("cali"), "the endpoint's interface: {plan}");
}

#[test]
fn every_event_reads_back() {
    let found = world().into_iter().find(|resource| matches!(resource, Resource::WorkloadEndpoint(_)));
    let mut resource = found.expect("a world with workloads");
    resource.metadata_mut().resource_version = "17".to_owned();
    let key = key(&resource);
    let id = WorkloadId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() };
    let failure = |concerns| ApplyFailure { concerns, object: "route".into(), reason: "refused".into() };
    let route = LearntNextHops { next_hops: vec!["192.0.2.1".parse().unwrap()], metric: 7 };
    let events = [
        EngineEvent::Feed(FeedEvent::InSync),
        EngineEvent::Attach {
            waiter: WaiterId(3),
            key: key.clone(),
            value: Box::new(StoreValue::Resource(resource)),
            profile: Some("kns.shop".into()),
        },
        EngineEvent::Detach { waiter: WaiterId(4), key: key.clone(), revision: Some(18.into()) },
        EngineEvent::Detach { waiter: WaiterId(5), key: key.clone(), revision: None },
        EngineEvent::Hold { waiter: WaiterId(6), key },
        EngineEvent::Learnt {
            routes: vec![
                LearntRoute { destination: "10.0.0.0/26".parse().unwrap(), route: Some(route) },
                LearntRoute { destination: "fd00::/64".parse().unwrap(), route: None },
            ],
            complete: true,
        },
        EngineEvent::HttpProxies(vec![
            HttpProxyChange { workload: id.clone(), live: true },
            HttpProxyChange { workload: id.clone(), live: false },
        ]),
        EngineEvent::Started,
        EngineEvent::Applied(vec![
            failure(FailureScope::Everything),
            failure(FailureScope::Workloads(BTreeSet::from([id]))),
            failure(FailureScope::Workloads(BTreeSet::new())),
        ]),
        EngineEvent::Stopped("gone".into()),
        EngineEvent::Turn,
    ];
    for event in events {
        let json = event_to_json(&event).unwrap();
        assert_eq!(event_from_json(&json).unwrap(), event, "{json}");
    }
    let error = event_from_json(&serde_json::json!({ "explode": 1 })).unwrap_err().to_string();
    assert!(error.contains("explode"), "{error}");
}
