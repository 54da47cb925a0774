//! Operations of the client, their results and their error messages.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{TestStore, object};
use serde_json::json;
use std::num::NonZeroUsize;
use std::time::Duration;
use tortie_model::ipam::{AddressHandle, IpamConfig};
use tortie_model::status::FelixHeartbeat;
use tortie_model::{KeyRange, Kind, StoreKey, StoreValue};
use tortie_store::{EntryChange, EntryLabelSelector, PageContinuation, PageRequest, Revision, StoreError};

on_each_store! {
    verbs_and_their_outcomes
    a_transaction_is_all_or_nothing
    leases_run_out
    long_lists_come_in_pages
    a_list_is_read_page_by_page
    pages_hold_what_is_selected
    a_wrong_or_expired_continuation_is_rejected
    what_cannot_be_read_is_set_aside
    fields_of_newer_versions_survive_an_update
    keys_without_a_name_are_refused
    compactors_take_turns
}

fn handle(id: &str) -> StoreKey {
    StoreKey::Handle { id: id.into() }
}

fn counting(count: i64) -> StoreValue {
    StoreValue::Handle(AddressHandle {
        block: [("10.0.0.0/26".to_owned(), count)].into(),
        ..Default::default()
    })
}

async fn verbs_and_their_outcomes(store: TestStore) {
    let client = store.client().await;
    let key = handle("h");
    let text = |error: StoreError| error.to_string();

    let missing = "resource does not exist: IPAMHandleKey(id=h) with error: key not found";
    assert_eq!(text(client.get(&key).await.unwrap_err()), missing);
    assert_eq!(text(client.delete(&key, None).await.unwrap_err()), missing);
    assert_eq!(text(client.delete(&key, Some(&7.into())).await.unwrap_err()), missing);
    assert_eq!(text(client.update(&key, &counting(1), &7.into()).await.unwrap_err()), missing);

    let created = client.create(&key, &counting(1)).await.unwrap();
    assert_eq!(client.get(&key).await.unwrap(), created);
    let exists = text(client.create(&key, &counting(2)).await.unwrap_err());
    let stands = format!("key stands at revision {}", created.revision);
    assert_eq!(exists, format!("resource already exists: IPAMHandleKey(id=h) with error: {stands}"));

    let updated = client.update(&key, &counting(3), &created.revision).await.unwrap();
    assert_ne!(updated.revision, created.revision);
    assert_eq!(updated.revision.is_at_or_before(&created.revision), Some(false));
    let conflict = "update conflict: IPAMHandleKey(id=h)";
    assert_eq!(text(client.update(&key, &counting(4), &created.revision).await.unwrap_err()), conflict);
    assert_eq!(text(client.delete(&key, Some(&created.revision)).await.unwrap_err()), conflict);
    assert_eq!(client.get(&key).await.unwrap(), updated);
    assert_eq!(client.delete(&key, Some(&updated.revision)).await.unwrap().value, counting(3));
    assert_eq!(text(client.get(&key).await.unwrap_err()), missing);

    let config = StoreValue::IpamConfig(IpamConfig::default());
    client.apply(&StoreKey::IpamConfig, &config, None).await.unwrap();
    client.apply(&StoreKey::IpamConfig, &config, None).await.unwrap();
    assert_eq!(store.raw("/calico/ipam/v2/config").await.unwrap(), r#"{"auto_allocate_blocks":true}"#);
    assert_eq!(client.list(&KeyRange::IpamConfig).await.unwrap().entries.len(), 1);
}

async fn a_transaction_is_all_or_nothing(store: TestStore) {
    let client = store.client().await;
    let (a, b, c) = (handle("a"), handle("b"), handle("c"));
    let first = client.create(&a, &counting(1)).await.unwrap();
    let second = client.create(&b, &counting(1)).await.unwrap();
    let changes = |revision: Revision| {
        vec![
            EntryChange::Update { key: a.clone(), value: counting(2), revision },
            EntryChange::Delete { key: b.clone(), revision: second.revision.clone() },
            EntryChange::Create { key: c.clone(), value: counting(3) },
        ]
    };
    let refused = client.transact(&changes(second.revision.clone())).await.unwrap_err();
    assert_eq!(refused.to_string(), "update conflict: IPAMHandleKey(id=a)");
    assert_eq!(client.list(&KeyRange::Handles).await.unwrap().entries, [first.clone(), second.clone()]);

    let revision = client.transact(&changes(first.revision.clone())).await.unwrap();
    let after = client.list(&KeyRange::Handles).await.unwrap();
    let seen: Vec<_> =
        after.entries.iter().map(|entry| (entry.key.clone(), entry.revision.clone())).collect();
    assert_eq!(seen, [(a.clone(), revision.clone()), (c.clone(), revision)]);

    let exists =
        client.transact(&[EntryChange::Create { key: c.clone(), value: counting(1) }]).await.unwrap_err();
    assert!(matches!(exists, StoreError::AlreadyExists { .. }), "{exists}");
    let missing =
        client.transact(&[EntryChange::Delete { key: b.clone(), revision: 1.into() }]).await.unwrap_err();
    assert!(matches!(missing, StoreError::DoesNotExist { .. }), "{missing}");
}

async fn leases_run_out(store: TestStore) {
    let client = store.client().await;
    let key = StoreKey::FelixStatus { region: String::new(), host: "n1".into() };
    let beat = FelixHeartbeat { time: "2026-03-01T10:20:30Z".into(), uptime: 1.0, first_update: true };
    client.apply(&key, &StoreValue::Heartbeat(beat), Some(Duration::from_secs(5))).await.unwrap();
    client.get(&key).await.unwrap();
    common::within("the lease", async {
        while client.get(&key).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert!(matches!(client.get(&key).await, Err(StoreError::DoesNotExist { .. })));
}

async fn long_lists_come_in_pages(store: TestStore) {
    let client = store.client().await;
    let ids: Vec<String> = (0..12_000).map(|n| format!("{n:05}")).collect();
    // Within the maximum number of operations of one transaction.
    for some in ids.chunks(100) {
        let create = |id: &String| EntryChange::Create { key: handle(id), value: counting(1) };
        client.transact(&some.iter().map(create).collect::<Vec<_>>()).await.unwrap();
    }
    let listing = client.list(&KeyRange::Handles).await.unwrap();
    let found: Vec<StoreKey> = listing.entries.into_iter().map(|entry| entry.key).collect();
    assert!(found == ids.iter().map(|id| handle(id)).collect::<Vec<_>>(), "{} keys", found.len());
}

/// All pages show the revision of the first, whatever is written in between.
async fn a_list_is_read_page_by_page(store: TestStore) {
    let client = store.client().await;
    for n in 0..25 {
        client.create(&handle(&format!("{n:02}")), &counting(n)).await.unwrap();
    }
    let whole = client.list(&KeyRange::Handles).await.unwrap();
    assert_eq!(whole.next, None);
    let mut page = PageRequest::first(NonZeroUsize::new(10).unwrap());
    let mut seen = Vec::new();
    for expected in [10, 10, 5] {
        let listing = client.list_page(&KeyRange::Handles, &page).await.unwrap();
        assert_eq!((listing.entries.len(), listing.unreadable.len()), (expected, 0));
        assert_eq!(listing.revision, whole.revision);
        seen.extend(listing.entries);
        assert_eq!(listing.next.is_some(), expected == 10);
        page.after = listing.next;
        client.apply(&handle("24"), &counting(99), None).await.unwrap();
        client.apply(&handle("99"), &counting(99), None).await.unwrap();
    }
    assert_eq!(seen, whole.entries);
}

async fn pages_hold_what_is_selected(store: TestStore) {
    let resources = store.resources().await;
    for n in 0..9 {
        let mut set = object(Kind::GlobalNetworkSet, "", &format!("set-{n}"), json!({}));
        let side = if n % 3 == 0 { "left" } else { "right" };
        set.metadata_mut().labels.insert("side".into(), side.into());
        resources.create(set).await.unwrap();
    }
    let mut page = PageRequest::first(NonZeroUsize::new(2).unwrap());
    page.labels = EntryLabelSelector::equals("side", "left");
    let mut pages = Vec::new();
    loop {
        let range = KeyRange::all(Kind::GlobalNetworkSet);
        let listing = resources.client().list_page(&range, &page).await.unwrap();
        pages.push(listing.entries.iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>());
        page.after = listing.next;
        if page.after.is_none() {
            break;
        }
    }
    let expected: [&[&str]; 2] =
        [&["GlobalNetworkSet(set-0)", "GlobalNetworkSet(set-3)"], &["GlobalNetworkSet(set-6)"]];
    assert_eq!(pages, expected);
}

async fn a_wrong_or_expired_continuation_is_rejected(store: TestStore) {
    let client = store.client().await;
    for n in 0..3 {
        client.create(&handle(&format!("{n}")), &counting(n)).await.unwrap();
    }
    let mut page = PageRequest::first(NonZeroUsize::new(1).unwrap());
    page.after = Some(PageContinuation("nonsense".into()));
    let wrong = client.list_page(&KeyRange::Handles, &page).await.unwrap_err();
    assert!(wrong.to_string().contains("continue = 'nonsense'"), "{wrong}");
    page.after = None;
    page.after = client.list_page(&KeyRange::Handles, &page).await.unwrap().next;
    // The continuation of another list.
    let other = client.list_page(&KeyRange::IpamConfig, &page).await.unwrap_err();
    assert!(matches!(other, StoreError::Validation(_)), "{other}");
    client.apply(&handle("3"), &counting(1), None).await.unwrap();
    client.apply(&handle("3"), &counting(2), None).await.unwrap();
    store.compact().await;
    let expired = client.list_page(&KeyRange::Handles, &page).await.unwrap_err();
    assert!(matches!(expired, StoreError::Expired(_)), "{expired}");
}

async fn what_cannot_be_read_is_set_aside(store: TestStore) {
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
    assert!(matches!(error, StoreError::Parse { .. }), "{error}");
}

async fn fields_of_newer_versions_survive_an_update(store: TestStore) {
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

async fn keys_without_a_name_are_refused(store: TestStore) {
    let client = store.client().await;
    let value = StoreValue::from(object(Kind::NetworkSet, "prod", "x", json!({})));
    let nameless =
        client.create(&StoreKey::resource(Kind::NetworkSet, "prod", ""), &value).await.unwrap_err();
    assert_eq!(nameless.to_string(), "insufficient identifiers, missing 'name'");
    let nowhere = client.create(&StoreKey::resource(Kind::NetworkSet, "", "x"), &value).await.unwrap_err();
    assert_eq!(nowhere.to_string(), "insufficient identifiers, missing 'namespace'");
}

/// Each compactor waits for its turn, and removes the history before its last one.
async fn compactors_take_turns(store: TestStore) {
    let client = store.client().await;
    let key = handle("h");
    let write = async |count| client.apply(&key, &counting(count), None).await.unwrap().revision;
    let old = write(1).await;
    let (mut one, mut other) = (client.compactor().unwrap(), client.compactor().unwrap());
    assert_eq!(one.compact().await.unwrap(), None, "nothing is forgotten by somebody who has just come");
    assert_eq!(other.compact().await.unwrap(), None);
    assert!(store.remembers(&old).await);
    let young = write(2).await;
    let forgotten = one.compact().await.unwrap().expect("a turn");
    assert_eq!(forgotten.is_at_or_before(&young), Some(true));
    assert!(!store.remembers(&old).await && store.remembers(&young).await);
    assert_eq!(other.compact().await.unwrap(), None, "it was the turn of the other");
    let last = write(3).await;
    let forgotten = other.compact().await.unwrap().expect("a turn");
    assert_eq!(young.is_at_or_before(&forgotten), Some(true));
    assert_eq!(forgotten.is_at_or_before(&last), Some(true));
    assert_eq!(one.compact().await.unwrap(), None);
    // A revision that is already compacted is not an error.
    store.compact().await;
    assert_eq!(one.compact().await.unwrap(), None);
    write(4).await;
    assert!(one.compact().await.unwrap().is_some());
    assert_eq!(client.get(&key).await.unwrap().value, counting(4));
    let record = client.get(&StoreKey::CompactRevision).await.unwrap();
    assert!(
        matches!(&record.value, StoreValue::Raw(text) if text.iter().all(u8::is_ascii_digit)),
        "{record:?}"
    );
}
