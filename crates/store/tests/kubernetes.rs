//! The Kubernetes backend with a real API server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{next, object, rules};
use serde_json::json;
use std::num::NonZeroUsize;
use std::time::Duration;
use tortie_model::ipam::{AddressBlock, AddressHandle};
use tortie_model::key::AffinityType;
use tortie_model::kubernetes::ClusterPolicyKind;
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_store::{PageRequest, ResourceClient, StoreClient, StoreConfig, StoreError, StoreEvent};
use tortie_testkit::{ApiServer, CalicoGroup, UNPRIVILEGED_USERS};

/// Starts an API server with the definitions in both API groups.
fn start() -> ApiServer {
    let server = ApiServer::start();
    CalicoGroup::BOTH.into_iter().for_each(|group| server.install(group));
    server
}

fn config(server: &ApiServer, group: CalicoGroup) -> StoreConfig {
    StoreConfig {
        calico_api_group: group.api_version().into(),
        datastore_type: "kubernetes".into(),
        kubeconfig: server.kubeconfig().display().to_string(),
        ..StoreConfig::default()
    }
}

async fn connect(server: &ApiServer, group: CalicoGroup) -> StoreClient {
    StoreClient::connect(&config(server, group)).await.unwrap()
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_serves_everything() {
    let server = start();
    server.add_namespace("prod", json!({}));
    for group in CalicoGroup::BOTH {
        let client = connect(&server, group).await;
        the_rules_of_every_store(&ResourceClient::new(client.clone())).await;
        records_live_and_die(&client).await;
        blocks_keep_every_field(&client).await;
        resources_live_and_die(&client).await;
        policies_keep_their_names(&client).await;
        lists_come_in_pages(&client).await;
        watches_report_a_snapshot_then_every_change(&client).await;
        a_forgotten_moment_means_a_new_list(&server, &client).await;
        what_is_not_kept_is_refused(&client).await;
    }
    kubernetes_objects_are_derived(&server).await;
    policies_of_kubernetes_are_ours(&server).await;
    an_unserved_kind_is_empty_until_served(&server).await;
}

/// The role of an older release does not include kinds that are new: as long as the server does not have them, it must not
/// prevent the node from reading the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_kinds_need_no_rights() {
    let server = ApiServer::start_with_rules();
    server.install(CalicoGroup::V3);
    let user = UNPRIVILEGED_USERS[0];
    let api = "rbac.authorization.k8s.io";
    let may_read = |group: &str, resource: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": ["list", "watch"]});
    let rules = [
        may_read("projectcalico.org", "globalnetworkpolicies"),
        may_read("policy.networking.k8s.io", "clusternetworkpolicies"),
    ];
    let role = json!({"apiVersion": format!("{api}/v1"), "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules});
    server.create(&format!("/apis/{api}/v1/clusterroles"), &role);
    let binding = json!({"apiVersion": format!("{api}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": user},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": api, "kind": "User", "name": user}]});
    server.create(&format!("/apis/{api}/v1/clusterrolebindings"), &binding);
    let kubeconfig = server.kubeconfig_of(user).display().to_string();
    let config = StoreConfig { kubeconfig, ..config(&server, CalicoGroup::V3) };
    let client = StoreClient::connect(&config).await.unwrap();
    let range = KeyRange::all(Kind::GlobalNetworkPolicy);
    let mut watch = client.watch(range.clone(), None);
    assert!(matches!(next(&mut watch).await, StoreEvent::InSync(_)));
    assert!(client.list(&range).await.unwrap().entries.is_empty());
    // Policies that may exist must not be ignored. Discovery may lag behind.
    server.install_cluster_policies(ClusterPolicyKind::AdminNetworkPolicy);
    let refusal = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            match client.list(&range).await {
                Err(StoreError::Unauthorized(reason)) => return reason,
                _ => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    });
    let refusal = refusal.await.unwrap();
    assert!(refusal.contains("adminnetworkpolicies"), "{refusal}");
}

async fn the_rules_of_every_store(resources: &ResourceClient) {
    rules::policies_need_their_tier(resources).await;
    resources.ensure_initialized("v3.32.0", "k8s").await.unwrap();
    rules::tiers_in_use_stay(resources).await;
    rules::an_object_lives_and_dies(resources).await;
    rules::pools_do_not_overlap(resources).await;
    rules::pools_do_not_change_shape(resources).await;
    rules::peers_need_their_filters(resources).await;
}

async fn records_live_and_die(client: &StoreClient) {
    assert!(!client.has_transactions());
    let key = handle("Net.H");
    assert!(matches!(client.get(&key).await, Err(StoreError::DoesNotExist { .. })));
    let created = client.create(&key, &counting(1)).await.unwrap();
    assert_eq!(client.get(&key).await.unwrap(), created);
    assert!(matches!(client.create(&key, &counting(1)).await, Err(StoreError::AlreadyExists { .. })));
    let updated = client.update(&key, &counting(3), &created.revision).await.unwrap();
    assert!(matches!(
        client.update(&key, &counting(4), &created.revision).await,
        Err(StoreError::Conflict { .. })
    ));
    assert!(matches!(client.delete(&key, Some(&created.revision)).await, Err(StoreError::Conflict { .. })));
    assert_eq!(client.delete(&key, Some(&updated.revision)).await.unwrap().value, counting(3));
    assert!(matches!(client.get(&key).await, Err(StoreError::DoesNotExist { .. })));
    let cidr = "10.65.3.0/26".parse().unwrap();
    let claim =
        |owner: &str| StoreKey::BlockAffinity { affinity: AffinityType::Host, owner: owner.into(), cidr };
    for owner in ["n1", "n2"] {
        client.create(&claim(owner), &StoreValue::BlockAffinity(Default::default())).await.unwrap();
    }
    let of_n1 = KeyRange::BlockAffinities {
        affinity: AffinityType::Host,
        owner: Some("n1".into()),
        ip_version: Some(4),
    };
    assert_eq!(client.list_keys(&of_n1).await.unwrap(), [claim("n1")]);
}

async fn resources_live_and_die(client: &StoreClient) {
    let resources = ResourceClient::new(client.clone());
    let set = object(Kind::GlobalNetworkSet, "", "dns", json!({"nets": ["10.0.0.0/8"]}));
    let created = resources.create(set.clone()).await.unwrap();
    assert_eq!(resources.get(Kind::GlobalNetworkSet, "", "dns").await.unwrap(), created);
    assert!(matches!(resources.create(set).await, Err(StoreError::AlreadyExists { current: Some(_), .. })));
    let mut changed = created.clone();
    changed.metadata_mut().labels.insert("a".into(), "b".into());
    let updated = resources.update(changed.clone()).await.unwrap();
    assert_eq!(updated.metadata().labels["a"], "b");
    assert!(matches!(resources.update(changed).await, Err(StoreError::Conflict { .. })));
    resources.delete(Kind::GlobalNetworkSet, "", "dns", None).await.unwrap();
    assert!(matches!(
        resources.get(Kind::GlobalNetworkSet, "", "dns").await,
        Err(StoreError::DoesNotExist { .. })
    ));
}

/// Stores a block in which every field is used.
async fn blocks_keep_every_field(client: &StoreClient) {
    let block: AddressBlock = serde_json::from_value(json!({
        "cidr": "10.65.7.0/30", "affinity": "host:n1", "allocations": [0, null, 1, null], "unallocated": [1, 3],
        "attributes": [
            {"handle_id": "net.a", "secondary": {"node": "n1"}},
            {"handle_id": null, "secondary": {}},
        ],
        // Not representable as a double.
        "sequenceNumber": 1_789_000_000_123_456_789_u64,
        "sequenceNumberForAllocation": {"0": 1_789_000_000_123_456_788_u64, "2": 5},
        "deleted": false,
    }))
    .unwrap();
    let key = StoreKey::Block { cidr: block.cidr };
    let created = client.create(&key, &StoreValue::Block(block.clone())).await.unwrap();
    assert_eq!(created.value, StoreValue::Block(block.clone()));
    assert_eq!(client.get(&key).await.unwrap(), created);
    let freed =
        AddressBlock { allocations: vec![None, None, Some(1), None], unallocated: vec![1, 3, 0], ..block };
    let updated = client.update(&key, &StoreValue::Block(freed.clone()), &created.revision).await.unwrap();
    assert_eq!(updated.value, StoreValue::Block(freed));
    let all = client.list(&KeyRange::Blocks { ip_version: Some(4) }).await.unwrap();
    assert_eq!((all.entries, all.unreadable.len()), (vec![updated.clone()], 0));
    client.delete(&key, Some(&updated.revision)).await.unwrap();
    assert!(client.list(&KeyRange::Blocks { ip_version: Some(4) }).await.unwrap().entries.is_empty());
}

/// Creates a policy in a tier, validated by the schema if the group has one.
async fn policies_keep_their_names(client: &StoreClient) {
    let resources = ResourceClient::new(client.clone());
    let tier = object(Kind::Tier, "", "sec", json!({"order": 10.0, "defaultAction": "Deny"}));
    resources.create(tier).await.unwrap();
    let spec = json!({"tier": "sec", "selector": "app == 'web'", "types": ["Ingress"],
        "ingress": [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [80, "8000:8080"]}}]});
    let policy = object(Kind::GlobalNetworkPolicy, "", "sec.web", spec);
    let created = resources.create(policy).await.unwrap();
    assert_eq!(created.metadata().name, "sec.web");
    let listed = client.list(&KeyRange::all(Kind::GlobalNetworkPolicy)).await.unwrap();
    assert_eq!(listed.entries.len(), 1, "{listed:?}");
    assert_eq!(resources.get(Kind::GlobalNetworkPolicy, "", "sec.web").await.unwrap(), created);
    resources.delete(Kind::GlobalNetworkPolicy, "", "sec.web", None).await.unwrap();
    resources.delete(Kind::Tier, "", "sec", None).await.unwrap();
}

async fn lists_come_in_pages(client: &StoreClient) {
    for n in 0..5 {
        client.create(&handle(&format!("page-{n}")), &counting(n)).await.unwrap();
    }
    let mut page = PageRequest::first(NonZeroUsize::new(2).unwrap());
    let mut seen = Vec::new();
    for _ in 0..3 {
        let listing = client.list_page(&KeyRange::Handles, &page).await.unwrap();
        seen.extend(listing.entries);
        page.after = listing.next;
    }
    assert_eq!(page.after, None);
    assert_eq!(seen, client.list(&KeyRange::Handles).await.unwrap().entries);
    assert_eq!(seen.len(), 5);
}

async fn watches_report_a_snapshot_then_every_change(client: &StoreClient) {
    let mut watch = client.watch(KeyRange::Handles, None);
    for _ in 0..5 {
        assert!(matches!(next(&mut watch).await, StoreEvent::Put(_)));
    }
    assert!(matches!(next(&mut watch).await, StoreEvent::InSync(_)));
    client.create(&handle("new"), &counting(1)).await.unwrap();
    client.delete(&handle("page-0"), None).await.unwrap();
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("new")));
    assert!(matches!(next(&mut watch).await, StoreEvent::Delete { key, .. } if key == handle("page-0")));
}

