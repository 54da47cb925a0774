//! Runs a real kube-apiserver with its own store for one test. There is no kubelet: pods are objects only.

mod calls;

pub use calls::{ApiClient, ApiRequest, ApiResponse};

use crate::{
    CONDITION_TIMEOUT, TestProcess, eventually, eventually_showing, free_port, namespace_command, process,
    run,
};
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use tortie_model::kubernetes::ClusterPolicyKind;
use tortie_model::schema;

const TOKEN: &str = "secret";
/// Token of the node user, whose requests are recorded in the audit log.
const NODE_TOKEN: &str = "secret-node";
/// Users without cluster-admin rights: with RBAC enabled they may do only what roles grant them.
pub const UNPRIVILEGED_USERS: [&str; 3] = ["jane", "joe", "jim"];
/// Common name of the client certificate that kube-apiserver uses for requests to extension API servers and webhooks.
pub const FRONT_PROXY_USER: &str = "front-proxy";

/// An API group that can hold Calico's objects in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalicoGroup {
    /// crd.projectcalico.org/v1
    V1,
    /// projectcalico.org/v3
    V3,
}

impl CalicoGroup {
    pub const BOTH: [CalicoGroup; 2] = [CalicoGroup::V1, CalicoGroup::V3];

    pub fn api_version(self) -> &'static str {
        match self {
            CalicoGroup::V1 => "crd.projectcalico.org/v1",
            CalicoGroup::V3 => "projectcalico.org/v3",
        }
    }
}

/// The store behind an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiServerBackend {
    /// The etcd package of the distribution.
    Etcd,
    /// The etcd version that this Kubernetes release is built against.
    EtcdOfKubernetes,
    /// `tortie datastore`, run from this binary.
    Embedded(PathBuf),
}

/// Store backend and maintenance settings of an API server.
#[derive(Clone, Debug)]
pub struct ApiServerOptions {
    pub backing: ApiServerBackend,
    /// Interval between compactions of the store; zero disables them.
    pub compaction: Duration,
    /// Interval between consistency checks of the watch cache against the store, if not the default.
    pub consistency_checks: Option<Duration>,
}

impl Default for ApiServerOptions {
    fn default() -> ApiServerOptions {
        ApiServerOptions {
            backing: ApiServerBackend::Etcd,
            compaction: Duration::ZERO,
            consistency_checks: None,
        }
    }
}

/// A running kube-apiserver. Dropping it stops its processes and removes its data.
#[derive(Debug)]
pub struct ApiServer {
    // In drop order: clients are stopped before the servers they use.
    controllers: Option<TestProcess>,
    server: Option<TestProcess>,
    store: Option<TestProcess>,
    upkeep: ApiServerOptions,
    dir: TempDir,
    /// Network namespace that the processes run in; `None` for the test's own.
    namespace: Option<String>,
    /// Whether RBAC is enabled. Otherwise every request is authorized.
    rules: bool,
    address: String,
    port: u16,
    etcd_ports: [u16; 2],
}

impl ApiServer {
    /// Starts a server on the loopback interface of the test.
    pub fn start() -> ApiServer {
        ApiServer::start_with(ApiServerOptions::default())
    }

    pub fn start_with(upkeep: ApiServerOptions) -> ApiServer {
        let ports = [free_port(), free_port(), free_port()].map(Result::unwrap);
        ApiServer::with(None, "127.0.0.1", ports, upkeep, false)
    }

    /// Starts a server with RBAC enabled.
    pub fn start_with_rules() -> ApiServer {
        let ports = [free_port(), free_port(), free_port()].map(Result::unwrap);
        ApiServer::with(None, "127.0.0.1", ports, ApiServerOptions::default(), true)
    }

    /// Starts a server in a network namespace, listening on `address`, which must exist there.
    pub fn start_in(namespace: &str, address: &str) -> ApiServer {
        let ports = [6443, 2379, 2380];
        ApiServer::with(Some(namespace.to_owned()), address, ports, ApiServerOptions::default(), false)
    }

    /// Starts a server with RBAC enabled in a network namespace.
    pub fn start_with_rules_in(namespace: &str, address: &str) -> ApiServer {
        let ports = [6443, 2379, 2380];
        ApiServer::with(Some(namespace.to_owned()), address, ports, ApiServerOptions::default(), true)
    }

