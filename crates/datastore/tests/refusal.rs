//! Directories and requests that the embedded store rejects: the error states the remedy, and the rejected data is
//! not modified.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use support::{EmbeddedDatastore, connect, seed};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request};
use tortie_datastore::{ListenAddress, OpenError, StoreOptions, StoreServer};
use tortie_etcd_proto::etcdserverpb::alarm_request::AlarmAction;
use tortie_etcd_proto::etcdserverpb::auth_client::AuthClient;
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::lease_client::LeaseClient;
use tortie_etcd_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use tortie_etcd_proto::etcdserverpb::watch_client::WatchClient;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use tortie_etcd_proto::etcdserverpb::*;

fn open(dir: &Path) -> Result<StoreServer, OpenError> {
    StoreServer::open(&StoreOptions::new(dir, vec!["http://127.0.0.1:0".parse().unwrap()]))
}

fn refused(dir: &Path) -> OpenError {
    open(dir).err().expect("it must be refused")
}

/// Returns every file in a directory with its content.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Returns the database of a store with some keys that was shut down cleanly.
async fn database() -> Vec<u8> {
    let embedded = EmbeddedDatastore::start();
    let mut kv = KvClient::new(connect(&embedded.url).await);
    for number in 0..300 {
        let put =
            PutRequest { key: key(number), value: vec![number as u8; 500].into(), ..Default::default() };
        kv.put(put).await.unwrap();
    }
    let dir = embedded.stop().await;
    fs::read(dir.path().join("store.redb")).unwrap()
}

fn key(number: usize) -> bytes::Bytes {
    format!("/key/{number:04}").into()
}