/// The server responds with 410 to a watch and to a continuation from before the compacted revision.
async fn a_forgotten_moment_means_a_new_list(server: &ApiServer, client: &StoreClient) {
    let before = client.list(&KeyRange::Handles).await.unwrap();
    let mut watch = client.watch(KeyRange::Handles, Some(1.into()));
    let mut seen = Vec::new();
    assert!(matches!(next(&mut watch).await, StoreEvent::Reset));
    loop {
        match next(&mut watch).await {
            StoreEvent::Put(entry) => seen.push(entry),
            StoreEvent::InSync(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, before.entries);
    let mut page = PageRequest::first(NonZeroUsize::new(2).unwrap());
    page.after = client.list_page(&KeyRange::Handles, &page).await.unwrap().next;
    assert!(page.after.is_some());
    client.create(&handle("after"), &counting(1)).await.unwrap();
    server.forget_the_past();
    let late = client.list_page(&KeyRange::Handles, &page).await;
    assert!(matches!(late, Err(StoreError::Expired(_))), "{late:?}");
    assert_eq!(client.list(&KeyRange::Handles).await.unwrap().entries.len(), before.entries.len() + 1);
}

/// Unsupported operations fail with an error that names them.
async fn what_is_not_kept_is_refused(client: &StoreClient) {
    let key = StoreKey::FelixStatus { region: String::new(), host: "n1".into() };
    let refused = client.apply(&handle("short"), &counting(1), Some(Duration::from_secs(60))).await;
    assert!(matches!(refused, Err(StoreError::NotSupported { operation: "Apply", .. })), "{refused:?}");
    assert!(matches!(client.get(&key).await, Err(StoreError::DoesNotExist { .. })));
    let profile = StoreKey::resource(Kind::Profile, "", "kns.default");
    let entry = client.get(&profile).await.unwrap();
    let refused = client.update(&profile, &entry.value, &entry.revision).await;
    assert!(matches!(refused, Err(StoreError::NotSupported { operation: "Update", .. })), "{refused:?}");
    let node = object(Kind::Node, "", "made", json!({}));
    let refused =
        client.create(&StoreKey::resource(Kind::Node, "", "made"), &StoreValue::Resource(node)).await;
    assert!(matches!(refused, Err(StoreError::NotSupported { operation: "Create", .. })), "{refused:?}");
}

async fn kubernetes_objects_are_derived(server: &ApiServer) {
    server.add_node("n1");
    server.add_pod("prod", "web", "n1", json!({}), json!([]));
    let client = connect(server, CalicoGroup::V3).await;
    let key = StoreKey::resource(Kind::WorkloadEndpoint, "prod", "n1-k8s-web-eth0");
    let StoreValue::Resource(mut endpoint) = client.get(&key).await.unwrap().value else {
        panic!("no resource")
    };
    if let Resource::WorkloadEndpoint(endpoint) = &mut endpoint {
        endpoint.spec.ip_networks = vec!["10.65.3.9/32".into()];
        endpoint.spec.container_id = "c1".into();
    }
    let written = client.create(&key, &StoreValue::Resource(endpoint)).await.unwrap().value;
    let StoreValue::Resource(Resource::WorkloadEndpoint(written)) = written else { panic!("{written:?}") };
    assert_eq!(
        (written.spec.ip_networks.as_slice(), written.spec.container_id.as_str()),
        (&["10.65.3.9/32".to_owned()][..], "c1")
    );
    assert!(client.get(&StoreKey::resource(Kind::Profile, "", "kns.prod")).await.is_ok());
    let node = StoreKey::resource(Kind::Node, "", "n1");
    let entry = client.get(&node).await.unwrap();
    let StoreValue::Resource(mut resource) = entry.value else { panic!("no resource") };
    resource.metadata_mut().labels.insert("rack".into(), "7".into());
    let updated =
        client.update(&node, &StoreValue::Resource(resource.clone()), &entry.revision).await.unwrap();
    let StoreValue::Resource(shown) = updated.value else { panic!("no resource") };
    assert_eq!(shown.metadata().labels["rack"], "7");
    let late = client.update(&node, &StoreValue::Resource(resource), &entry.revision).await;
    assert!(matches!(late, Err(StoreError::Conflict { .. })), "{late:?}");
}

/// NetworkPolicies and endpoint slices, read as a list, individually and through a watch.
async fn policies_of_kubernetes_are_ours(server: &ApiServer) {
    let client = connect(server, CalicoGroup::V3).await;
    let mut watch = client.watch(KeyRange::all(Kind::NetworkPolicy), None);
    let mut slices = client.watch(KeyRange::EndpointSlices, None);
    for watch in [&mut watch, &mut slices] {
        assert!(matches!(next(watch).await, StoreEvent::InSync(_)));
    }
    let path = "/apis/networking.k8s.io/v1/namespaces/prod/networkpolicies";
    let spec = json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80, "endPort": 90}]}]});
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "web"}, "spec": spec});
    server.create(path, &policy);
    let key = StoreKey::resource(Kind::NetworkPolicy, "prod", "knp.default.web");
    let StoreEvent::Put(put) = next(&mut watch).await else { panic!("no policy") };
    assert_eq!(put.key, key);
    let StoreValue::Resource(Resource::NetworkPolicy(found)) = &put.value else { panic!("{put:?}") };
    assert_eq!(found.spec.ingress[0].destination.ports[0].to_string(), "80:90");
    assert_eq!(client.get(&key).await.unwrap(), put);
    let own = object(Kind::NetworkPolicy, "prod", "own", json!({"selector": "all()"}));
    ResourceClient::new(client.clone()).ensure_initialized("", "").await.unwrap();
    ResourceClient::new(client.clone()).create(own).await.unwrap();
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key != key));
    let listed = client.list_keys(&KeyRange::all(Kind::NetworkPolicy)).await.unwrap();
    assert_eq!(listed.len(), 2, "{listed:?}");
    let refused = client.delete(&key, None).await;
    assert!(matches!(refused, Err(StoreError::NotSupported { .. })), "{refused:?}");
    server.must("DELETE", &format!("{path}/web"), None);
    assert!(matches!(next(&mut watch).await, StoreEvent::Delete { key: gone, .. } if gone == key));
    ResourceClient::new(client.clone()).delete(Kind::NetworkPolicy, "prod", "own", None).await.unwrap();

    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"addresses": ["10.65.3.9"]}], "ports": [{"port": 80, "protocol": "TCP"}]});
    server.create("/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices", &slice);
    let StoreEvent::Put(put) = next(&mut slices).await else { panic!("no slice") };
    assert_eq!(put.key, StoreKey::EndpointSlice { namespace: "prod".into(), name: "web-1".into() });
    assert!(matches!(&put.value, StoreValue::EndpointSlice(slice) if slice.service == "web"), "{put:?}");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "externalTrafficPolicy": "Local"}});
    server.create("/api/v1/namespaces/prod/services", &service);
    let key = StoreKey::Service { namespace: "prod".into(), name: "web".into() };
    let found = client.get(&key).await.unwrap();
    let StoreValue::Service(read) = &found.value else { panic!("{found:?}") };
    assert_eq!(
        (read.cluster_ips.len(), read.ip_versions.as_slice(), read.uid.is_empty()),
        (1, &[4][..], false)
    );
    let listed = client.list_keys(&KeyRange::Services).await.unwrap();
    assert!(listed.contains(&key), "{listed:?}");
}

