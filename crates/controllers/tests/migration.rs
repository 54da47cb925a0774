//! Migration of a cluster's objects from one API group to the other, on a real API server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value as Json, json};
use std::path::Path;
use std::time::Duration;
use tortie_controllers::migration::{DatastoreMover, V3_GROUP_VERSION, phase};
use tortie_model::ipam::AddressHandle;
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue, codec, schema};
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{ResourceClient, StoreClient, StoreConfig, StoreLimits};
use tortie_testkit::{ApiServer, CalicoGroup, eventually};

const MIGRATIONS: &str = "/apis/migration.projectcalico.org/v1/datastoremigrations";
const MIGRATION: &str = "/apis/migration.projectcalico.org/v1/datastoremigrations/v1-to-v3";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v3.projectcalico.org";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SETS: &str = "/apis/projectcalico.org/v3/globalnetworksets";

struct MigrationTestCluster {
    server: ApiServer,
    old: ResourceClient,
    new: ResourceClient,
    mover: DatastoreMover,
}

fn config(server: &ApiServer, group: &str) -> StoreConfig {
    StoreConfig {
        calico_api_group: group.into(),
        datastore_type: "kubernetes".into(),
        kubeconfig: server.kubeconfig().display().to_string(),
        ..StoreConfig::default()
    }
}

impl MigrationTestCluster {
    /// Starts a cluster with the CRDs of both groups and an aggregated API server registered for the newer group.
    async fn start() -> MigrationTestCluster {
        let server = ApiServer::start();
        server.install(CalicoGroup::V1);
        server.install(CalicoGroup::V3);
        server.add_namespace("shop", json!({}));
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/migration/migration.yaml");
        for object in codec::documents(&std::fs::read(file).unwrap()).unwrap() {
            if object["kind"] == "CustomResourceDefinition" {
                server.create(DEFINITIONS, &object);
            }
        }
        eventually("migrations are served", || server.send("GET", MIGRATIONS, None).is_ok());
        let v1 = config(&server, CalicoGroup::V1.api_version());
        let old = ResourceClient::new(StoreClient::connect(&v1).await.unwrap());
        let new =
            ResourceClient::new(StoreClient::connect(&config(&server, V3_GROUP_VERSION)).await.unwrap());
        old.ensure_initialized("v3.32.0", "k8s").await.unwrap();
        let target = v1.orchestrator().unwrap();
        let orchestrator = OrchestratorClient::connect(&target, StoreLimits::default()).await.unwrap();
        let mover = DatastoreMover::connect(&v1, orchestrator, Duration::from_millis(10)).await.unwrap();
        MigrationTestCluster { server, old, new, mover }
    }