    fn with(
        namespace: Option<String>,
        address: &str,
        [port, clients, peers]: [u16; 3],
        upkeep: ApiServerOptions,
        rules: bool,
    ) -> ApiServer {
        let dir = tempfile::Builder::new().prefix("tortie-kube-").tempdir().unwrap();
        let mut server = ApiServer {
            controllers: None,
            server: None,
            store: None,
            upkeep,
            dir,
            namespace,
            rules,
            address: address.to_owned(),
            port,
            etcd_ports: [clients, peers],
        };
        server.write_files();
        server.resume();
        server
    }

    fn write_files(&self) {
        let key = rcgen::KeyPair::generate().unwrap();
        self.write("sa.key", &key.serialize_pem());
        self.write("sa.pub", &key.public_key_pem());
        let tokens = [(TOKEN, "admin"), (NODE_TOKEN, "node")];
        let line = |(token, user): (&str, &str)| format!("{token},{user},{user},system:masters\n");
        let people = UNPRIVILEGED_USERS.map(|name| format!("secret-{name},{name},{name}\n"));
        self.write("tokens", &(tokens.map(line).concat() + &people.concat()));
        for name in UNPRIVILEGED_USERS {
            self.write_kubeconfig(&format!("kubeconfig-{name}"), json!({"token": format!("secret-{name}")}));
        }
        self.write_proxy();
        self.write_kubeconfig("kubeconfig", json!({"token": TOKEN}));
        self.write_kubeconfig("kubeconfig-node", json!({"token": NODE_TOKEN}));
        let calico = json!([{"group": "projectcalico.org"}, {"group": "crd.projectcalico.org"}]);
        let writes = json!(["create", "update", "patch", "delete"]);
        let rules = json!([
            {"level": "Metadata", "users": ["node"]},
            {"level": "Metadata", "users": ["admin"], "verbs": writes, "resources": calico},
            {"level": "None"},
        ]);
        let audit = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules,
            "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"]});
        self.write("audit.yaml", &audit.to_string());
    }

    /// Writes a CA and the front-proxy client certificate that kube-apiserver presents to extension API servers and
    /// webhooks.
    fn write_proxy(&self) {
        let mut authority = rcgen::CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        authority.distinguished_name.push(rcgen::DnType::CommonName, "front-proxy-ca");
        let authority =
            rcgen::CertifiedIssuer::self_signed(authority, rcgen::KeyPair::generate().unwrap()).unwrap();
        self.write("proxy-ca.pem", &authority.pem());
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, FRONT_PROXY_USER);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate().unwrap();
        self.write("proxy.pem", &params.signed_by(&key, &authority).unwrap().pem());
        self.write("proxy.key", &key.serialize_pem());
        let files =
            json!({"client-certificate": self.path("proxy.pem"), "client-key": self.path("proxy.key")});
        let users = json!({"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": files}]});
        let users = self.write("kubeconfig-webhooks", &users.to_string());
        let webhooks = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": users});
        let admission = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
            "plugins": [{"name": "ValidatingAdmissionWebhook", "configuration": webhooks}]});
        self.write("admission.yaml", &admission.to_string());
    }

    /// Returns the path of the kubeconfig of one of [`UNPRIVILEGED_USERS`].
    pub fn kubeconfig_of(&self, name: &str) -> PathBuf {
        self.path(&format!("kubeconfig-{name}"))
    }

    /// Builds the command of a Kubernetes program of the same version as the server.
    pub fn program(&self, name: &str) -> Command {
        self.command(program(name))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a kubeconfig with these user credentials and returns its path.
    pub fn write_kubeconfig(&self, name: &str, user: Json) -> PathBuf {
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url(), "insecure-skip-tls-verify": true}}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        self.write(name, &text.to_string())
    }

    /// Returns the kubeconfig path of the admin user.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    /// Returns the kubeconfig path of the node user, whose requests are audited.
    pub fn node_kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig-node")
    }

    /// Returns verb and path of every request made with the node's kubeconfig.
    pub fn requests_of_node(&self) -> Vec<(String, String)> {
        let text = |event: &Json, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        let events = self.audited("node").into_iter();
        events.map(|event| (text(&event, "verb"), text(&event, "requestURI"))).collect()
    }

    /// Returns the audit events of a user: all requests of the node user, and writes of Calico's objects by the
    /// administrator.
    pub fn audited(&self, user: &str) -> Vec<Json> {
        let log = std::fs::read_to_string(self.path("audit.log")).unwrap_or_default();
        let events = log.lines().filter_map(|line| serde_json::from_str::<Json>(line).ok());
        events.filter(|event| event["user"]["username"] == user).collect()
    }

    pub fn url(&self) -> String {
        format!("https://{}:{}", self.address, self.port)
    }

    /// Returns the environment variables that make Tortie's programs use this server as their datastore.
    pub fn environment(&self, group: CalicoGroup) -> Vec<(&'static str, String)> {
        vec![
            ("DATASTORE_TYPE", "kubernetes".to_owned()),
            ("KUBECONFIG", self.kubeconfig().display().to_string()),
            ("CALICO_API_GROUP", group.api_version().to_owned()),
        ]
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        namespace_command(self.namespace.as_deref(), program)
    }

    fn log(&self, name: &str) -> std::fs::File {
        std::fs::File::options().create(true).append(true).open(self.path(name)).unwrap()
    }

    fn start_store(&self) -> TestProcess {
        let [clients, peers] = self.etcd_ports.map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = match &self.upkeep.backing {
            ApiServerBackend::Embedded(tortie) => {
                let mut command = self.command(tortie);
                command.arg("datastore").arg("--data-dir").arg(self.store_data());
                command.args(["--listen", &clients, "--keep-history", "0"]);
                command
            }
            etcd => {
                let program = match etcd {
                    ApiServerBackend::EtcdOfKubernetes => program("etcd"),
                    _ => PathBuf::from("etcd"),
                };
                let mut command = self.command(program);
                command.args(["--name", "test", "--data-dir"]).arg(self.store_data());
                command
                    .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
                    .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
                    .args(["--initial-cluster", &format!("test={peers}")]);
                if *etcd == ApiServerBackend::EtcdOfKubernetes {
                    // The same value as in kubeadm clusters.
                    command.arg("--watch-progress-notify-interval=5s");
                }
                command
            }
        };
        TestProcess::start(command.stdout(self.log("store.log")).stderr(self.log("store.log")))
    }

    /// Starts the processes that are not running, with the existing data, and waits until the server is ready.
    pub fn resume(&mut self) {
        if self.store.is_none() {
            self.store = Some(self.start_store());
        }
        if self.server.is_none() {
            let store = format!("http://127.0.0.1:{}", self.etcd_ports[0]);
            let path = |name: &str| self.path(name).display().to_string();
            let mut command = self.command(program("kube-apiserver"));
            command
                .arg(format!("--etcd-servers={store}"))
                .arg(format!("--etcd-compaction-interval={}s", self.upkeep.compaction.as_secs()))
                .arg(format!("--secure-port={}", self.port))
                .arg(format!("--bind-address={}", self.address))
                .arg(format!("--cert-dir={}", path("certs")))
                .arg(format!("--token-auth-file={}", path("tokens")))
                .arg(format!("--service-account-key-file={}", path("sa.pub")))
                .arg(format!("--service-account-signing-key-file={}", path("sa.key")))
                .arg(format!("--admission-control-config-file={}", path("admission.yaml")))
                .arg(format!("--audit-policy-file={}", path("audit.yaml")))
                .arg(format!("--audit-log-path={}", path("audit.log")))
                .arg(format!("--requestheader-client-ca-file={}", path("proxy-ca.pem")))
                .arg(format!("--requestheader-allowed-names={FRONT_PROXY_USER}"))
                .arg(format!("--proxy-client-cert-file={}", path("proxy.pem")))
                .arg(format!("--proxy-client-key-file={}", path("proxy.key")))
                .arg(format!("--authorization-mode={}", if self.rules { "RBAC" } else { "AlwaysAllow" }))
                .args([
                    "--service-account-issuer=https://kubernetes.default.svc",
                    "--service-cluster-ip-range=10.96.0.0/16",
                    "--requestheader-username-headers=X-Remote-User",
                    "--requestheader-group-headers=X-Remote-Group",
                    "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                    "--disable-admission-plugins=ServiceAccount",
                    // Serves list continuations from etcd, so that a test can expire them by compacting.
                    "--feature-gates=ListFromCacheSnapshot=false,MutatingAdmissionPolicy=true",
                    // Disabled by default in this version.
                    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
                    "--endpoint-reconciler-type=none",
                ])
                .stdout(self.log("server.log"))
                .stderr(self.log("server.log"));
            if let Some(period) = self.upkeep.consistency_checks {
                command.env("KUBE_CONSISTENCY_CHECK_PERIOD", format!("{}ms", period.as_millis()));
            }
            if !self.address.starts_with("127.") {
                command.arg(format!("--advertise-address={}", self.address));
            }
            self.server = Some(TestProcess::start(&mut command));
        }
        let ready = || self.send("GET", "/readyz", None).is_ok();
        eventually_showing("the API server is ready", ready, || self.server_log());
    }

    /// Kills the API server with SIGKILL. Its data is kept.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// Kills the store with SIGKILL. [`ApiServer::resume`] starts it again.
    pub fn stop_store(&mut self) {
        self.store = None;
    }

    /// Starts kube-controller-manager with the named controllers.
    pub fn start_controllers(&mut self, names: &str) {
        let mut command = self.command(program("kube-controller-manager"));
        command
            .arg(format!("--kubeconfig={}", self.kubeconfig().display()))
            .arg(format!("--service-account-private-key-file={}", self.path("sa.key").display()))
            .arg(format!("--controllers={names}"))
            .args(["--secure-port=0", "--leader-elect=false", "--use-service-account-credentials=false"])
            .stdout(self.log("controllers.log"))
            .stderr(self.log("controllers.log"));
        self.controllers = Some(TestProcess::start(&mut command));
    }

    /// Returns the process id of the store, for resource measurements.
    pub fn store_id(&self) -> u32 {
        self.store.as_ref().map(TestProcess::id).unwrap_or_default()
    }

    /// Returns the data directory of the store.
    pub fn store_data(&self) -> PathBuf {
        self.path("store")
    }

    /// Returns the log of the API server, across restarts.
    pub fn server_log(&self) -> String {
        std::fs::read_to_string(self.path("server.log")).unwrap_or_default()
    }

    /// Compacts the store at its current revision.
    pub fn forget_the_past(&self) {
        let endpoint = format!("http://127.0.0.1:{}", self.etcd_ports[0]);
        let ctl = |words: &[&str]| {
            run(self.command("etcdctl").args(["--endpoints", &endpoint]).args(words).env("ETCDCTL_API", "3"))
        };
        let status: Json =
            serde_json::from_str(&ctl(&["endpoint", "status", "-w", "json"])).unwrap_or_default();
        let revision = status.pointer("/0/Status/header/revision").and_then(Json::as_u64).unwrap_or_default();
        ctl(&["compact", &revision.to_string()]);
    }

    /// Sends a request with curl as the admin user and returns the response body, or a description of the failure.
    pub fn send(&self, method: &str, path: &str, body: Option<&Json>) -> Result<Json, String> {
        self.send_as(TOKEN, method, path, "application/json", body)
    }

    pub fn send_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        form: &str,
        body: Option<&Json>,
    ) -> Result<Json, String> {
        let mut command = self.command("curl");
        command.args([
            "-sk",
            "--max-time",
            &CONDITION_TIMEOUT.as_secs().to_string(),
            "-X",
            method,
            "-w",
            "\n%{http_code}",
        ]);
        command.args([
            "-H",
            &format!("Authorization: Bearer {token}"),
            "-H",
            &format!("Content-Type: {form}"),
        ]);
        if body.is_some() {
            command.args(["--data-binary", "@-"]);
        }
        command.arg(format!("{}{path}", self.url()));
        let output = process::output(&mut command, &body.map(Json::to_string).unwrap_or_default());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (text, code) = text.rsplit_once('\n').unwrap_or((&text, ""));
        match code.parse::<u16>() {
            Ok(200..300) => Ok(serde_json::from_str(text).unwrap_or_else(|_| Json::String(text.to_owned()))),
            _ => Err(format!("{method} {path}: {code} {text} {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Sends a request and returns the response. Panics if the server rejects it.
    pub fn must(&self, method: &str, path: &str, body: Option<&Json>) -> Json {
        self.send(method, path, body).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// Creates an object in the collection at `path`.
    pub fn create(&self, path: &str, object: &Json) -> Json {
        self.must("POST", path, Some(object))
    }

    /// Creates many objects, each given with the path of its collection, over up to 16 connections.
    pub fn create_all(&self, objects: &[(String, Json)]) {
        for batch in objects.chunks(1000) {
            let calls: Vec<ApiRequest> =
                batch.iter().map(|(path, object)| ApiRequest::create(path, object)).collect();
            let answers = self.call_all(&calls, 16);
            let refused = calls.iter().zip(&answers).find(|(_, answer)| !answer.is_success());
            assert!(refused.is_none(), "{refused:?}");
        }
    }

    pub fn merge(&self, path: &str, patch: &Json) -> Json {
        let form = "application/merge-patch+json";
        let merged = self.send_as(TOKEN, "PATCH", path, form, Some(patch));
        merged.unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// Installs the CRDs of an API group and waits until all of them are served.
    pub fn install(&self, group: CalicoGroup) {
        let crds: Vec<Json> = match group {
            CalicoGroup::V3 => schema::crds(),
            CalicoGroup::V1 => schema::storage_crds(),
        };
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        crds.iter().for_each(|crd| drop(self.create(path, crd)));
        for crd in &crds {
            let text = |pointer: &str| crd.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
            let path = format!("/apis/{}/{}", group.api_version(), text("/spec/names/plural"));
            eventually(&path, || self.send("GET", &format!("{path}?limit=1"), None).is_ok());
        }
        // Clients choose the group by discovery, which may lag behind.
        let path = format!("/apis/{}", group.api_version());
        let is_discovered = |list: &Json| {
            let mut resources = list["resources"].as_array().into_iter().flatten();
            resources.any(|resource| resource["name"] == "clusterinformations")
        };
        eventually(&path, || self.send("GET", &path, None).is_ok_and(|list| is_discovered(&list)));
    }

    /// Installs a CRD for a kind of cluster policies whose schema accepts any object.
    pub fn install_cluster_policies(&self, kind: ClusterPolicyKind) {
        let path = kind.api_path();
        let [group, version, plural] = split_path(path);
        let name = kind.name();
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("{plural}.{group}"),
                // kube-apiserver requires this annotation for CRDs in *.k8s.io groups, to which this community-owned
                // group belongs.
                "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/network-policy-api"},
            },
            "spec": {
                "group": group, "scope": "Cluster",
                "names": {"kind": name, "plural": plural, "singular": name.to_lowercase(),
                    "listKind": format!("{name}List")},
                "versions": [{"name": version, "served": true, "storage": true, "schema":
                    {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
            },
        });
        self.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd);
        eventually(path, || self.send("GET", path, None).is_ok());
    }

    /// Creates a policy of a kind whose CRD is installed.
    pub fn create_cluster_policy(&self, kind: ClusterPolicyKind, name: &str, spec: &Json) {
        let [group, version, _] = split_path(kind.api_path());
        let object = json!({"apiVersion": format!("{group}/{version}"), "kind": kind.name(),
            "metadata": {"name": name}, "spec": spec});
        self.create(kind.api_path(), &object);
    }

    pub fn add_namespace(&self, name: &str, labels: Json) {
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        self.create("/api/v1/namespaces", &object);
    }

    /// Deletes a namespace immediately by clearing its finalizers, without waiting for its pods.
    pub fn remove_namespace(&self, name: &str) {
        let path = format!("/api/v1/namespaces/{name}");
        self.must("DELETE", &path, None);
        let mut object = self.must("GET", &path, None);
        object["spec"]["finalizers"] = json!([]);
        self.must("PUT", &format!("{path}/finalize"), Some(&object));
        eventually("the namespace is gone", || self.send("GET", &path, None).is_err());
    }

    /// Creates a Node as kubelet does when it registers.
    pub fn add_node(&self, name: &str) {
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        self.create("/api/v1/nodes", &object);
    }

    /// Creates a pod scheduled to `node`. `ports` are the ports of its container.
    pub fn add_pod(&self, namespace: &str, name: &str, node: &str, labels: Json, ports: Json) -> Json {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"nodeName": node, "serviceAccountName": "default", "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "none", "ports": ports}]},
        });
        self.create(&format!("/api/v1/namespaces/{namespace}/pods"), &object)
    }

    /// Sets the status that kubelet reports for a running pod.
    pub fn set_pod_addresses(&self, namespace: &str, name: &str, addresses: &[String]) {
        let listed: Vec<Json> = addresses.iter().map(|address| json!({ "ip": address })).collect();
        let status = json!({"phase": "Running", "podIP": addresses.first(), "podIPs": listed});
        self.merge(
            &format!("/api/v1/namespaces/{namespace}/pods/{name}/status"),
            &json!({ "status": status }),
        );
    }

    /// Deletes a pod with grace period zero, as kubelet does after all containers have terminated.
    pub fn remove_pod(&self, namespace: &str, name: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0");
        self.must("DELETE", &path, None);
    }
}

/// Returns the path of a Kubernetes program built by `make kube`. Panics if it is missing.
fn program(name: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kube/build");
    let program = PathBuf::from(run(Command::new(script).arg("dir")).trim()).join(name);
    assert!(program.is_file(), "{} is missing: run `make kube` first", program.display());
    program
}

/// Returns group, version and plural of the path of a collection.
fn split_path(path: &str) -> [&str; 3] {
    let mut parts = path.trim_start_matches("/apis/").split('/');
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}
