//! projectcalico.org/v3 semantics: stored form, rejected objects, and the side effects of deletions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{TestStore, object, rules};
use serde_json::{Value as Json, json};
use tortie_model::kinds::{NodeSpec, TierSpec};
use tortie_model::{Kind, Resource, StoreKey};
use tortie_store::{ResourceClient, StoreError};

on_each_store! {
    an_object_lives_and_dies
    an_object_is_stored_byte_for_byte
    metadata_rules
    a_store_is_initialised_once
    an_initialised_store_keeps_its_lock
    policies_need_their_tier
    tiers_in_use_stay
    names_and_defaults
    the_profile_that_is_not_stored
    pools_do_not_overlap
    pools_fit_their_blocks
    pools_do_not_change_shape
    a_deleted_pool_gives_back_its_blocks
    a_deleted_node_leaves_nothing_behind
    a_missing_node_leaves_nothing_behind
    a_node_that_cannot_be_deleted_loses_nothing
    peers_need_their_filters
    old_policies_are_found_under_their_old_name
}

async fn ready(store: &TestStore) -> ResourceClient {
    let resources = store.resources().await;
    resources.ensure_initialized("v3.32.0", "k8s").await.unwrap();
    resources
}

fn text<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    result.unwrap_err().to_string()
}

fn pool(name: &str, cidr: &str) -> Resource {
    object(Kind::IPPool, "", name, json!({"cidr": cidr}))
}

async fn an_object_lives_and_dies(store: TestStore) {
    rules::an_object_lives_and_dies(&store.resources().await).await;
}

async fn an_object_is_stored_byte_for_byte(store: TestStore) {
    let resources = ready(&store).await;
    let mut policy = object(
        Kind::GlobalNetworkPolicy,
        "",
        "deny-metadata",
        json!({
            "order": 50, "selector": "all()", "egress": [{
                "action": "Deny", "protocol": "TCP",
                "destination": {"ports": [80], "nets": ["169.254.169.254/32"]},
            }],
        }),
    );
    policy.metadata_mut().uid = "4b0c6f3e-6d0e-4a39-9a2e-0f6c1a2b3c4d".into();
    policy.metadata_mut().creation_timestamp = Some("2026-03-01T10:20:30Z".into());
    policy.metadata_mut().self_link = "/a/link".into();
    let created = resources.create(policy).await.unwrap();
    let stored =
        store.raw("/calico/resources/v3/projectcalico.org/globalnetworkpolicies/deny-metadata").await;
    assert_eq!(
        stored.unwrap(),
        concat!(
            r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"deny-metadata","#,
            r#""uid":"4b0c6f3e-6d0e-4a39-9a2e-0f6c1a2b3c4d","creationTimestamp":"2026-03-01T10:20:30Z","#,
            r#""labels":{"projectcalico.org/tier":"default"},"#,
            r#""annotations":{"projectcalico.org/metadata":"{\"name\":\"deny-metadata\"}"}},"#,
            r#""spec":{"tier":"default","order":50,"egress":[{"action":"Deny","protocol":"TCP","#,
            r#""destination":{"nets":["169.254.169.254/32"],"ports":[80]}}],"selector":"all()","types":["Egress"]}}"#
        )
    );
    assert!(created.metadata().annotations.is_empty() && created.metadata().self_link.is_empty());
    assert_eq!(resources.get(Kind::GlobalNetworkPolicy, "", "deny-metadata").await.unwrap(), created);
}

async fn metadata_rules(store: TestStore) {
    let resources = store.resources().await;
    let set = object(Kind::NetworkSet, "prod", "dns", json!({}));
    let mut versioned = set.clone();
    versioned.metadata_mut().resource_version = "12".into();
    assert!(text(resources.create(versioned).await).contains("Metadata.ResourceVersion = '12'"));
    let mut nameless = set.clone();
    nameless.metadata_mut().name.clear();
    assert!(text(resources.create(nameless).await).contains("Metadata.Name = ''"));
    let mut homeless = set.clone();
    homeless.metadata_mut().namespace.clear();
    assert!(text(resources.create(homeless).await).contains("Metadata.Namespace = ''"));
    for result in [
        resources.get(Kind::NetworkSet, "", "dns").await,
        resources.delete(Kind::NetworkSet, "", "dns", None).await,
    ] {
        assert!(text(result).contains("Metadata.Namespace = ''"));
    }
    let fresh = text(resources.update(set.clone()).await);
    for field in ["ResourceVersion", "CreationTimestamp", "UID"] {
        assert!(fresh.contains(&format!("Metadata.{field} = ''")), "{fresh}");
    }
    let mut garbled = resources.create(set).await.unwrap();
    garbled.metadata_mut().resource_version = "yesterday".into();
    let wrong = text(resources.update(garbled).await);
    assert!(wrong.starts_with("error with field ResourceVersion = 'yesterday' ("), "{wrong}");
    assert!(
        text(resources.delete(Kind::NetworkSet, "prod", "dns", Some("x")).await)
            .contains("ResourceVersion = 'x'")
    );
}

