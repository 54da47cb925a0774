//! Rules that hold on every backend: checks across objects, and the lifecycle of an object. Each test leaves the store
//! as it was.

use super::object;
use serde_json::json;
use tortie_model::{Kind, Resource};
use tortie_store::{ResourceClient, StoreError};

fn text<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    result.unwrap_err().to_string()
}

fn pool(name: &str, cidr: &str) -> Resource {
    object(Kind::IPPool, "", name, json!({"cidr": cidr}))
}

pub async fn an_object_lives_and_dies(store: &ResourceClient) {
    let set = object(Kind::NetworkSet, "prod", "dns", json!({"nets": ["10.0.0.0/8"]}));

    let created = store.create(set.clone()).await.unwrap();
    assert_eq!(created.metadata().uid.len(), 36);
    assert!(created.metadata().creation_timestamp.is_some());
    let exists = store.create(set.clone()).await.unwrap_err();
    assert!(
        exists.to_string().starts_with("resource already exists: NetworkSet(prod/dns) with error: "),
        "{exists}"
    );
    let StoreError::AlreadyExists { current, .. } = exists else { panic!("{exists:?}") };
    assert_eq!(*current.unwrap(), created);

    let read = store.get(Kind::NetworkSet, "prod", "dns").await.unwrap();
    assert_eq!(read, created);

    let mut changed = read.clone();
    changed.metadata_mut().labels.insert("a".into(), "b".into());
    let updated = store.update(changed.clone()).await.unwrap();
    assert_ne!(updated.metadata().resource_version, read.metadata().resource_version);
    let conflict = store.update(changed).await.unwrap_err();
    assert_eq!(conflict.to_string(), "update conflict: NetworkSet(prod/dns)");
    let StoreError::Conflict { current, .. } = conflict else { panic!("{conflict:?}") };
    assert_eq!(*current.unwrap(), updated);

    assert_eq!(store.list(Kind::NetworkSet, None).await.unwrap().items, [updated]);
    assert_eq!(store.list(Kind::NetworkSet, Some("other")).await.unwrap().items, []);

    let old = Some(read.metadata().resource_version.as_str());
    assert!(matches!(
        store.delete(Kind::NetworkSet, "prod", "dns", old).await,
        Err(StoreError::Conflict { .. })
    ));
    store.delete(Kind::NetworkSet, "prod", "dns", None).await.unwrap();
    let gone = text(store.get(Kind::NetworkSet, "prod", "dns").await);
    assert!(gone.starts_with("resource does not exist: NetworkSet(prod/dns) with error: "), "{gone}");
    let mut late = read;
    late.metadata_mut().resource_version = "1".into();
    assert!(matches!(store.update(late).await, Err(StoreError::DoesNotExist { .. })));
}

/// Requires a store without any tier.
pub async fn policies_need_their_tier(resources: &ResourceClient) {
    for kind in [
        Kind::NetworkPolicy,
        Kind::GlobalNetworkPolicy,
        Kind::StagedNetworkPolicy,
        Kind::StagedGlobalNetworkPolicy,
    ] {
        let namespace = if kind.is_namespaced() { "prod" } else { "" };
        let missing =
            text(resources.create(object(kind, namespace, "web", json!({"tier": "platform"}))).await);
        assert!(missing.starts_with("resource does not exist: Tier(platform) with error: "), "{missing}");
        let missing = text(resources.create(object(kind, namespace, "web", json!({}))).await);
        assert!(missing.starts_with("resource does not exist: Tier(default) with error: "), "{missing}");
    }
}

