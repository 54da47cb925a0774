//! The client's verbs, their outcomes and their words.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Store, object};
use serde_json::json;
use std::time::Duration;
use tortie_model::ipam::{Handle, IpamConfig};
use tortie_model::status::Heartbeat;
use tortie_model::{Key, KeyRange, Kind, Value};
use tortie_store::{Change, Error};

on_each_store! {
    verbs_and_their_outcomes
    a_transaction_is_all_or_nothing
    leases_run_out
    long_lists_come_in_pages
    what_cannot_be_read_is_set_aside
    fields_of_newer_versions_survive_an_update
    keys_without_a_name_are_refused
}

fn handle(id: &str) -> Key {
    Key::Handle { id: id.into() }
}

fn counting(count: i64) -> Value {
    Value::Handle(Handle { block: [("10.0.0.0/26".to_owned(), count)].into(), ..Default::default() })
}

async fn verbs_and_their_outcomes(store: Store) {
    let client = store.client().await;
    let key = handle("h");
    let text = |error: Error| error.to_string();

    let missing = "resource does not exist: IPAMHandleKey(id=h) with error: key not found";
    assert_eq!(text(client.get(&key).await.unwrap_err()), missing);
    assert_eq!(text(client.delete(&key, None).await.unwrap_err()), missing);
    assert_eq!(text(client.delete(&key, Some(7)).await.unwrap_err()), missing);
    assert_eq!(text(client.update(&key, &counting(1), 7).await.unwrap_err()), missing);

    let created = client.create(&key, &counting(1)).await.unwrap();
    assert_eq!(client.get(&key).await.unwrap(), created);
    let exists = text(client.create(&key, &counting(2)).await.unwrap_err());
    let stands = format!("key stands at revision {}", created.revision);
    assert_eq!(exists, format!("resource already exists: IPAMHandleKey(id=h) with error: {stands}"));

    let updated = client.update(&key, &counting(3), created.revision).await.unwrap();
    assert!(updated.revision > created.revision);
    let conflict = "update conflict: IPAMHandleKey(id=h)";
    assert_eq!(text(client.update(&key, &counting(4), created.revision).await.unwrap_err()), conflict);
    assert_eq!(text(client.delete(&key, Some(created.revision)).await.unwrap_err()), conflict);
    assert_eq!(client.get(&key).await.unwrap(), updated);
    assert_eq!(client.delete(&key, Some(updated.revision)).await.unwrap().value, counting(3));
    assert_eq!(text(client.get(&key).await.unwrap_err()), missing);

    let config = Value::IpamConfig(IpamConfig::default());
    client.apply(&Key::IpamConfig, &config, None).await.unwrap();
    client.apply(&Key::IpamConfig, &config, None).await.unwrap();
    assert_eq!(store.raw("/calico/ipam/v2/config").await.unwrap(), r#"{"auto_allocate_blocks":true}"#);
    assert_eq!(client.list(&KeyRange::IpamConfig).await.unwrap().entries.len(), 1);
}

async fn a_transaction_is_all_or_nothing(store: Store) {
    let client = store.client().await;
    let (a, b, c) = (handle("a"), handle("b"), handle("c"));
    let first = client.create(&a, &counting(1)).await.unwrap();
    let second = client.create(&b, &counting(1)).await.unwrap();
    let changes = |revision| {
        vec![
            Change::Update { key: a.clone(), value: counting(2), revision },
            Change::Delete { key: b.clone(), revision: second.revision },
            Change::Create { key: c.clone(), value: counting(3) },
        ]
    };
    let refused = client.transact(&changes(first.revision + 100)).await.unwrap_err();
    assert_eq!(refused.to_string(), "update conflict: IPAMHandleKey(id=a)");
    assert_eq!(client.list(&KeyRange::Handles).await.unwrap().entries, [first.clone(), second.clone()]);

    let revision = client.transact(&changes(first.revision)).await.unwrap();
    let after = client.list(&KeyRange::Handles).await.unwrap();
    let seen: Vec<_> = after.entries.iter().map(|entry| (entry.key.clone(), entry.revision)).collect();
    assert_eq!(seen, [(a.clone(), revision), (c.clone(), revision)]);

    let exists = client.transact(&[Change::Create { key: c.clone(), value: counting(1) }]).await.unwrap_err();
    assert!(matches!(exists, Error::AlreadyExists { .. }), "{exists}");
    let missing = client.transact(&[Change::Delete { key: b.clone(), revision: 1 }]).await.unwrap_err();
    assert!(matches!(missing, Error::DoesNotExist { .. }), "{missing}");
}

async fn leases_run_out(store: Store) {
    let client = store.client().await;
    let key = Key::FelixStatus { region: String::new(), host: "n1".into() };
    let beat = Heartbeat { time: "2026-03-01T10:20:30Z".into(), uptime: 1.0, first_update: true };
    client.apply(&key, &Value::Heartbeat(beat), Some(Duration::from_secs(1))).await.unwrap();
    client.get(&key).await.unwrap();
    common::within("the lease", async {
        while client.get(&key).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert!(matches!(client.get(&key).await, Err(Error::DoesNotExist { .. })));
}

async fn long_lists_come_in_pages(store: Store) {
    let client = store.client().await;
    let ids: Vec<String> = (0..12_000).map(|n| format!("{n:05}")).collect();
    // As many as one transaction takes.
    for some in ids.chunks(100) {
        let create = |id: &String| Change::Create { key: handle(id), value: counting(1) };
        client.transact(&some.iter().map(create).collect::<Vec<_>>()).await.unwrap();
    }
    let listing = client.list(&KeyRange::Handles).await.unwrap();
    let found: Vec<Key> = listing.entries.into_iter().map(|entry| entry.key).collect();
    assert!(found == ids.iter().map(|id| handle(id)).collect::<Vec<_>>(), "{} keys", found.len());
}

async fn what_cannot_be_read_is_set_aside(store: Store) {
    let client = store.client().await;
    client.create(&handle("good"), &counting(1)).await.unwrap();
    store.put_raw("/calico/ipam/v2/handle/bad", "{nonsense").await;
    let listing = client.list(&KeyRange::Handles).await.unwrap();
    assert_eq!(listing.entries.len(), 1);
    let text = listing.unreadable.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(
        text.starts_with("failed to parse value for key=/calico/ipam/v2/handle/bad; value={nonsense: "),
        "{text}"
    );
    let error = client.get(&handle("bad")).await.unwrap_err();
    assert!(matches!(error, Error::Parse { .. }), "{error}");
}

async fn fields_of_newer_versions_survive_an_update(store: Store) {
    let resources = store.resources().await;
    let path = "/calico/resources/v3/projectcalico.org/globalnetworksets/new";
    let newer = json!({
        "kind": "GlobalNetworkSet", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "new", "uid": "u", "creationTimestamp": "2026-03-01T10:20:30Z", "laterMeta": 1},
        "spec": {"nets": ["10.0.0.0/8"], "laterSpec": {"deep": [1, 2]}},
        "later": "top",
    });
    store.put_raw(path, &newer.to_string()).await;
    let mut set = resources.get(Kind::GlobalNetworkSet, "", "new").await.unwrap();
    set.metadata_mut().labels.insert("a".into(), "b".into());
    resources.update(set).await.unwrap();
    let stored: serde_json::Value = serde_json::from_str(&store.raw(path).await.unwrap()).unwrap();
    assert_eq!(stored["spec"]["laterSpec"], newer["spec"]["laterSpec"], "{stored}");
    assert_eq!(stored["metadata"]["laterMeta"], 1, "{stored}");
    assert_eq!(stored["later"], "top", "{stored}");
    assert_eq!(stored["metadata"]["labels"]["a"], "b");
}

async fn keys_without_a_name_are_refused(store: Store) {
    let client = store.client().await;
    let value = Value::from(object(Kind::NetworkSet, "prod", "x", json!({})));
    let nameless = client.create(&Key::resource(Kind::NetworkSet, "prod", ""), &value).await.unwrap_err();
    assert_eq!(nameless.to_string(), "insufficient identifiers, missing 'name'");
    let nowhere = client.create(&Key::resource(Kind::NetworkSet, "", "x"), &value).await.unwrap_err();
    assert_eq!(nowhere.to_string(), "insufficient identifiers, missing 'namespace'");
}