async fn a_store_is_initialised_once(store: TestStore) {
    let resources = ready(&store).await;
    let first = resources.get(Kind::ClusterInformation, "", "default").await.unwrap();
    resources.ensure_initialized("v3.32.0", "k8s").await.unwrap();
    assert_eq!(resources.get(Kind::ClusterInformation, "", "default").await.unwrap(), first);
    let tiers = resources.list_as::<TierSpec>(None).await.unwrap();
    let seen: Vec<_> = tiers
        .iter()
        .map(|tier| {
            (tier.metadata.name.as_str(), tier.spec.order.unwrap().0, tier.spec.default_action.to_string())
        })
        .collect();
    let pass = || "Pass".to_owned();
    assert_eq!(
        seen,
        [("default", 1e6, "Deny".to_owned()), ("kube-admin", 1e3, pass()), ("kube-baseline", 1e7, pass())]
    );
}

async fn an_initialised_store_keeps_its_lock(store: TestStore) {
    let resources = ready(&store).await;
    let Resource::ClusterInformation(mut information) =
        resources.get(Kind::ClusterInformation, "", "default").await.unwrap()
    else {
        panic!()
    };
    assert_eq!(information.spec.datastore_ready, Some(true));
    let guid = information.spec.cluster_guid.clone();
    information.spec.datastore_ready = Some(false);
    resources.update((*information).into()).await.unwrap();
    resources.ensure_initialized("v3.33.0", "k8s,bgp").await.unwrap();
    let spec =
        resources.get(Kind::ClusterInformation, "", "default").await.unwrap().to_value()["spec"].clone();
    assert_eq!(spec["datastoreReady"], false);
    // The version of another release is kept.
    assert_eq!(spec["calicoVersion"], "v3.32.0");
    assert_eq!(spec["clusterType"], "k8s,bgp");
    assert_eq!(spec["clusterGUID"], guid);
}

async fn policies_need_their_tier(store: TestStore) {
    rules::policies_need_their_tier(&store.resources().await).await;
}

async fn tiers_in_use_stay(store: TestStore) {
    rules::tiers_in_use_stay(&ready(&store).await).await;
}

async fn names_and_defaults(store: TestStore) {
    let resources = ready(&store).await;
    // Only one ClusterInformation is allowed.
    let second = text(resources.create(object(Kind::ClusterInformation, "", "second", json!({}))).await);
    assert!(second.contains("second"), "{second}");
    // The name and two labels are derived from the spec.
    let spec = json!({
        "orchestrator": "k8s", "node": "rack1-n7", "pod": "web-0", "endpoint": "eth0", "interfaceName": "cali1",
        "ipNetworks": ["10.65.3.8/32"],
    });
    let mut endpoint = object(Kind::WorkloadEndpoint, "prod", "", spec.clone());
    endpoint.metadata_mut().labels.insert("projectcalico.org/orchestrator".into(), "other".into());
    let created = resources.create(endpoint).await.unwrap();
    assert_eq!(created.metadata().name, "rack1--n7-k8s-web--0-eth0");
    assert_eq!(created.metadata().labels["projectcalico.org/namespace"], "prod");
    assert_eq!(created.metadata().labels["projectcalico.org/orchestrator"], "k8s");
    let wrong = resources.create(object(Kind::WorkloadEndpoint, "prod", "web-0", spec)).await;
    assert!(matches!(wrong, Err(StoreError::Validation(_))), "{wrong:?}");

    let created = resources.create(pool("p4", "10.65.0.0/16")).await.unwrap().to_value();
    let stored = store.raw("/calico/resources/v3/projectcalico.org/ippools/p4").await.unwrap();
    let stored: Json = serde_json::from_str(&stored).unwrap();
    assert_eq!(stored["spec"], created["spec"]);
    assert_eq!(stored["spec"]["blockSize"], 26);
    assert_eq!(stored["spec"]["nodeSelector"], "all()");
}