/// Requires a store with the built-in tiers.
pub async fn tiers_in_use_stay(resources: &ResourceClient) {
    for name in ["default", "kube-admin", "kube-baseline"] {
        let refused = text(resources.delete(Kind::Tier, "", name, None).await);
        assert_eq!(refused, format!("operation delete is not supported on Tier({name}): it is built in"));
        let mut tier = resources.get(Kind::Tier, "", name).await.unwrap().to_value();
        tier["spec"]["order"] = json!(5);
        let changed = resources.update(Resource::from_user(tier).unwrap()).await;
        assert!(matches!(changed, Err(StoreError::Validation(_))), "{changed:?}");
    }
    resources.create(object(Kind::Tier, "", "platform", json!({"order": 10}))).await.unwrap();
    resources.create(object(Kind::NetworkPolicy, "prod", "web", json!({"tier": "platform"}))).await.unwrap();
    let refused = text(resources.delete(Kind::Tier, "", "platform", None).await);
    assert_eq!(
        refused,
        "operation delete is not supported on Tier(platform): cannot delete a non-empty tier: NetworkPolicy(prod/web) is \
         in it"
    );
    let mut moved = resources.get(Kind::NetworkPolicy, "prod", "web").await.unwrap().to_value();
    moved["spec"]["tier"] = json!("gone");
    let refused = text(resources.update(Resource::from_user(moved.clone()).unwrap()).await);
    assert!(refused.starts_with("resource does not exist: Tier(gone) with error: "), "{refused}");
    let checked = text(resources.check_update(Resource::from_user(moved.clone()).unwrap()).await);
    assert_eq!(checked, refused);
    moved["spec"]["tier"] = json!("default");
    resources.update(Resource::from_user(moved).unwrap()).await.unwrap();
    resources.delete(Kind::NetworkPolicy, "prod", "web", None).await.unwrap();
    resources.delete(Kind::Tier, "", "platform", None).await.unwrap();
}

pub async fn pools_do_not_overlap(resources: &ResourceClient) {
    resources.create(pool("first", "10.65.0.0/16")).await.unwrap();
    for cidr in ["10.65.3.0/24", "10.0.0.0/8", "10.65.0.0/16"] {
        let refused = text(resources.create(pool("second", cidr)).await);
        assert_eq!(
            refused,
            format!(
                "error with field IPPool.Spec.CIDR = '{cidr}' (IPPool(second) CIDR overlaps with IPPool(first) CIDR \
                 10.65.0.0/16)"
            )
        );
    }
    let same = resources.create(pool("first", "10.65.0.0/16")).await;
    assert!(matches!(same, Err(StoreError::AlreadyExists { .. })), "{same:?}");
    resources.create(pool("second", "10.66.0.0/16")).await.unwrap();
    resources.create(pool("sixth", "fd00:65::/64")).await.unwrap();
    for name in ["first", "second", "sixth"] {
        resources.delete(Kind::IPPool, "", name, None).await.unwrap();
    }
}

pub async fn pools_do_not_change_shape(resources: &ResourceClient) {
    let created = resources.create(pool("p", "10.65.0.0/16")).await.unwrap().to_value();
    for (field, value, part) in
        [("cidr", json!("10.65.0.0/17"), "10.65.0.0/17"), ("blockSize", json!(27), "27")]
    {
        let mut changed = created.clone();
        changed["spec"][field] = value;
        let refused = text(resources.update(Resource::from_user(changed).unwrap()).await);
        assert!(refused.contains(part) && refused.contains("cannot be changed"), "{refused}");
    }
    let mut changed = created;
    changed["spec"]["natOutgoing"] = json!(true);
    resources.update(Resource::from_user(changed).unwrap()).await.unwrap();
    resources.delete(Kind::IPPool, "", "p", None).await.unwrap();
}

pub async fn peers_need_their_filters(resources: &ResourceClient) {
    let spec = json!({"peerIP": "192.0.2.9", "asNumber": 64512, "filters": ["there", "missing"]});
    let filter = json!({"exportV4": [{"action": "Accept"}]});
    resources.create(object(Kind::BGPFilter, "", "there", filter.clone())).await.unwrap();
    let refused = text(resources.create(object(Kind::BGPPeer, "", "p", spec.clone())).await);
    assert_eq!(
        refused,
        "error with field BGPPeer.Spec.Filters[1] = 'missing' (there is no BGPFilter of this name)"
    );
    resources.create(object(Kind::BGPFilter, "", "missing", filter)).await.unwrap();
    let peer = resources.create(object(Kind::BGPPeer, "", "p", spec)).await.unwrap();
    resources.delete(Kind::BGPFilter, "", "there", None).await.unwrap();
    assert!(matches!(resources.update(peer).await, Err(StoreError::Validation(_))));
    resources.delete(Kind::BGPPeer, "", "p", None).await.unwrap();
    resources.delete(Kind::BGPFilter, "", "missing", None).await.unwrap();
}
