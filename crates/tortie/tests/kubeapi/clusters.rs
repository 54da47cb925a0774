//! Two Kubernetes clusters that are configured with one datastore: the controllers of the second do nothing until
//! `--take-over` names the first.

use crate::controllers::ControllersFixture;
use serde_json::{Value, json};
use tortie_model::{Kind, StoreKey};
use tortie_store::{StoreClient, StoreConfig};
use tortie_testkit::{CalicoGroup, DatastoreProcess};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");

/// Starts a cluster with a namespace and a replica of the controllers on the datastore.
fn start_cluster(store: &DatastoreProcess, namespace: &str) -> ControllersFixture {
    let mut cluster = ControllersFixture::empty(CalicoGroup::V3);
    cluster.environment = vec![
        ("ETCD_ENDPOINTS", store.url().to_owned()),
        ("KUBECONFIG", cluster.server.kubeconfig().display().to_string()),
        ("DATASTORE_TYPE", "etcdv3".to_owned()),
    ];
    cluster.server.add_namespace(namespace, json!({}));
    cluster.start("replica");
    cluster
}

fn cluster_uid(cluster: &ControllersFixture) -> String {
    let namespace = cluster.server.must("GET", "/api/v1/namespaces/kube-system", None);
    namespace["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// Returns why the replica does not use the datastore; empty if it does.
fn refusal(cluster: &ControllersFixture) -> String {
    let file = std::fs::read(cluster.dir.path().join("replica")).unwrap_or_default();
    let status: Value = serde_json::from_slice(&file).unwrap_or_default();
    status["Readiness"]["ClusterClaim"]["Reason"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_second_cluster_deletes_nothing_in_the_datastore() {
    let dir = tempfile::tempdir().unwrap();
    let store = DatastoreProcess::start(TORTIE, dir.path(), &["http://127.0.0.1:0"], &[]);
    let first = start_cluster(&store, "blue");
    let etcd = first.runtime.block_on(StoreClient::connect(&StoreConfig::at(store.url()))).unwrap();
    let exists = |cluster: &ControllersFixture, name: &str| {
        let key = StoreKey::resource(Kind::Profile, "", name);
        cluster.runtime.block_on(etcd.get(&key)).is_ok()
    };
    first.wait("the first cluster is mirrored", || exists(&first, "kns.blue"));

    let mut second = start_cluster(&store, "green");
    let first_uid = cluster_uid(&first);
    second.wait("the second cluster is refused", || refusal(&second).contains(&first_uid));
    assert!(refusal(&second).contains(&cluster_uid(&second)), "{}", refusal(&second));
    // A change of the first cluster takes the way through the datastore while the second runs.
    first.server.add_namespace("late", json!({}));
    first.wait("the first cluster is mirrored further", || exists(&first, "kns.late"));
    assert!(exists(&first, "kns.blue") && !exists(&first, "kns.green"), "{}", second.log());
    assert_eq!(second.leader(), "", "{}", second.log());
    assert_eq!(refusal(&first), "");

    // Another UID than that of the recorded cluster has no effect.
    second.replicas.clear();
    second.environment.push(("TORTIE_TAKE_OVER", cluster_uid(&second)));
    second.start("replica");
    second.wait("the second cluster is refused again", || refusal(&second).contains(&first_uid));
    assert_eq!(second.leader(), "", "{}", second.log());

    second.replicas.clear();
    second.environment.push(("TORTIE_TAKE_OVER", first_uid));
    second.start("replica");
    second.wait("the second cluster has taken over", || {
        exists(&second, "kns.green") && !exists(&second, "kns.blue")
    });
    let second_uid = cluster_uid(&second);
    first.wait("the first cluster has stopped", || refusal(&first).contains(&second_uid));
}