async fn is_whole(dir: &Path) -> bool {
    let server = open(dir).unwrap();
    let url = server.local_addrs()[0].to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(server.serve(async { drop(stopped.await) }));
    let all = RangeRequest { key: "/".into(), range_end: "0".into(), ..Default::default() };
    let kvs = KvClient::new(connect(&url).await).range(all).await.unwrap().into_inner().kvs;
    drop(stop);
    served.await.unwrap().unwrap();
    kvs.len() == 300
        && kvs
            .iter()
            .enumerate()
            .all(|(n, kv)| kv.key == key(n) && kv.value.iter().all(|byte| *byte == n as u8))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_database_is_refused_and_left_alone() {
    let whole = database().await;
    let noise: Vec<u8> = (0..whole.len()).map(|n| ((n * 7919) >> 3) as u8).collect();
    let damages: [(&str, Vec<u8>); 5] = [
        ("noise", noise),
        ("empty", Vec::new()),
        ("short", whole[..whole.len() / 2].to_vec()),
        ("a header only", whole[..512].to_vec()),
        ("zeroes in the middle", {
            let mut damaged = whole.clone();
            let middle = damaged.len() / 4;
            damaged[middle..middle * 3].fill(0);
            damaged
        }),
    ];
    for (name, damaged) in damages {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("store.redb"), &damaged).unwrap();
        let before = contents(dir.path());
        let error = refused(dir.path());
        assert!(matches!(error, OpenError::Corrupt { .. }), "{name}: {error}");
        let text = error.to_string();
        assert!(text.contains(&*dir.path().to_string_lossy()), "{text}");
        assert!(text.contains("move store.redb away and restore a snapshot"), "{text}");
        assert!(contents(dir.path()) == before, "{name}: the refused directory was changed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_is_found_or_harmless() {
    let seed = seed();
    let mut rng = <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(seed);
    let whole = database().await;
    let mut found = 0;
    for _ in 0..60 {
        let dir = TempDir::new().unwrap();
        let mut damaged = whole.clone();
        let place = rand::Rng::random_range(&mut rng, 0..damaged.len());
        damaged[place] ^= rand::Rng::random_range(&mut rng, 1..=255u8);
        fs::write(dir.path().join("store.redb"), &damaged).unwrap();
        let before = contents(dir.path());
        match open(dir.path()) {
            Err(error) => {
                found += 1;
                assert!(matches!(error, OpenError::Corrupt { .. }), "seed {seed}, byte {place}: {error}");
                assert!(contents(dir.path()) == before, "seed {seed}, byte {place}: changed");
            }
            Ok(server) => {
                drop(server);
                assert!(is_whole(dir.path()).await, "seed {seed}, byte {place}: damage was not found");
            }
        }
    }
    println!("{found} of 60 flipped bytes mattered");
    assert!(found > 0);
}

#[test]
fn a_foreign_directory_is_refused_and_left_alone() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let before = contents(dir.path());
    let error = refused(dir.path());
    assert!(matches!(error, OpenError::Foreign { .. }));
    assert_eq!(
        error.to_string(),
        format!(
            "{} is not empty and holds no Tortie datastore; name an empty or a new directory as data directory",
            dir.path().display()
        )
    );
    assert_eq!(contents(dir.path()), before);

    // A foreign redb database under our file name.
    let dir = TempDir::new().unwrap();
    drop(redb::Database::create(dir.path().join("store.redb")).unwrap());
    let before = contents(dir.path());
    assert!(matches!(refused(dir.path()), OpenError::Foreign { .. }));
    assert_eq!(contents(dir.path()), before);
}

#[tokio::test]
async fn a_directory_in_use_is_refused() {
    let dir = TempDir::new().unwrap();
    let first = open(dir.path()).unwrap();
    let error = refused(dir.path());
    assert!(matches!(error, OpenError::InUse { .. }));
    assert!(error.to_string().contains("is in use by another process; stop it first"), "{error}");
    drop(first);
    open(dir.path()).unwrap();
}

#[test]
fn a_newer_format_is_refused() {
    let dir = TempDir::new().unwrap();
    drop(open(dir.path()).unwrap());
    let database = redb::Database::create(dir.path().join("store.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let table: redb::TableDefinition<&str, &[u8]> = redb::TableDefinition::new("tortie_datastore");
    transaction.open_table(table).unwrap().insert("format", 2u32.to_le_bytes().as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let before = contents(dir.path());
    let error = refused(dir.path());
    assert!(
        error.to_string().contains("was written by a newer version (format 2, this one knows 1)"),
        "{error}"
    );
    assert_eq!(contents(dir.path()), before);
}

#[tokio::test]
async fn only_a_stale_socket_is_taken_over() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("s");
    let at = |name: &str| StoreOptions::new(dir.path().join(name), vec![ListenAddress::Unix(socket.clone())]);
    // Left behind by a crash.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let first = StoreServer::open(&at("one")).unwrap();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let error = StoreServer::open(&at("two")).err().unwrap().to_string();
    assert!(error.contains("another server answers there"), "{error}");
    drop(first);
    assert!(!socket.exists());
    fs::write(&socket, "a file").unwrap();
    let error = StoreServer::open(&at("three")).err().unwrap().to_string();
    assert!(error.contains("a file that is no socket has this name"), "{error}");
    assert_eq!(fs::read(&socket).unwrap(), b"a file");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_still_reads_deletes_and_compacts() {
    let embedded = EmbeddedDatastore::with(|options| options.quota_bytes = 2 << 20);
    let channel = connect(&embedded.url).await;
    let mut kv = KvClient::new(channel.clone());
    let mut maintenance = MaintenanceClient::new(channel);
    let put =
        |number: usize| PutRequest { key: key(number), value: vec![1; 100_000].into(), ..Default::default() };
    let mut stored = 0;
    let full = loop {
        match kv.put(put(stored)).await {
            Ok(_) => stored += 1,
            Err(status) => break status,
        }
        assert!(stored < 100, "the quota does not hold");
    };
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert_eq!(full.message(), "etcdserver: mvcc: database space exceeded");
    let mut alarm = async |action: AlarmAction| {
        let request = AlarmRequest { action: action.into(), member_id: 0, alarm: AlarmType::Nospace.into() };
        maintenance.alarm(request).await.unwrap().into_inner().alarms.len()
    };
    assert_eq!(alarm(AlarmAction::Get).await, 1);

    let everything =
        RangeRequest { key: "/".into(), range_end: "0".into(), count_only: true, ..Default::default() };
    assert_eq!(kv.range(everything).await.unwrap().into_inner().count, stored as i64);
    let delete = DeleteRangeRequest { key: "/".into(), range_end: "0".into(), ..Default::default() };
    let deleted = kv.delete_range(delete).await.unwrap().into_inner();
    assert_eq!(deleted.deleted, stored as i64);
    let revision = deleted.header.unwrap().revision;
    kv.compact(CompactionRequest { revision, physical: true }).await.unwrap();
    let refused = kv.put(put(0)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);

    MaintenanceClient::new(connect(&embedded.url).await).defragment(DefragmentRequest {}).await.unwrap();
    assert_eq!(alarm(AlarmAction::Deactivate).await, 1);
    assert_eq!(alarm(AlarmAction::Get).await, 0);
    kv.put(put(0)).await.unwrap();
}

/// Creates the users root and cat, where cat may read and write keys that begin with /cat/. Returns the token of
/// each.
async fn users(channel: &Channel) -> (String, String) {
    let mut auth = AuthClient::new(channel.clone());
    for name in ["root", "cat"] {
        let user = AuthUserAddRequest { name: name.into(), password: "pw".into(), ..Default::default() };
        auth.user_add(user).await.unwrap();
        // etcd treats the role root specially, but the role must exist.
        let _ = auth.role_add(AuthRoleAddRequest { name: name.into() }).await;
        auth.user_grant_role(AuthUserGrantRoleRequest { user: name.into(), role: name.into() })
            .await
            .unwrap();
    }
    let perm = Permission {
        perm_type: permission::Type::Readwrite.into(),
        key: "/cat/".into(),
        range_end: "/cat0".into(),
    };
    let grant = AuthRoleGrantPermissionRequest { name: "cat".into(), perm: Some(perm) };
    auth.role_grant_permission(grant).await.unwrap();
    auth.auth_enable(AuthEnableRequest {}).await.unwrap();
    let mut login = async |name: &str| {
        let request = AuthenticateRequest { name: name.into(), password: "pw".into() };
        auth.authenticate(request).await.unwrap().into_inner().token
    };
    (login("root").await, login("cat").await)
}

fn by<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("token", token.parse().unwrap());
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_of_a_deleted_user_end() {
    let embedded = EmbeddedDatastore::start();
    let channel = connect(&embedded.url).await;
    let (root, cat) = users(&channel).await;
    let mut kv = KvClient::new(channel.clone());
    let put = || PutRequest { key: "/cat/a".into(), value: "1".into(), ..Default::default() };
    kv.put(by(&cat, put())).await.unwrap();
    let (requests, receiver) = mpsc::channel(4);
    let create = |start_revision| {
        let create = WatchCreateRequest {
            key: "/cat/".into(),
            range_end: "/cat0".into(),
            start_revision,
            ..Default::default()
        };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    };
    requests.send(create(0)).await.unwrap();
    let stream = WatchClient::new(channel.clone()).watch(by(&cat, ReceiverStream::new(receiver))).await;
    let mut stream = stream.unwrap().into_inner();
    let created = stream.message().await.unwrap().unwrap();
    assert!(created.created && !created.canceled, "{created:?}");

    let mut auth = AuthClient::new(channel.clone());
    auth.user_delete(by(&root, AuthUserDeleteRequest { name: "cat".into() })).await.unwrap();
    // A watch with history would reveal the previous values.
    requests.send(create(1)).await.unwrap();
    let refused = stream.message().await.unwrap().unwrap();
    assert!(refused.created && refused.canceled && refused.events.is_empty(), "{refused:?}");
    assert_eq!(refused.cancel_reason, "etcdserver: permission denied");
    let ended = stream.message().await.unwrap().unwrap();
    assert!(ended.canceled && ended.watch_id == created.watch_id, "{ended:?}");
    assert_eq!(ended.cancel_reason, "etcdserver: permission denied");
    kv.put(by(&root, put())).await.unwrap();
    let more = tokio::time::timeout(std::time::Duration::from_millis(300), stream.message()).await;
    assert!(more.is_err(), "{more:?}");
}

/// Checks the rule of etcd: a key is deleted with its lease, so attaching it needs the permission to revoke the
/// lease.
async fn check_foreign_leases(url: &str) {
    let channel = connect(url).await;
    let (root, cat) = users(&channel).await;
    let (mut kv, mut leases) = (KvClient::new(channel.clone()), LeaseClient::new(channel));
    let grant = |id| LeaseGrantRequest { ttl: 600, id };
    leases.lease_grant(by(&root, grant(7))).await.unwrap();
    leases.lease_grant(by(&cat, grant(8))).await.unwrap();
    let put = |key: &'static str, lease| PutRequest { key: key.into(), lease, ..Default::default() };
    kv.put(by(&root, put("/other", 7))).await.unwrap();
    kv.put(by(&cat, put("/cat/a", 8))).await.unwrap();
    let refused = kv.put(by(&cat, put("/cat/a", 7))).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::PermissionDenied, "etcdserver: permission denied")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_join_only_leases_the_user_may_end() {
    let etcd = tortie_testkit::Etcd::start().expect("etcd");
    check_foreign_leases(&etcd.endpoint()).await;
    let embedded = EmbeddedDatastore::start();
    check_foreign_leases(&embedded.url).await;
    // The same in a transaction, in either branch.
    let channel = connect(&embedded.url).await;
    let login = AuthenticateRequest { name: "cat".into(), password: "pw".into() };
    let cat = AuthClient::new(channel.clone()).authenticate(login).await.unwrap().into_inner().token;
    let put = PutRequest { key: "/cat/b".into(), lease: 7, ..Default::default() };
    let put = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
    let inner = TxnRequest { failure: vec![put], ..Default::default() };
    let nested = RequestOp { request: Some(request_op::Request::RequestTxn(inner)) };
    let txn = TxnRequest { success: vec![nested], ..Default::default() };
    let refused = KvClient::new(channel).txn(by(&cat, txn)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
}