/// Uses ClusterNetworkPolicy, which most clusters do not have.
async fn an_unserved_kind_is_empty_until_served(server: &ApiServer) {
    let client = connect(server, CalicoGroup::V3).await;
    let range = KeyRange::all(Kind::GlobalNetworkPolicy);
    assert!(client.list(&range).await.unwrap().entries.is_empty());
    let key = StoreKey::resource(Kind::GlobalNetworkPolicy, "", "kcnp.admin");
    assert!(matches!(client.get(&key).await, Err(StoreError::DoesNotExist { .. })));
    // A waiting watch follows the definition of the kind and does not poll.
    let kubeconfig = server.node_kubeconfig().display().to_string();
    let waiting =
        StoreClient::connect(&StoreConfig { kubeconfig, ..config(server, CalicoGroup::V3) }).await.unwrap();
    let mut early = waiting.watch(range.clone(), None);
    assert!(matches!(next(&mut early).await, StoreEvent::InSync(_)));
    let asked = |start: &str| -> Vec<String> {
        let requests = server.requests_of_node().into_iter().map(|(_, path)| path);
        requests.filter(|path| path.starts_with(start)).collect()
    };
    let (kind, definitions) = (
        "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies?",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?",
    );
    let kinds = ["clusternetworkpolicies", ".adminnetworkpolicies", "baselineadminnetworkpolicies"];
    tortie_testkit::eventually("the definitions are watched", || asked(definitions).len() == kinds.len());
    let (lists, watches) = (asked(kind), asked(definitions));
    assert_eq!((lists.len(), watches.len()), (1, kinds.len()), "{lists:?} {watches:?}");
    assert!(watches.iter().all(|path| path.contains("watch=1")), "{watches:?}");
    for plural in kinds {
        let plural = plural.trim_start_matches('.');
        assert!(watches.iter().any(|path| path.contains(plural)), "{plural}: {watches:?}");
    }
    server.install_cluster_policies(ClusterPolicyKind::ClusterNetworkPolicy);
    let spec = json!({"tier": "Admin", "priority": 5, "subject": {"namespaces": {}},
        "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]});
    server.create_cluster_policy(ClusterPolicyKind::ClusterNetworkPolicy, "admin", &spec);
    let StoreValue::Resource(Resource::GlobalNetworkPolicy(found)) = client.get(&key).await.unwrap().value
    else {
        panic!("no policy")
    };
    assert_eq!((found.spec.tier.as_str(), found.metadata.name.as_str()), ("kube-admin", "kcnp.admin"));
    assert!(matches!(next(&mut early).await, StoreEvent::Put(entry) if entry.key == key));
    let mut watch = client.watch(range, None);
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == key));
    assert!(matches!(next(&mut watch).await, StoreEvent::InSync(_)));
    // An object that becomes unknown is reported as deleted.
    let path = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies/admin";
    server.merge(path, &json!({"spec": {"tier": "Other"}}));
    assert!(matches!(next(&mut watch).await, StoreEvent::Delete { key: gone, .. } if gone == key));
    assert!(server.send("GET", path, None).is_ok(), "the object itself is not ours to delete");
    // The waiting watch finds the older kinds too, each by its own definition.
    assert!(matches!(next(&mut early).await, StoreEvent::Delete { key: gone, .. } if gone == key));
    for (kind, name, tier) in [
        (ClusterPolicyKind::AdminNetworkPolicy, "kanp.default", "kube-admin"),
        (ClusterPolicyKind::BaselineAdminNetworkPolicy, "kbanp.default", "kube-baseline"),
    ] {
        server.install_cluster_policies(kind);
        server.create_cluster_policy(kind, "default", &spec);
        let key = StoreKey::resource(Kind::GlobalNetworkPolicy, "", name);
        let StoreEvent::Put(put) = next(&mut early).await else { panic!("no policy {name}") };
        let StoreValue::Resource(Resource::GlobalNetworkPolicy(policy)) = &put.value else {
            panic!("{put:?}")
        };
        assert_eq!((&put.key, policy.spec.tier.as_str()), (&key, tier));
        assert!(matches!(client.delete(&key, None).await, Err(StoreError::NotSupported { .. })));
        server.must("DELETE", &format!("{}/default", kind.api_path()), None);
        assert!(matches!(next(&mut early).await, StoreEvent::Delete { key: gone, .. } if gone == key));
    }
}
