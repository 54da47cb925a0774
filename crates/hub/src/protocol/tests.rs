use super::*;
use std::collections::BTreeMap;
use tortie_model::{FeedEvent, KeyRange, Kind, StoreKey};
use tortie_sync::FeedMessage;

fn tier(text: &str, revision: u64) -> FeedMessage {
    let key = StoreKey::resource(Kind::Tier, "", "web");
    let value = tortie_model::StoreValue::decode(&key, text.as_bytes()).unwrap();
    FeedMessage::Event(FeedEvent::Put { key, value, revision: revision.into() })
}

#[test]
fn versions_are_the_highest_that_both_speak() {
    assert_eq!(common_version(1, 1), Some(1));
    assert_eq!(common_version(1, 99), Some(NEWEST_PROTOCOL_VERSION));
    assert_eq!(common_version(NEWEST_PROTOCOL_VERSION + 1, 99), None);
    assert_eq!(common_version(0, 0), None);
}

#[test]
fn what_is_too_long_is_refused_before_it_is_there() {
    // First bytes of clients of other protocols: Typha's (gob), TLS, HTTP.
    for foreign in [&b"\x3b\xff\x81\x03\x01\x01"[..], b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"]
    {
        let error = unframe(&mut foreign.into(), MAX_CLIENT_FRAME_BYTES).unwrap_err();
        assert!(matches!(error, ProtocolError::TooLong { .. }), "{error}");
    }
    let mut half = BytesMut::from(&b"\0\0\0\x05ab"[..]);
    assert_eq!(unframe(&mut half, 5).unwrap(), None);
    assert!(unframe(&mut half, 4).is_err());
}

#[test]
fn content_that_pretends_to_be_small_or_large_is_refused() {
    let honest =
        RecordPayload::of(vec![FeedRecord { value: vec![b'a'; 100_000].into(), ..FeedRecord::default() }]);
    assert_eq!(honest.records().unwrap().len(), 1);
    assert!(honest.encoded_len() < 1000, "{} bytes", honest.encoded_len());
    let bytes = honest.encode_to_vec();
    let lie = |raw: u64| {
        let mut lying = bytes[..bytes.len() - 4].to_vec();
        lying.extend([0x10]);
        prost::encoding::encode_varint(raw, &mut lying);
        RecordPayload::decode(&lying[..])
    };
    assert!(lie(10).unwrap().records().is_err(), "it does not fit in what it says");
    assert!(matches!(lie(1 << 31).unwrap().records(), Err(PayloadError::TooLong { .. })));
}

#[test]
fn entries_survive_the_way() {
    let text = r#"{"kind":"Tier","apiVersion":"projectcalico.org/v3","metadata":{"name":"web"},"spec":{"order":7,"new":[1]}}"#;
    let record = to_record(&tier(text, 17)).unwrap().unwrap();
    assert_eq!(record.key, r#"{"kind":"Tier","name":"web"}"#);
    assert_eq!(class_of(&record.key).as_deref(), Some("Tier"));
    assert!(record.key.starts_with(&key_of_kind(Kind::Tier)));
    let FeedEvent::Put { key, value, revision } = from_record(&record).unwrap() else { panic!() };
    assert_eq!((key, revision), (StoreKey::resource(Kind::Tier, "", "web"), 17.into()));
    let tortie_model::StoreValue::Resource(resource) = value else { panic!() };
    assert_eq!(resource.metadata().resource_version, "17");
    assert!(String::from_utf8(resource.to_value().to_string().into()).unwrap().contains("\"new\":[1]"));
}

#[test]
fn what_a_newer_hub_says_is_passed_over_or_unreadable_never_wrong() {
    let record = |key: &str, value: &'static str| FeedRecord {
        key: key.to_owned(),
        revision: "5".to_owned(),
        value: value.into(),
        ..FeedRecord::default()
    };
    assert!(from_record(&record(r#"{"kind":"Wormhole","name":"x"}"#, "{}")).is_err());
    assert_eq!(class_of(r#"{"kind":"Wormhole","name":"x"}"#).as_deref(), Some("Wormhole"));
    let event = from_record(&record(r#"{"kind":"Tier","name":"x"}"#, "[]")).unwrap();
    assert!(matches!(event, FeedEvent::Unreadable { .. }), "{event:?}");
    // A field and a message type that version 1 does not have.
    let mut hello = from_client::ClientMessage::Hello(HelloMessage::default()).frame().slice(4..).to_vec();
    hello.extend([0xa2, 0x06, 0x01, 0x00]);
    assert!(matches!(ClientEnvelope::read(hello.into()), Ok(from_client::ClientMessage::Hello(_))));
    assert!(matches!(HubEnvelope::read(Bytes::from_static(&[0xa2, 0x06, 0x00])), Err(ProtocolError::Empty)));
}

#[test]
fn every_range_of_a_node_has_a_class_and_keys_agree_with_it() {
    let slice = StoreKey::EndpointSlice { namespace: "a".to_owned(), name: "b".to_owned() };
    let block = StoreKey::Block { cidr: "10.0.0.0/26".parse().unwrap() };
    let ranges = [
        (KeyRange::all(Kind::Tier), StoreKey::resource(Kind::Tier, "", "x")),
        (KeyRange::Blocks { ip_version: None }, block),
        (KeyRange::EndpointSlices, slice),
    ];
    for (range, key) in ranges {
        assert!(range.contains(&key));
        let event = FeedEvent::Delete { key, revision: 1.into() };
        let record = to_record(&FeedMessage::Event(event)).unwrap().unwrap();
        assert_eq!(class_of(&record.key).as_deref(), class_of_range(&range));
    }
    assert_eq!(class_of_range(&KeyRange::Handles), None);
}

/// Version 1, byte for byte: hubs and nodes of different versions work together during an upgrade, so these bytes
/// never change.
#[test]
fn version_1_is_what_it_was() {
    let marks = BTreeMap::from([("Tier".to_owned(), 17)]);
    let position = Some(HubPosition { epoch: 0x0102_0304_0506_0708, sequence: 300 });
    let record = FeedRecord {
        key: r#"{"kind":"Tier","name":"web"}"#.to_owned(),
        what: RecordAction::Put.into(),
        revision: "17".to_owned(),
        value: Bytes::from_static(b"{}"),
        reason: String::new(),
    };
    let hello = HelloMessage {
        magic: PROTOCOL_MAGIC,
        oldest: 1,
        newest: 1,
        node: "n1".to_owned(),
        position,
        empty: false,
        marks: marks.clone(),
        wanted: vec!["Tier".to_owned()],
    };
    let status = HubStoreStatus { trouble: Some("x".to_owned()), failed_attempts: 2 };
    let records = || RecordPayload::of(vec![record.clone()]);
    let bucket = BucketMessage { index: 5, changed: 4, more: true, records: records() };
    let changes = ChangesMessage { sequence: 9, records: records(), status: Some(status.clone()) };
    let frames = [
        from_client::ClientMessage::Hello(hello).frame(),
        from_client::ClientMessage::Digests(DigestsMessage { sums: vec![1, 2] }).frame(),
        from_client::ClientMessage::Pong(()).frame(),
        from_hub::HubMessage::Welcome(WelcomeMessage { version: 1, epoch: 7, behind: true }).frame(),
        from_hub::HubMessage::Refused(RefusedMessage { reason: "no".to_owned() }).frame(),
        from_hub::HubMessage::Resume(status.clone()).frame(),
        from_hub::HubMessage::Compare(()).frame(),
        from_hub::HubMessage::Begin(BeginMessage { sequence: 3, status: Some(status) }).frame(),
        from_hub::HubMessage::Bucket(bucket).frame(),
        from_hub::HubMessage::End(EndMessage { marks }).frame(),
        from_hub::HubMessage::Changes(changes).frame(),
        from_hub::HubMessage::Ping(()).frame(),
        from_hub::HubMessage::Leave(()).frame(),
    ];
    let hex = |bytes: &Bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let now: Vec<String> = frames.iter().map(hex).collect();
    let then: Vec<&str> = include_str!("version_1.hex").lines().collect();
    assert_eq!(now, then);
    assert_eq!((bucket_of(&record.key), record.digest()), (VERSION_1_BUCKET, VERSION_1_DIGEST));
}

const VERSION_1_BUCKET: usize = 522;
const VERSION_1_DIGEST: u64 = 0xf6d7_eb43_6d9f_ce24;
