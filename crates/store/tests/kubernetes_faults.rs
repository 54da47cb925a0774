//! Invalid responses of the Kubernetes API count as an outage: nothing is deleted, and all changes are delivered
//! afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::fault_proxy::{FaultProxy, InjectedFault};
use common::{next, object, within};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tortie_model::{KeyRange, Kind, StoreKey};
use tortie_store::{
    ResourceClient, ResponseError, StoreClient, StoreConfig, StoreError, StoreEvent, StoreLimits, StoreWatch,
};
use tortie_testkit::{ApiServer, CalicoGroup};

const POLICY_RANGE: KeyRange =
    KeyRange::Resources { kind: Kind::GlobalNetworkPolicy, namespace: None, name_prefix: String::new() };

/// Returns a configuration without an API group, so that the client discovers it.
fn config(server: &ApiServer, proxy: &FaultProxy) -> StoreConfig {
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": proxy.url}}],
        "users": [{"name": "test", "user": {"token": "secret"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    let path = server.path("kubeconfig-proxy");
    std::fs::write(&path, text.to_string()).unwrap();
    StoreConfig {
        datastore_type: "kubernetes".into(),
        kubeconfig: path.display().to_string(),
        ..StoreConfig::default()
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    within(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn assert_silent(watch: &mut StoreWatch, fault: &InjectedFault) {
    let event = tokio::time::timeout(Duration::from_millis(300), watch.next()).await;
    assert!(event.is_err(), "{fault:?}: {event:?}");
}

async fn create_policy(resources: &ResourceClient, name: &str) {
    let spec = json!({"selector": "all()", "ingress": [{"action": "Deny"}]});
    resources.create(object(Kind::GlobalNetworkPolicy, "", name, spec)).await.unwrap();
}

/// Returns the key of the next event, which must be the creation of a policy.
async fn next_created(watch: &mut StoreWatch, name: &str) -> StoreKey {
    match next(watch).await {
        StoreEvent::Put(entry) if entry.key.to_string().contains(name) => entry.key,
        event => panic!("{event:?} and not {name}"),
    }
}

fn faults() -> Vec<InjectedFault> {
    let list = |mut fields: serde_json::Value| {
        fields["apiVersion"] = "projectcalico.org/v3".into();
        fields.to_string()
    };
    let body = |text: &str| InjectedFault::Body(200, text.to_owned());
    vec![
        body("{}"),
        body(""),
        body(r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#),
        body("<html><body>Sign in</body></html>"),
        body(&list(json!({"kind": "TierList", "metadata": {"resourceVersion": "9"}, "items": []}))),
        body(&list(json!({"kind": "GlobalNetworkPolicyList", "metadata": {}, "items": []}))),
        body(&list(json!({"kind": "GlobalNetworkPolicyList", "metadata": {"resourceVersion": "9"}}))),
        InjectedFault::Body(404, "<html><body>404 Not Found</body></html>".to_owned()),
        InjectedFault::Closed,
        InjectedFault::EndlessBody,
    ]
}

/// Installs a definition in the group of older installations, as if left over from one.
fn leave_old_definition(server: &ApiServer) {
    let definitions = tortie_model::schema::storage_crds();
    let is_pools = |definition: &&serde_json::Value| definition["spec"]["names"]["plural"] == "ippools";
    let definition = definitions.iter().find(is_pools).expect("a definition of pools");
    server.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", Some(definition));
    let group = "/apis/crd.projectcalico.org/v1";
    tortie_testkit::eventually("the old group is served", || server.send("GET", group, None).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_responses_are_outages_not_deletions() {
    let server = ApiServer::start();
    leave_old_definition(&server);
    server.install(CalicoGroup::V3);
    let proxy = FaultProxy::start(&server.url(), InjectedFault::Closed).await;
    let config = config(&server, &proxy);

    // A daemon that starts while the API server is unreachable discovers the group later.
    let causes = AtomicUsize::new(0);
    let connecting = StoreClient::connect_waiting(&config, |_| {
        causes.fetch_add(1, Ordering::Relaxed);
    });
    let heal = until("the first cause is reported", || causes.load(Ordering::Relaxed) > 0);
    let (client, ()) = tokio::join!(connecting, async {
        heal.await;
        proxy.set(InjectedFault::Body(200, "{}".to_owned()));
        until("another cause is reported", || causes.load(Ordering::Relaxed) > 1).await;
        proxy.set(InjectedFault::None);
    });
    let client = client.unwrap();
    assert!(client.stores_v3_as_written(), "the cluster keeps objects in no other group");

    let resources = ResourceClient::new(client.clone());
    resources.ensure_initialized("v3.32.0", "k8s").await.unwrap();
    create_policy(&resources, "closed").await;
    let mut watch = client.watch(POLICY_RANGE, None);
    let policy = next_created(&mut watch, "closed").await;
    assert!(matches!(next(&mut watch).await, StoreEvent::InSync(_)));

    for (number, fault) in faults().into_iter().enumerate() {
        proxy.set(fault.clone());
        let mut late = client.watch(POLICY_RANGE, None);
        until("trouble", || watch.trouble().is_some() && late.trouble().is_some()).await;
        assert_silent(&mut watch, &fault).await;
        assert_silent(&mut late, &fault).await;
        let listed = client.list(&POLICY_RANGE).await;
        assert!(listed.as_ref().is_err_and(StoreError::is_outage), "{fault:?}: {listed:?}");
        let found = client.get(&policy).await;
        assert!(found.as_ref().is_err_and(StoreError::is_outage), "{fault:?}: {found:?}");
        if fault == InjectedFault::EndlessBody {
            let is_bounded = matches!(listed, Err(StoreError::Response(ResponseError::TooLarge { .. })));
            assert!(is_bounded, "{listed:?}");
        }
        let refused = StoreClient::connect(&config).await.map(|_| "a client");
        assert!(refused.is_err(), "{fault:?}: {refused:?}");
        proxy.set(InjectedFault::None);
        let marker = format!("marker-{number}");
        create_policy(&resources, &marker).await;
        next_created(&mut watch, &marker).await;
        until("the outage ends", || watch.trouble().is_none()).await;
    }
    assert!(tortie_store::rejected_responses() > 20);

    proxy.set(InjectedFault::EndlessLine);
    until("the line is too long", || watch.trouble().is_some_and(|text| text.contains("is larger than")))
        .await;
    assert_silent(&mut watch, &InjectedFault::EndlessLine).await;
    proxy.set(InjectedFault::None);
    create_policy(&resources, "last").await;
    next_created(&mut watch, "last").await;

    drop(watch);
    an_empty_cluster_is_believed_when_lists_agree(&proxy, &config).await;
}

/// Returns a watch that is in sync, of a client with the given grace period, and the number of policies delivered.
async fn watch_with_grace(config: &StoreConfig, seconds: u64) -> (StoreWatch, usize) {
    let limits = StoreLimits { absence_grace: Duration::from_secs(seconds), ..StoreLimits::default() };
    let client = StoreClient::connect_with(config, limits).await.unwrap();
    let mut watch = client.watch(POLICY_RANGE, None);
    let mut known = 0;
    while !matches!(next(&mut watch).await, StoreEvent::InSync(_)) {
        known += 1;
    }
    (watch, known)
}

/// The proxy returns a valid list in which all known objects are missing.
async fn an_empty_cluster_is_believed_when_lists_agree(proxy: &FaultProxy, config: &StoreConfig) {
    let (mut soon, known) = watch_with_grace(config, 2).await;
    assert!(known > 10, "{known}");
    // Longer than the rest of this test takes on any machine.
    let (mut watch, _) = watch_with_grace(config, 3600).await;
    let empty = json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicyList",
        "metadata": {"resourceVersion": "9"}, "items": []});
    let fault = InjectedFault::BodyOf("/globalnetworkpolicies", empty.to_string());
    proxy.set(fault.clone());
    until("it is distrusted", || watch.connection().borrow().distrusted).await;
    assert_silent(&mut watch, &fault).await;
    let trouble = watch.trouble().unwrap_or_default();
    assert!(trouble.contains("are missing from the datastore"), "{trouble}");
    assert!(tortie_store::distrusted_lists() > 0);
    for _ in 0..known {
        assert!(matches!(next(&mut soon).await, StoreEvent::Delete { .. }));
    }
    proxy.set(InjectedFault::None);
    until("it is trusted again", || watch.trouble().is_none()).await;
    assert_silent(&mut watch, &InjectedFault::None).await;
}

/// Removes the schema of a definition, as in a cluster that was upgraded from an older version.
fn remove_schemas(server: &ApiServer) {
    let path =
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/globalnetworkpolicies.projectcalico.org";
    let mut definition = server.must("GET", path, None);
    let open = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    definition["spec"]["versions"][0]["schema"] = open;
    server.must("PUT", path, Some(&definition));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_policy_comes_with_its_text() {
    let server = ApiServer::start();
    server.install(CalicoGroup::V3);
    remove_schemas(&server);
    let proxy = FaultProxy::start(&server.url(), InjectedFault::None).await;
    let client = StoreClient::connect(&config(&server, &proxy)).await.unwrap();
    let mut watch = client.watch(POLICY_RANGE, None);
    assert!(matches!(next(&mut watch).await, StoreEvent::InSync(_)));
    let spec = json!({"selector": "all()", "types": ["Ingress"],
        "ingress": [{"action": "Deny", "destination": {"ports": [800_000]}}]});
    let policy = json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy",
        "metadata": {"name": "wrong"}, "spec": spec});
    tortie_testkit::eventually("the schema is gone", || {
        server.send("POST", "/apis/projectcalico.org/v3/globalnetworkpolicies", Some(&policy)).is_ok()
    });
    let event = next(&mut watch).await;
    let StoreEvent::Unreadable { key, error: StoreError::Parse { value, .. }, .. } = event else {
        panic!("{event:?}")
    };
    let salvaged = tortie_model::salvage::salvage(&key, &value);
    let lost = salvaged.map(|salvaged| salvaged.lost).unwrap_or_default();
    assert_eq!(lost, ["spec.ingress[0].destination.ports[0]"], "{value}");
}
