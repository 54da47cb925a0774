//! Writes seeds for the target `hub_protocol`: `cargo run --example hub_seeds`. Each seed is one side of a connection.

use std::collections::BTreeMap;
use std::path::Path;
use tortie_hub::protocol::{
    BUCKET_COUNT, BeginMessage, BucketMessage, ChangesMessage, ClientMessage, DigestsMessage, EndMessage,
    FeedRecord, HelloMessage, HubMessage, HubPosition, HubStoreStatus, NEWEST_PROTOCOL_VERSION,
    OLDEST_PROTOCOL_VERSION, PROTOCOL_MAGIC, RecordAction, RecordPayload, RefusedMessage, WelcomeMessage, choose_bucket,
};

fn main() -> std::io::Result<()> {
    let marks = || BTreeMap::from([("Tier".to_owned(), 17)]);
    let record = |name: &str, what: RecordAction, revision: u64, value: &'static str| FeedRecord {
        key: format!(r#"{{"kind":"Tier","name":"{name}"}}"#),
        action: what.into(),
        revision: revision.to_string(),
        value: value.into(),
        reason: String::new(),
    };
    let tier = r#"{"kind":"Tier","apiVersion":"projectcalico.org/v3","metadata":{"name":"web"},"spec":{"order":7}}"#;
    let web = record("web", RecordAction::Put, 17, tier);
    let status = |trouble: Option<&str>| HubStoreStatus { trouble: trouble.map(str::to_owned), failed_attempts: 2 };
    let changes = |sequence, records: Vec<FeedRecord>, status| {
        HubMessage::Changes(ChangesMessage { sequence, records: RecordPayload::new(&records), status })
    };
    let welcome = || HubMessage::Welcome(WelcomeMessage { version: 1, epoch: 7, behind: false });
    let bucket = |more, records: Vec<FeedRecord>| {
        let index = u32::try_from(choose_bucket(&web.key)).unwrap_or_default();
        HubMessage::Bucket(BucketMessage { index, changed: 4, more, records: RecordPayload::new(&records) })
    };
    let snapshot = || {
        vec![
            welcome(),
            HubMessage::Begin(BeginMessage { sequence: 4, status: Some(status(None)) }),
            bucket(true, vec![web.clone()]),
            bucket(false, Vec::new()),
            HubMessage::End(EndMessage { marks: marks() }),
        ]
    };
    let mut followed = snapshot();
    followed.extend([
        changes(5, vec![record("api", RecordAction::Put, 18, "{}")], None),
        changes(6, vec![record("api", RecordAction::Delete, 19, "")], Some(status(Some("gone")))),
        HubMessage::Ping(()),
    ]);
    let mut again = snapshot();
    again.extend([
        HubMessage::Compare(()),
        HubMessage::Begin(BeginMessage { sequence: 9, status: None }),
        bucket(false, Vec::new()),
        HubMessage::End(EndMessage { marks: marks() }),
        HubMessage::Leave(()),
    ]);
    let resumed =
        vec![welcome(), HubMessage::Resume(status(Some("x"))), changes(301, vec![web.clone()], None)];
    let refused = vec![HubMessage::Refused(RefusedMessage { reason: "no".to_owned() })];
    for (name, frames) in
        [("followed", followed), ("again", again), ("resumed", resumed), ("refused", refused)]
    {
        write(name, frames.into_iter().map(HubMessage::frame))?;
    }

    let hello = |position, empty| {
        ClientMessage::Hello(HelloMessage {
            magic: PROTOCOL_MAGIC,
            oldest: OLDEST_PROTOCOL_VERSION,
            newest: NEWEST_PROTOCOL_VERSION,
            node: "n1".to_owned(),
            position,
            empty,
            marks: marks(),
            wanted: vec!["Tier".to_owned()],
        })
    };
    let position = Some(HubPosition { epoch: 1, sequence: 1 });
    let digests = ClientMessage::Digests(DigestsMessage { sums: vec![0; BUCKET_COUNT] });
    for (name, frames) in [
        ("new", vec![hello(None, true), ClientMessage::Pong(())]),
        ("compared", vec![hello(None, false), digests]),
        ("returned", vec![hello(position, false), ClientMessage::Pong(())]),
    ] {
        write(name, frames.into_iter().map(ClientMessage::frame))?;
    }
    Ok(())
}

fn write(name: &str, frames: impl Iterator<Item = impl AsRef<[u8]>>) -> std::io::Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/hub_protocol");
    std::fs::create_dir_all(&dir)?;
    let bytes: Vec<u8> = frames.flat_map(|frame| frame.as_ref().to_vec()).collect();
    std::fs::write(dir.join(name), bytes)
}
