//! Test fixture: a kube-apiserver with authorization enabled, `tortie apiserver` behind it, and the clients kubectl
//! and calicoctl.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;
use tortie_store::{ResourceClient, StoreClient, StoreConfig};
use tortie_testkit::{ApiServer, CalicoGroup, Etcd, TestProcess, eventually_showing, free_port, output};

pub const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
const APISERVER_NAMESPACE: &str = "calico-apiserver";
const SERVICE_SPEC: &str = "  selector: {k8s-app: calico-apiserver}\n  ports: [{name: apiserver, port: 443, targetPort: 5443, protocol: TCP}]\n";

/// The datastore that holds the objects.
pub enum DatastoreKind {
    Kubernetes,
    Etcd(Etcd),
}

pub struct ApiserverFixture {
    // Fields are dropped in this order.
    pub ours: TestProcess,
    pub server: ApiServer,
    storage: DatastoreKind,
    dir: TempDir,
    pub port: u16,
}

impl ApiserverFixture {
    pub fn new(storage: DatastoreKind) -> ApiserverFixture {
        let server = ApiServer::start_with_rules();
        server.install(CalicoGroup::V1);
        server.add_namespace("shop", json!({}));
        let dir = tempfile::tempdir().unwrap();
        symlink(TORTIE, dir.path().join("calicoctl")).unwrap();
        let port = free_port().unwrap();
        // The published manifest with its service pointing at this process: no kubelet starts the pods.
        let manifest = include_str!("../../../../deploy/apiserver/apiserver.yaml");
        let text = replaced(
            manifest,
            SERVICE_SPEC,
            &format!("  type: ExternalName\n  externalName: localhost\n  ports: [{{port: {port}}}]\n"),
        );
        let text =
            replaced(&text, "name: calico-api, port: 443}", &format!("name: calico-api, port: {port}}}"));
        let output = output(kubectl(&server, dir.path()).args(["apply", "-f", "-"]), &text);
        assert!(output.status.success(), "{output:?}");
        let ours = start(&server, &storage, port);
        let world = ApiserverFixture { ours, server, storage, dir, port };
        world.initialise();
        world.wait_until_served();
        world
    }

    fn initialise(&self) {
        let mut config = StoreConfig {
            datastore_type: "kubernetes".into(),
            kubeconfig: self.server.kubeconfig().display().to_string(),
            calico_api_group: CalicoGroup::V1.api_version().into(),
            ..StoreConfig::default()
        };
        if let DatastoreKind::Etcd(etcd) = &self.storage {
            config = StoreConfig::at(etcd.endpoint());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let resources = ResourceClient::new(StoreClient::connect(&config).await.unwrap());
            resources.ensure_initialized("v3.32.0", "k8s").await.unwrap();
        });
    }

    fn wait_until_served(&self) {
        let words = ["get", "apiservice", "v3.projectcalico.org", "-o", "jsonpath={.status.conditions[*]}"];
        let said = || String::from_utf8_lossy(&self.kubectl(&words, "").stdout).into_owned();
        eventually_showing(
            "the API service is available",
            || {
                said().contains("\"status\":\"True\"")
                    && self.kubectl(&["get", "tiers.v3.projectcalico.org"], "").status.success()
            },
            said,
        );
    }

    pub fn keeps_in_etcd(&self) -> bool {
        matches!(self.storage, DatastoreKind::Etcd(_))
    }

    pub fn kubectl(&self, words: &[&str], input: &str) -> Output {
        output(kubectl(&self.server, self.dir.path()).args(words), input)
    }

    pub fn calicoctl(&self, words: &[&str], input: &str) -> Output {
        let mut command = Command::new(self.dir.path().join("calicoctl"));
        command.args(words);
        match &self.storage {
            DatastoreKind::Kubernetes => command.envs(self.server.environment(CalicoGroup::V1)),
            DatastoreKind::Etcd(etcd) => {
                command.env("DATASTORE_TYPE", "etcdv3").env("ETCD_ENDPOINTS", etcd.endpoint())
            }
        };
        output(&mut command, input)
    }

    /// Returns all stored objects of a kind by path or key, read directly from the datastore.
    pub fn stored(&self, plural: &str) -> BTreeMap<String, Value> {
        match &self.storage {
            DatastoreKind::Kubernetes => {
                // The only kind whose resource has another name there.
                let plural = if plural == "ipamconfigurations" { "ipamconfigs" } else { plural };
                let list = self.server.must("GET", &format!("/apis/crd.projectcalico.org/v1/{plural}"), None);
                let text = |item: &Value, field: &str| {
                    item["metadata"][field].as_str().unwrap_or_default().to_owned()
                };
                let items = list["items"].as_array().unwrap().iter();
                items
                    .map(|item| (format!("{}/{}", text(item, "namespace"), text(item, "name")), item.clone()))
                    .collect()
            }
            DatastoreKind::Etcd(etcd) => {
                let prefix = format!("/calico/resources/v3/projectcalico.org/{plural}/");
                let lines = etcd.ctl(&["get", "--prefix", &prefix]).unwrap();
                let lines: Vec<&str> = lines.lines().filter(|line| !line.is_empty()).collect();
                let pairs = lines.chunks(2);
                pairs.map(|pair| (pair[0].to_owned(), serde_json::from_str(pair[1]).unwrap())).collect()
            }
        }
    }
}

/// Starts `tortie apiserver` with the service account of its pods and the environment of the manifest.
fn start(server: &ApiServer, storage: &DatastoreKind, port: u16) -> TestProcess {
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let path =
        format!("/api/v1/namespaces/{APISERVER_NAMESPACE}/serviceaccounts/{APISERVER_NAMESPACE}/token");
    let token = server.create(&path, &request)["status"]["token"].clone();
    let kubeconfig = server.write_kubeconfig("kubeconfig-ours", json!({ "token": token }));
    let log = std::fs::File::create(server.path("ours.log")).unwrap();
    let mut command = Command::new(TORTIE);
    command
        .args(["apiserver", "--bind-address", "127.0.0.1", "--secure-port", &port.to_string()])
        .env("KUBECONFIG", kubeconfig)
        .env("CALICO_API_GROUP", CalicoGroup::V1.api_version())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    match storage {
        DatastoreKind::Kubernetes => command.env("DATASTORE_TYPE", "kubernetes"),
        DatastoreKind::Etcd(etcd) => {
            command.env("DATASTORE_TYPE", "etcdv3").env("ETCD_ENDPOINTS", etcd.endpoint())
        }
    };
    TestProcess::start(&mut command)
}

fn kubectl(server: &ApiServer, home: &Path) -> Command {
    let mut command = server.program("kubectl");
    command.arg("--kubeconfig").arg(server.kubeconfig()).arg("--cache-dir").arg(home.join("cache"));
    // Ignore the kubeconfig of the user who runs the test.
    command.env_remove("KUBECONFIG").env("HOME", home);
    command
}

fn replaced(text: &str, before: &str, after: &str) -> String {
    assert_eq!(text.matches(before).count(), 1, "{before:?}");
    text.replace(before, after)
}
