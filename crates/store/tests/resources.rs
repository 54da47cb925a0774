//! projectcalico.org/v3 semantics on a real store.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{etcd, object, resources};
use serde_json::json;
use tortie_model::Kind;
use tortie_store::Error;

#[tokio::test]
async fn an_object_lives_and_dies() {
    let etcd = etcd();
    let store = resources(&etcd.endpoint()).await;
    let set = object(Kind::NetworkSet, "prod", "dns", json!({"nets": ["10.0.0.0/8"]}));

    let created = store.create(set.clone()).await.unwrap();
    assert_eq!(created.metadata().uid.len(), 36);
    assert!(created.metadata().creation_timestamp.is_some());
    assert!(matches!(store.create(set.clone()).await, Err(Error::AlreadyExists { .. })));

    let read = store.get(Kind::NetworkSet, "prod", "dns").await.unwrap();
    assert_eq!(read, created);

    let mut changed = read.clone();
    changed.metadata_mut().labels.insert("a".into(), "b".into());
    let updated = store.update(changed.clone()).await.unwrap();
    assert_ne!(updated.metadata().resource_version, read.metadata().resource_version);
    let conflict = store.update(changed).await.unwrap_err();
    assert_eq!(conflict.to_string(), "update conflict: NetworkSet(prod/dns)");

    assert_eq!(store.list(Kind::NetworkSet, None).await.unwrap().items, [updated]);
    assert_eq!(store.list(Kind::NetworkSet, Some("other")).await.unwrap().items, []);

    let old = Some(read.metadata().resource_version.as_str());
    assert!(matches!(store.delete(Kind::NetworkSet, "prod", "dns", old).await, Err(Error::Conflict { .. })));
    store.delete(Kind::NetworkSet, "prod", "dns", None).await.unwrap();
    let gone = store.get(Kind::NetworkSet, "prod", "dns").await.unwrap_err().to_string();
    assert!(gone.starts_with("resource does not exist: NetworkSet(prod/dns) with error: "), "{gone}");
}

#[tokio::test]
async fn a_store_is_initialised_once() {
    let etcd = etcd();
    let store = resources(&etcd.endpoint()).await;
    store.ensure_initialized("v3.32.0", "k8s").await.unwrap();
    let first = store.get(Kind::ClusterInformation, "", "default").await.unwrap();
    store.ensure_initialized("v3.32.0", "k8s").await.unwrap();
    assert_eq!(store.get(Kind::ClusterInformation, "", "default").await.unwrap(), first);
    let names: Vec<String> = store
        .list(Kind::Tier, None)
        .await
        .unwrap()
        .items
        .iter()
        .map(|tier| tier.metadata().name.clone())
        .collect();
    assert_eq!(names, ["default", "kube-admin", "kube-baseline"]);
}
