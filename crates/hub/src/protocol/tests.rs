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
fn the_newest_common_version_is_used() {
    assert_eq!(choose_version(1, 1), Some(1));
    assert_eq!(choose_version(1, 99), Some(NEWEST_PROTOCOL_VERSION));
    assert_eq!(choose_version(NEWEST_PROTOCOL_VERSION + 1, 99), None);
    assert_eq!(choose_version(0, 0), None);
}

#[test]
fn oversized_frames_are_rejected_by_their_length() {
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
fn content_with_a_false_length_is_rejected() {
    let honest =
        RecordPayload::new(&[FeedRecord { value: vec![b'a'; 100_000].into(), ..FeedRecord::default() }]);
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
fn entries_survive_the_protocol() {
    let text = r#"{"kind":"Tier","apiVersion":"projectcalico.org/v3","metadata":{"name":"web"},"spec":{"order":7,"new":[1]}}"#;
    let record = to_record(tier(text, 17)).unwrap().unwrap();
    assert_eq!(record.key, r#"{"kind":"Tier","name":"web"}"#);
    assert_eq!(find_class(&record.key).as_deref(), Some("Tier"));
    assert!(record.key.starts_with(&build_key_prefix(Kind::Tier)));
    let FeedEvent::Put { key, value, revision } = from_record(&record).unwrap() else { panic!() };
    assert_eq!((key, revision), (StoreKey::resource(Kind::Tier, "", "web"), 17.into()));
    let tortie_model::StoreValue::Resource(resource) = value else { panic!() };
    assert_eq!(resource.metadata().resource_version, "17");
    assert!(String::from_utf8(resource.to_value().to_string().into()).unwrap().contains("\"new\":[1]"));
}

#[test]
fn unknown_content_is_skipped_or_unreadable() {
    let record = |key: &str, value: &'static str| FeedRecord {
        key: key.to_owned(),
        revision: "5".to_owned(),
        value: value.into(),
        ..FeedRecord::default()
    };
    assert!(from_record(&record(r#"{"kind":"Wormhole","name":"x"}"#, "{}")).is_err());
    assert_eq!(find_class(r#"{"kind":"Wormhole","name":"x"}"#).as_deref(), Some("Wormhole"));
    let event = from_record(&record(r#"{"kind":"Tier","name":"x"}"#, "[]")).unwrap();
    assert!(matches!(event, FeedEvent::Unreadable { .. }), "{event:?}");
    // A field and a message type that version 1 does not have.
    let mut hello = ClientMessage::Hello(HelloMessage::default()).frame().slice(4..).to_vec();
    hello.extend([0xa2, 0x06, 0x01, 0x00]);
    assert!(matches!(ClientMessage::decode(hello.into()), Ok(ClientMessage::Hello(_))));
    assert!(matches!(HubMessage::decode(Bytes::from_static(&[0xa2, 0x06, 0x00])), Err(ProtocolError::Empty)));
}

#[test]
fn keys_have_the_class_of_their_range() {
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
        let record = to_record(FeedMessage::Event(event)).unwrap().unwrap();
        assert_eq!(find_class(&record.key).as_deref(), find_range_class(&range));
    }
    assert_eq!(find_range_class(&KeyRange::Handles), None);
}

/// Version 1, byte for byte: hubs and nodes of different versions work together during an upgrade, so these bytes
/// never change.
#[test]
fn version_1_is_unchanged() {
    let marks = BTreeMap::from([("Tier".to_owned(), 17)]);
    let position = Some(HubPosition { epoch: 0x0102_0304_0506_0708, sequence: 300 });
    let record = FeedRecord {
        key: r#"{"kind":"Tier","name":"web"}"#.to_owned(),
        action: RecordAction::Put.into(),
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
    let records = || RecordPayload::new([&record]);
    let bucket = BucketMessage { index: 5, changed: 4, more: true, records: records() };
    let changes = ChangesMessage { sequence: 9, records: records(), status: Some(status.clone()) };
    let frames = [
        ClientMessage::Hello(hello).frame(),
        ClientMessage::Digests(DigestsMessage { sums: vec![1, 2] }).frame(),
        ClientMessage::Pong(()).frame(),
        HubMessage::Welcome(WelcomeMessage { version: 1, epoch: 7, behind: true }).frame(),
        HubMessage::Refused(RefusedMessage { reason: "no".to_owned() }).frame(),
        HubMessage::Resume(status.clone()).frame(),
        HubMessage::Compare(()).frame(),
        HubMessage::Begin(BeginMessage { sequence: 3, status: Some(status) }).frame(),
        HubMessage::Bucket(bucket).frame(),
        HubMessage::End(EndMessage { marks }).frame(),
        HubMessage::Changes(changes).frame(),
        HubMessage::Ping(()).frame(),
        HubMessage::Leave(()).frame(),
    ];
    let hex = |bytes: &Bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let now: Vec<String> = frames.iter().map(hex).collect();
    let then: Vec<&str> = include_str!("version_1.hex").lines().collect();
    assert_eq!(now, then);
    assert_eq!((choose_bucket(&record.key), record.digest()), (VERSION_1_BUCKET, VERSION_1_DIGEST));
}

const VERSION_1_BUCKET: usize = 522;
const VERSION_1_DIGEST: u64 = 0xf6d7_eb43_6d9f_ce24;