async fn the_profile_that_is_not_stored(store: TestStore) {
    let resources = store.resources().await;
    let name = "projectcalico-default-allow";
    let profile = resources.get(Kind::Profile, "", name).await.unwrap();
    assert_eq!(profile.metadata().resource_version, "1");
    assert_eq!(
        profile.to_value()["spec"],
        json!({"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]})
    );
    assert_eq!(resources.list(Kind::Profile, None).await.unwrap().items, std::slice::from_ref(&profile));
    let exists = resources.create(object(Kind::Profile, "", name, json!({}))).await;
    assert!(matches!(exists, Err(StoreError::AlreadyExists { .. })), "{exists:?}");
    let mut changed = profile;
    changed.metadata_mut().uid = "u".into();
    changed.metadata_mut().creation_timestamp = Some("2026-03-01T10:20:30Z".into());
    assert_eq!(
        text(resources.update(changed).await),
        format!("operation update is not supported on Profile({name}): it is built in")
    );
    assert_eq!(
        text(resources.delete(Kind::Profile, "", name, None).await),
        format!("operation delete is not supported on Profile({name}): it is built in")
    );
}

async fn pools_do_not_overlap(store: TestStore) {
    rules::pools_do_not_overlap(&store.resources().await).await;
}

/// Writes a block of eight addresses with these allocations (ordinal, handle, node).
async fn put_block(store: &TestStore, cidr: &str, affinity: Option<&str>, held: &[(usize, &str, &str)]) {
    let mut block = json!({
        "cidr": cidr, "affinity": affinity.map(|owner| format!("host:{owner}")),
        "allocations": [null, null, null, null, null, null, null, null], "unallocated": [], "attributes": [],
        "sequenceNumber": 7, "sequenceNumberForAllocation": {}, "deleted": false,
    });
    for (index, (ordinal, handle, node)) in held.iter().enumerate() {
        block["allocations"][*ordinal] = json!(index);
        block["attributes"]
            .as_array_mut()
            .unwrap()
            .push(json!({"handle_id": handle, "secondary": {"node": node}}));
        block["sequenceNumberForAllocation"][ordinal.to_string()] = json!(3);
        let key = format!("/calico/ipam/v2/handle/{handle}");
        let mut blocks = match store.raw(&key).await {
            Some(text) => serde_json::from_str::<Json>(&text).unwrap()["block"].clone(),
            None => json!({}),
        };
        blocks[cidr] = json!(blocks[cidr].as_i64().unwrap_or(0) + 1);
        store.put_raw(&key, &json!({"block": blocks, "deleted": false}).to_string()).await;
    }
    let free: Vec<usize> = (0..8).filter(|ordinal| !held.iter().any(|one| one.0 == *ordinal)).collect();
    block["unallocated"] = json!(free);
    let version = if cidr.contains(':') { "ipv6" } else { "ipv4" };
    let part = format!("{version}/block/{}", cidr.replace('/', "-"));
    store.put_raw(&format!("/calico/ipam/v2/assignment/{part}"), &block.to_string()).await;
    if let Some(owner) = affinity {
        let claim = r#"{"state":"confirmed","deleted":false}"#;
        store.put_raw(&format!("/calico/ipam/v2/host/{owner}/{part}"), claim).await;
    }
}

async fn block(store: &TestStore, part: &str) -> Option<Json> {
    let text = store.raw(&format!("/calico/ipam/v2/assignment/{part}")).await?;
    Some(serde_json::from_str(&text).unwrap())
}

async fn pools_fit_their_blocks(store: TestStore) {
    let resources = store.resources().await;
    put_block(&store, "10.65.3.8/29", Some("n1"), &[]).await;
    let refused = text(resources.create(pool("p", "10.65.0.0/16")).await);
    assert!(refused.contains("10.65.3.8/29") && refused.contains("IPPool.Spec.CIDR"), "{refused}");
    let fitting = object(Kind::IPPool, "", "p", json!({"cidr": "10.65.0.0/16", "blockSize": 29}));
    resources.create(fitting).await.unwrap();
}

async fn pools_do_not_change_shape(store: TestStore) {
    rules::pools_do_not_change_shape(&store.resources().await).await;
}

async fn a_deleted_pool_gives_back_its_blocks(store: TestStore) {
    let resources = store.resources().await;
    let created = resources
        .create(object(Kind::IPPool, "", "p", json!({"cidr": "10.65.3.0/24", "blockSize": 29})))
        .await
        .unwrap();
    put_block(&store, "10.65.3.8/29", Some("n1"), &[]).await;
    put_block(&store, "10.65.3.16/29", Some("n2"), &[(2, "pod", "n2")]).await;
    put_block(&store, "10.65.4.0/29", Some("n1"), &[]).await;
    // A node crashed before it recorded its affinity.
    put_block(&store, "10.65.3.24/29", Some("n3"), &[]).await;
    store.delete_raw("/calico/ipam/v2/host/n3/ipv4/block/10.65.3.24-29").await;

    let other = resources.delete(Kind::IPPool, "", "p", Some("1")).await;
    assert!(matches!(other, Err(StoreError::Conflict { .. })), "{other:?}");
    let version = created.metadata().resource_version.clone();
    let deleted = resources.delete(Kind::IPPool, "", "p", Some(&version)).await.unwrap();
    assert_eq!(deleted.to_value()["spec"]["disabled"], true);

    assert_eq!(block(&store, "ipv4/block/10.65.3.8-29").await, None);
    assert_eq!(block(&store, "ipv4/block/10.65.3.24-29").await, None);
    let kept = block(&store, "ipv4/block/10.65.3.16-29").await.unwrap();
    assert_eq!(kept["affinity"], Json::Null);
    assert_eq!(kept["sequenceNumber"], 8);
    assert_eq!(kept["allocations"][2], 0);
    assert_eq!(store.raw("/calico/ipam/v2/host/n1/ipv4/block/10.65.3.8-29").await, None);
    assert_eq!(store.raw("/calico/ipam/v2/host/n2/ipv4/block/10.65.3.16-29").await, None);
    // Nothing outside of the pool changed.
    assert!(block(&store, "ipv4/block/10.65.4.0-29").await.is_some());
    assert!(store.raw("/calico/ipam/v2/host/n1/ipv4/block/10.65.4.0-29").await.is_some());
    assert!(matches!(resources.get(Kind::IPPool, "", "p").await, Err(StoreError::DoesNotExist { .. })));
}

/// Creates a node with a workload, tunnels and its own settings, and a second one with the same.
async fn two_nodes(store: &TestStore, resources: &ResourceClient) {
    for (node, last) in [("n1", 8), ("n2", 9)] {
        let spec = json!({
            "bgp": {"ipv4Address": "192.0.2.1/24", "ipv4IPIPTunnelAddr": format!("10.65.3.{}", last + 8)},
            "ipv6VXLANTunnelAddr": format!("fd00:65::{last}"),
        });
        resources.create(object(Kind::Node, "", node, spec)).await.unwrap();
        let endpoint = json!({
            "orchestrator": "k8s", "node": node, "pod": "web", "endpoint": "eth0", "interfaceName": "cali1",
            "ipNetworks": [format!("10.65.3.{last}/32")],
        });
        resources.create(object(Kind::WorkloadEndpoint, "prod", "", endpoint)).await.unwrap();
        resources
            .create(object(
                Kind::BGPPeer,
                "",
                &format!("peer-{node}"),
                json!({"node": node, "peerIP": "192.0.2.9", "asNumber": 64512}),
            ))
            .await
            .unwrap();
        resources
            .create(object(
                Kind::HostEndpoint,
                "",
                &format!("{node}-eth0"),
                json!({"node": node, "interfaceName": "eth0"}),
            ))
            .await
            .unwrap();
        resources
            .create(object(Kind::FelixConfiguration, "", &format!("node.{node}"), json!({})))
            .await
            .unwrap();
        resources
            .create(object(Kind::BGPConfiguration, "", &format!("node.{node}"), json!({})))
            .await
            .unwrap();
    }
    // n2 has an address in a block of n1; n1 has none in blocks of n2.
    put_block(store, "10.65.3.8/29", Some("n1"), &[(0, "pod-n1", "n1"), (1, "pod-n2", "n2")]).await;
    put_block(store, "10.65.3.16/29", Some("n1"), &[(0, "ipip-tunnel-addr-n1", "n1")]).await;
    put_block(store, "10.65.3.24/29", Some("n2"), &[]).await;
    put_block(store, "fd00:65::8/125", Some("n1"), &[(0, "vxlan-v6-tunnel-addr-n1", "n1")]).await;
    store.put_raw("/calico/ipam/v2/host/n1", "").await;
}

/// Asserts that no object of n1 is left.
async fn only_n2_is_left(resources: &ResourceClient) {
    for kind in [
        Kind::Node,
        Kind::WorkloadEndpoint,
        Kind::BGPPeer,
        Kind::HostEndpoint,
        Kind::FelixConfiguration,
        Kind::BGPConfiguration,
    ] {
        let left = resources.list(kind, None).await.unwrap().items;
        assert_eq!(left.len(), 1, "{kind}: {left:?}");
        assert!(left[0].metadata().name.contains("n2"), "{left:?}");
    }
}

async fn a_deleted_node_leaves_nothing_behind(store: TestStore) {
    let resources = store.resources().await;
    two_nodes(&store, &resources).await;
    // Creating a node initialises the store.
    resources.get(Kind::ClusterInformation, "", "default").await.unwrap();

    resources.delete(Kind::Node, "", "n1", None).await.unwrap();

    only_n2_is_left(&resources).await;
    let shared = block(&store, "ipv4/block/10.65.3.8-29").await.unwrap();
    assert_eq!(shared["affinity"], Json::Null);
    assert_eq!(shared["allocations"], json!([null, 0, null, null, null, null, null, null]));
    assert_eq!(shared["attributes"][0]["handle_id"], "pod-n2");
    assert_eq!(shared["unallocated"], json!([2, 3, 4, 5, 6, 7, 0]));
    assert_eq!(block(&store, "ipv4/block/10.65.3.16-29").await, None);
    assert_eq!(block(&store, "ipv6/block/fd00:65::8-125").await, None);
    for gone in ["handle/pod-n1", "handle/ipip-tunnel-addr-n1", "handle/vxlan-v6-tunnel-addr-n1", "host/n1"] {
        assert_eq!(store.raw(&format!("/calico/ipam/v2/{gone}")).await, None, "{gone}");
    }
    assert!(store.raw("/calico/ipam/v2/handle/pod-n2").await.is_some());
    assert!(store.raw("/calico/ipam/v2/host/n2/ipv4/block/10.65.3.24-29").await.is_some());
    assert_eq!(store.raw("/calico/ipam/v2/host/n1/ipv4/block/10.65.3.8-29").await, None);
}

async fn a_missing_node_leaves_nothing_behind(store: TestStore) {
    let resources = store.resources().await;
    two_nodes(&store, &resources).await;
    put_block(&store, "10.65.3.32/29", Some("n2"), &[(0, "vxlan-tunnel-addr-n2", "n2")]).await;
    store.client().await.delete(&StoreKey::resource(Kind::Node, "", "n1"), None).await.unwrap();

    let missing = resources.delete(Kind::Node, "", "n1", None).await;

    assert!(matches!(missing, Err(StoreError::DoesNotExist { .. })), "{missing:?}");
    only_n2_is_left(&resources).await;
    let shared = block(&store, "ipv4/block/10.65.3.8-29").await.unwrap();
    assert_eq!(shared["affinity"], Json::Null);
    assert_eq!(shared["allocations"], json!([null, 0, null, null, null, null, null, null]));
    // Only the allocation record shows which node the tunnel belonged to.
    assert_eq!(block(&store, "ipv4/block/10.65.3.16-29").await, None);
    assert_eq!(block(&store, "ipv6/block/fd00:65::8-125").await, None);
    for gone in ["handle/pod-n1", "handle/ipip-tunnel-addr-n1", "handle/vxlan-v6-tunnel-addr-n1", "host/n1"] {
        assert_eq!(store.raw(&format!("/calico/ipam/v2/{gone}")).await, None, "{gone}");
    }
    assert!(store.raw("/calico/ipam/v2/handle/vxlan-tunnel-addr-n2").await.is_some());
}

async fn a_node_that_cannot_be_deleted_loses_nothing(store: TestStore) {
    let resources = store.resources().await;
    two_nodes(&store, &resources).await;
    let before = block(&store, "ipv4/block/10.65.3.8-29").await;
    let refused = resources.delete(Kind::Node, "", "n1", Some("1")).await;
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
    let missing = resources.delete(Kind::Node, "", "n3", None).await;
    assert!(matches!(missing, Err(StoreError::DoesNotExist { .. })), "{missing:?}");
    assert_eq!(block(&store, "ipv4/block/10.65.3.8-29").await, before);
    assert_eq!(resources.list(Kind::WorkloadEndpoint, None).await.unwrap().items.len(), 2);
    resources.get_as::<NodeSpec>("", "n1").await.unwrap();
}

async fn peers_need_their_filters(store: TestStore) {
    rules::peers_need_their_filters(&store.resources().await).await;
}

async fn old_policies_are_found_under_their_old_name(store: TestStore) {
    let resources = ready(&store).await;
    let old = json!({
        "kind": "GlobalNetworkPolicy", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "default.web", "uid": "u", "creationTimestamp": null}, "spec": {"selector": "all()"},
    });
    let path = "/calico/resources/v3/projectcalico.org/globalnetworkpolicies/default.web";
    store.put_raw(path, &old.to_string()).await;
    let read = resources.get(Kind::GlobalNetworkPolicy, "", "default.web").await.unwrap();
    assert_eq!(read.metadata().name, "web");
    assert_eq!(read.metadata().labels["projectcalico.org/tier"], "default");
    resources.delete(Kind::GlobalNetworkPolicy, "", "default.web", None).await.unwrap();
}