    /// Registers an aggregated API server without a backend, which hides the CRDs of the group as the real one does.
    fn register_api_server(&self) {
        let mut registration = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v3.projectcalico.org", "labels": {"kept": "yes"}},
            "spec": {"group": "projectcalico.org", "version": "v3", "groupPriorityMinimum": 1500, "versionPriority": 200,
                "insecureSkipTLSVerify": true, "service": {"namespace": "shop", "name": "calico-api", "port": 443}}});
        // Kubernetes has created an APIService for the group's CRDs; replace it.
        let own = self.server.must("GET", API_SERVICE, None);
        registration["metadata"]["resourceVersion"] = own["metadata"]["resourceVersion"].clone();
        self.server.must("PUT", API_SERVICE, Some(&registration));
        eventually("the group is behind somebody else", || self.server.send("GET", SETS, None).is_err());
    }

    fn ask(&self) {
        self.server.create(
            MIGRATIONS,
            &json!({"apiVersion": "migration.projectcalico.org/v1", "kind": "DatastoreMigration",
                "metadata": {"name": "v1-to-v3"}, "spec": {"type": "APIServerToCRDs"}}),
        );
    }

    fn phase(&self) -> String {
        let object = self.server.must("GET", MIGRATION, None);
        object["status"]["phase"].as_str().unwrap_or_default().to_owned()
    }

    /// Runs steps until the phase is reached. A step may fail shortly after the API server for the group has changed.
    async fn until(&self, phase: &str) {
        for _ in 0..600 {
            let outcome = self.mover.step().await;
            if self.phase() == phase {
                return;
            }
            if !matches!(outcome, Ok(false)) {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        panic!("{}: {:?}", self.phase(), self.server.must("GET", MIGRATION, None));
    }

    async fn is_ready(&self, resources: &ResourceClient) -> Option<bool> {
        let information = resources.get(Kind::ClusterInformation, "", "default").await.unwrap();
        information.to_value()["spec"]["datastoreReady"].as_bool()
    }
}

fn object(kind: &str, name: &str, spec: Json) -> Json {
    json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

async fn create(resources: &ResourceClient, object: Json) -> Resource {
    resources.create(Resource::from_user(object).unwrap()).await.unwrap()
}

async fn fill(cluster: &MigrationTestCluster) {
    let old = &cluster.old;
    create(old, object("Tier", "platform", json!({"order": 100}))).await;
    create(old, object("IPPool", "pods", json!({"cidr": "10.65.0.0/16"}))).await;
    create(old, object("FelixConfiguration", "default", json!({"logSeverityScreen": "Warning"}))).await;
    create(old, object("BGPFilter", "some", json!({"exportV4": [{"action": "Accept"}]}))).await;
    create(
        old,
        object("BGPPeer", "rack", json!({"peerIP": "192.0.2.1", "asNumber": 64513, "filters": ["some"]})),
    )
    .await;
    let owner = create(old, object("GlobalNetworkSet", "owner", json!({"nets": ["192.0.2.0/24"]}))).await;
    for number in 0..30 {
        let mut policy = object(
            "NetworkPolicy",
            &format!("p{number}"),
            json!({"tier": "platform", "selector": "all()", "order": number}),
        );
        policy["metadata"]["namespace"] = "shop".into();
        policy["metadata"]["labels"] = json!({"number": number.to_string()});
        policy["metadata"]["ownerReferences"] = json!([{"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet",
            "name": "owner", "uid": owner.metadata().uid}]);
        create(old, policy).await;
    }
    for number in 0..5 {
        let key = StoreKey::Handle { id: format!("h{number}") };
        let handle =
            AddressHandle { block: [("10.65.0.0/26".to_owned(), number)].into(), ..Default::default() };
        old.client().create(&key, &StoreValue::Handle(handle)).await.unwrap();
    }
    create(old, object("GlobalNetworkSet", "shared", json!({"nets": ["198.51.100.0/24"]}))).await;
    create(&cluster.new, object("GlobalNetworkSet", "shared", json!({"nets": ["203.0.113.0/24"]}))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_move_to_the_other_group() {
    let cluster = MigrationTestCluster::start().await;
    fill(&cluster).await;
    cluster.register_api_server();
    let (server, old, new) = (&cluster.server, &cluster.old, &cluster.new);
    // Both groups have a network set of the same name with different content.
    cluster.ask();
    cluster.until(phase::WAITING).await;
    let message = server.must("GET", MIGRATION, None)["status"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("1 objects differ") && message.contains("shared"), "{message}");
    assert_eq!(cluster.is_ready(old).await, Some(false));
    assert!(server.must("GET", API_SERVICE, None)["spec"].get("service").is_none());
    // Aborting restores the previous state.
    server.must("DELETE", MIGRATION, None);
    assert!(cluster.mover.step().await.unwrap());
    assert!(server.send("GET", MIGRATION, None).is_err(), "the migration is gone");
    let restored = server.must("GET", API_SERVICE, None);
    assert_eq!(
        (&restored["spec"]["service"]["name"], &restored["metadata"]["labels"]["kept"]),
        (&json!("calico-api"), &json!("yes"))
    );
    assert_eq!(cluster.is_ready(old).await, Some(true));
    // In the second attempt the conflict is resolved.
    cluster.ask();
    cluster.until(phase::WAITING).await;
    server.must("DELETE", &format!("{SETS}/shared"), None);
    cluster.until(phase::CONVERGED).await;
    assert_eq!((cluster.is_ready(old).await, cluster.is_ready(new).await), (Some(false), Some(true)));
    for kind in [
        Kind::Tier,
        Kind::IPPool,
        Kind::FelixConfiguration,
        Kind::BGPPeer,
        Kind::NetworkPolicy,
        Kind::GlobalNetworkSet,
    ] {
        let specs = async |resources: &ResourceClient| {
            let mut specs: Vec<String> = resources
                .list(kind, None)
                .await
                .unwrap()
                .items
                .iter()
                .map(|item| format!("{} {}", item.metadata().name, item.to_value()["spec"]))
                .collect();
            specs.sort();
            specs
        };
        assert_eq!(specs(old).await, specs(new).await, "{kind}");
    }
    let handles = new.client().list(&KeyRange::Handles).await.unwrap().entries;
    assert_eq!(handles.len(), 5);
    let owner = new.get(Kind::GlobalNetworkSet, "", "owner").await.unwrap().metadata().uid.clone();
    let owned = new.get(Kind::NetworkPolicy, "shop", "p7").await.unwrap();
    assert_eq!(owned.metadata().owner_references[0].uid, owner);
    assert_eq!(owned.metadata().labels["number"], "7");
    nodes_follow(&cluster).await;
}

/// The migration completes when all nodes use the new group; only then its object and the old group can be deleted.
async fn nodes_follow(cluster: &MigrationTestCluster) {
    let server = &cluster.server;
    let mut nodes = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "calico-node", "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "node", "image": "none", "env": [{"name": "CALICO_API_GROUP", "value": "crd.projectcalico.org/v1"}]}]}}}});
    let path = "/apis/apps/v1/namespaces/kube-system/daemonsets";
    server.create(path, &nodes);
    assert!(cluster.mover.step().await.unwrap());
    server.must("DELETE", MIGRATION, None);
    assert!(cluster.mover.step().await.unwrap());
    let refused = server.must("GET", MIGRATION, None);
    assert_eq!(refused["status"]["phase"], phase::CONVERGED);
    assert!(refused["status"]["message"].as_str().unwrap().contains("wait until"), "{refused}");
    nodes["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = V3_GROUP_VERSION.into();
    let written = server.must("PUT", &format!("{path}/calico-node"), Some(&nodes));
    assert!(cluster.mover.step().await.unwrap(), "nobody has rolled it out");
    let mut rolled = written.clone();
    rolled["status"] = json!({"observedGeneration": written["metadata"]["generation"], "desiredNumberScheduled": 1,
        "currentNumberScheduled": 1, "numberMisscheduled": 0, "updatedNumberScheduled": 1, "numberReady": 1});
    server.must("PUT", &format!("{path}/calico-node/status"), Some(&rolled));
    assert!(!cluster.mover.step().await.unwrap());
    assert_eq!(cluster.phase(), phase::COMPLETE);
    // A foreign kind in the same group, whose objects were not moved.
    let mut foreign = schema::storage_crds()[0].clone();
    foreign["metadata"]["name"] = "others.crd.projectcalico.org".into();
    foreign["spec"]["names"] =
        json!({"kind": "Other", "listKind": "OtherList", "plural": "others", "singular": "other"});
    server.create(DEFINITIONS, &foreign);
    assert!(cluster.mover.step().await.unwrap());
    assert!(server.send("GET", MIGRATION, None).is_err(), "the migration is gone");
    let first = schema::storage_crds()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    eventually("the older group is gone", || {
        server.send("GET", &format!("{DEFINITIONS}/{first}"), None).is_err()
    });
    server.must("GET", &format!("{DEFINITIONS}/others.crd.projectcalico.org"), None);
    assert_eq!(cluster.new.list(Kind::NetworkPolicy, None).await.unwrap().items.len(), 30);
}
