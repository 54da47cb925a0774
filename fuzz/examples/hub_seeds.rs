//! Writes seeds for the target `hub_protocol`: `cargo run --example hub_seeds`. Each seed is one side of a connection.

use std::collections::BTreeMap;
use std::path::Path;
use tortie_hub::protocol::{
    BUCKETS, Begin, Bucket, Changes, Digests, End, Hello, MAGIC, NEWEST, OLDEST, Payload, Position, Record, Refused,
    Status, Welcome, What, bucket_of, from_client, from_hub,
};

fn main() -> std::io::Result<()> {
    let marks = || BTreeMap::from([("Tier".to_owned(), 17)]);
    let record = |name: &str, what: What, revision: u64, value: &'static str| Record {
        key: format!(r#"{{"kind":"Tier","name":"{name}"}}"#),
        what: what.into(),
        revision: revision.to_string(),
        value: value.into(),
        reason: String::new(),
    };
    let tier = r#"{"kind":"Tier","apiVersion":"projectcalico.org/v3","metadata":{"name":"web"},"spec":{"order":7}}"#;
    let web = record("web", What::Put, 17, tier);
    let status = |trouble: Option<&str>| Status { trouble: trouble.map(str::to_owned), failed_attempts: 2 };
    let changes = |sequence, records: Vec<Record>, status| {
        from_hub::What::Changes(Changes { sequence, records: Payload::of(records), status })
    };
    let welcome = || from_hub::What::Welcome(Welcome { version: 1, epoch: 7, behind: false });
    let bucket = |more, records: Vec<Record>| {
        let index = u32::try_from(bucket_of(&web.key)).unwrap_or_default();
        from_hub::What::Bucket(Bucket { index, changed: 4, more, records: Payload::of(records) })
    };
    let snapshot = || {
        vec![
            welcome(),
            from_hub::What::Begin(Begin { sequence: 4, status: Some(status(None)) }),
            bucket(true, vec![web.clone()]),
            bucket(false, Vec::new()),
            from_hub::What::End(End { marks: marks() }),
        ]
    };
    let mut followed = snapshot();
    followed.extend([
        changes(5, vec![record("api", What::Put, 18, "{}")], None),
        changes(6, vec![record("api", What::Delete, 19, "")], Some(status(Some("gone")))),
        from_hub::What::Ping(()),
    ]);
    let mut again = snapshot();
    again.extend([
        from_hub::What::Compare(()),
        from_hub::What::Begin(Begin { sequence: 9, status: None }),
        bucket(false, Vec::new()),
        from_hub::What::End(End { marks: marks() }),
        from_hub::What::Leave(()),
    ]);
    let resumed =
        vec![welcome(), from_hub::What::Resume(status(Some("x"))), changes(301, vec![web.clone()], None)];
    let refused = vec![from_hub::What::Refused(Refused { reason: "no".to_owned() })];
    for (name, frames) in
        [("followed", followed), ("again", again), ("resumed", resumed), ("refused", refused)]
    {
        write(name, frames.into_iter().map(from_hub::What::frame))?;
    }

    let hello = |position, empty| {
        from_client::What::Hello(Hello {
            magic: MAGIC,
            oldest: OLDEST,
            newest: NEWEST,
            node: "n1".to_owned(),
            position,
            empty,
            marks: marks(),
            wanted: vec!["Tier".to_owned()],
        })
    };
    let position = Some(Position { epoch: 1, sequence: 1 });
    let digests = from_client::What::Digests(Digests { sums: vec![0; BUCKETS] });
    for (name, frames) in [
        ("new", vec![hello(None, true), from_client::What::Pong(())]),
        ("compared", vec![hello(None, false), digests]),
        ("returned", vec![hello(position, false), from_client::What::Pong(())]),
    ] {
        write(name, frames.into_iter().map(from_client::What::frame))?;
    }
    Ok(())
}

fn write(name: &str, frames: impl Iterator<Item = impl AsRef<[u8]>>) -> std::io::Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/hub_protocol");
    std::fs::create_dir_all(&dir)?;
    let bytes: Vec<u8> = frames.flat_map(|frame| frame.as_ref().to_vec()).collect();
    std::fs::write(dir.join(name), bytes)
}
