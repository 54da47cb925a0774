//! Damage in a store that was not closed cleanly: an acknowledged write is never lost silently.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::Path;
use support::{EmbeddedDatastore, connect};
use tempfile::TempDir;
use tortie_datastore::core::StoreCore;
use tortie_datastore::{OpenError, StoreOptions};
use tortie_etcd_proto::etcdserverpb::PutRequest;
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;

const KEY_COUNT: usize = 21;
const PAGE_BYTES: usize = 4096;
const ACKNOWLEDGED_FILE: &str = "store.acknowledged";

fn read(dir: &Path) -> (Vec<u8>, Vec<u8>) {
    (fs::read(dir.join("store.redb")).unwrap(), fs::read(dir.join(ACKNOWLEDGED_FILE)).unwrap_or_default())
}

/// Returns the files of a store as kill -9 would leave them: before its last write, and after that write was
/// acknowledged.
async fn images() -> ((Vec<u8>, Vec<u8>), (Vec<u8>, Vec<u8>)) {
    let embedded = EmbeddedDatastore::start();
    let mut kv = KvClient::new(connect(&embedded.url).await);
    let mut before = None;
    for number in 0..KEY_COUNT {
        before = Some(read(embedded.dir.path()));
        let put = PutRequest {
            key: format!("/{number}").into(),
            value: vec![3; 2000].into(),
            ..Default::default()
        };
        kv.put(put).await.unwrap();
    }
    let after = read(embedded.dir.path());
    embedded.stop().await;
    (before.unwrap(), after)
}

fn open(dir: &Path) -> Result<usize, OpenError> {
    let core = StoreCore::open(dir, StoreOptions::DEFAULT_QUOTA_BYTES)?;
    // An empty store is at revision 1, and each key was put once.
    Ok(core.latest().get().state.revision as usize - 1)
}

fn place(database: &[u8], note: Option<&[u8]>) -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("store.redb"), database).unwrap();
    if let Some(note) = note {
        fs::write(dir.path().join(ACKNOWLEDGED_FILE), note).unwrap();
    }
    dir
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_last_commit_is_reported() {
    let ((before, _), (after, note)) = images().await;
    assert_eq!(open(place(&after, Some(&note)).path()).unwrap(), KEY_COUNT, "whole, it opens");
    // One bit in each 64 bytes that the last commit wrote.
    let written = |at: &usize| before.get(*at..*at + 64) != after.get(*at..*at + 64);
    let places: Vec<usize> = (0..after.len()).step_by(64).filter(written).collect();
    let pages: std::collections::BTreeSet<_> = places.iter().map(|at| at / PAGE_BYTES).collect();
    assert!(pages.len() > 1, "the last commit wrote {} pages", pages.len());
    let (mut lost, mut corrupt) = (0, 0);
    for (number, at) in places.into_iter().enumerate() {
        let mut damaged = after.clone();
        damaged[at + number % 64] ^= 1 << (number % 8);
        let dir = place(&damaged, Some(&note));
        match open(dir.path()) {
            Ok(keys) => {
                assert_eq!(keys, KEY_COUNT, "byte {at}: an acknowledged write was lost without a word")
            }
            Err(error @ OpenError::Lost { .. }) => {
                lost += 1;
                let text = error.to_string();
                assert!(text.contains("has lost acknowledged writes"), "{text}");
                assert!(text.contains("restore a snapshot, or remove store.acknowledged"), "{text}");
                assert!(fs::read(dir.path().join("store.redb")).unwrap() == damaged, "the file was changed");
                // Without the record, the damage looks like a commit that was never finished.
                fs::remove_file(dir.path().join(ACKNOWLEDGED_FILE)).unwrap();
                assert_eq!(open(dir.path()).unwrap(), KEY_COUNT - 1);
            }
            Err(OpenError::Corrupt { .. }) => corrupt += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    println!("{lost} lost commits and {corrupt} corrupt files were found");
    assert!(lost > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unacknowledged_commit_may_go() {
    let ((_, earlier), (after, note)) = images().await;
    // The last commit is half written: the record still refers to the previous one.
    let torn = |at: usize| {
        let mut torn = after.clone();
        torn[at..at + PAGE_BYTES].fill(0);
        torn
    };
    let mut went_back = 0;
    for page in 1..after.len() / PAGE_BYTES {
        let Ok(keys) = open(place(&torn(page * PAGE_BYTES), Some(&earlier)).path()) else { continue };
        assert!(keys == KEY_COUNT || keys == KEY_COUNT - 1);
        went_back += usize::from(keys == KEY_COUNT - 1);
    }
    assert!(went_back > 0);
    // A damaged record only makes the check at the start less strict.
    let mut noise = note.clone();
    noise.iter_mut().for_each(|byte| *byte ^= 0x55);
    assert_eq!(open(place(&after, Some(&noise)).path()).unwrap(), KEY_COUNT);
    assert_eq!(open(place(&after, Some(b"short")).path()).unwrap(), KEY_COUNT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_snapshot_is_blamed_itself() {
    let (_, (database, _)) = images().await;
    let dir = TempDir::new().unwrap();
    let (file, target) = (dir.path().join("backup.db"), dir.path().join("new"));
    let whole = {
        use sha2::Digest;
        [database.as_slice(), sha2::Sha256::digest(&database).as_slice()].concat()
    };
    for len in [0, 100, PAGE_BYTES, whole.len() / 2, whole.len() - 512, whole.len() - 1] {
        fs::write(&file, &whole[..len]).unwrap();
        let error = tortie_datastore::restore(&file, &target).unwrap_err().to_string();
        let expected = format!("{} is not a whole snapshot (", file.display());
        assert!(error.starts_with(&expected), "{len} bytes: {error}");
        assert!(error.contains("save it again with `etcdctl snapshot save`"), "{error}");
        assert!(!target.exists(), "{len} bytes: the new directory was left behind");
    }
    let mut etcd = vec![0; 8192];
    etcd[16..20].copy_from_slice(&0xED0C_DAEDu32.to_le_bytes());
    fs::write(&file, etcd).unwrap();
    let error = tortie_datastore::restore(&file, &target).unwrap_err().to_string();
    assert!(error.contains("is a snapshot of etcd, not of the embedded store"), "{error}");
    fs::write(&file, whole).unwrap();
    tortie_datastore::restore(&file, &target).unwrap();
    assert_eq!(open(&target).unwrap(), KEY_COUNT);
}
