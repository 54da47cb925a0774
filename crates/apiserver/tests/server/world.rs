//! Test environment: kube-apiserver, the store, and replicas of our API server registered with kube-apiserver.

use serde_json::{Value, json};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Output;
use std::sync::mpsc;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tortie_apiserver::{ApiServerArgs, ApiServerRunError, ListenArgs};
use tortie_store::{ResourceClient, StoreClient, StoreConfig};
use tortie_testkit::samples::documents;
use tortie_testkit::{ApiServer, CalicoGroup, Etcd, eventually_showing, free_port, output};

/// Storage of the objects.
pub enum TestStorage {
    Kubernetes,
    Etcd(Etcd),
}

pub struct ApiServerWorld {
    // Fields are dropped in this order.
    replica: Option<ServerReplica>,
    cluster: TestCluster,
    storage: TestStorage,
    port: u16,
}

/// kube-apiserver and kubectl.
pub struct TestCluster {
    pub server: ApiServer,
    cache: tempfile::TempDir,
}

impl Deref for ApiServerWorld {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.cluster
    }
}

impl DerefMut for ApiServerWorld {
    fn deref_mut(&mut self) -> &mut TestCluster {
        &mut self.cluster
    }
}

/// A replica of our server in its own runtime.
pub struct ServerReplica {
    runtime: Option<Runtime>,
    stop: Option<oneshot::Sender<()>>,
    ended: mpsc::Receiver<()>,
}

impl ServerReplica {
    /// Starts a server. `serve` receives a future that completes when the server is to stop.
    pub fn start<F: Future<Output = Result<(), ApiServerRunError>> + Send + 'static>(
        serve: impl FnOnce(Pin<Box<dyn Future<Output = ()> + Send>>) -> F,
    ) -> ServerReplica {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (end, ended) = mpsc::channel();
        let serving = serve(Box::pin(async { drop(stopped.await) }));
        runtime.spawn(async move {
            serving.await.unwrap();
            let _ = end.send(());
        });
        ServerReplica { runtime: Some(runtime), stop: Some(stop), ended }
    }

    /// Stops the replica as SIGTERM does.
    pub fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.ended.recv_timeout(tortie_testkit::CONDITION_TIMEOUT).unwrap();
    }
}

impl ApiServerWorld {
    pub fn new(storage: TestStorage) -> ApiServerWorld {
        ApiServerWorld::with(ApiServer::start(), storage)
    }

    /// Starts an environment with RBAC enabled.
    pub fn with_rules() -> ApiServerWorld {
        ApiServerWorld::with(ApiServer::start_with_rules(), TestStorage::Kubernetes)
    }

    fn with(server: ApiServer, storage: TestStorage) -> ApiServerWorld {
        server.install(CalicoGroup::V1);
        for namespace in ["shop", "calico-apiserver"] {
            server.add_namespace(namespace, json!({}));
        }
        let mut world = ApiServerWorld {
            replica: None,
            cluster: TestCluster::new(server),
            storage,
            port: free_port().unwrap(),
        };
        world.block_on(async |resources| resources.ensure_initialized("v3.32.0", "k8s").await.unwrap());
        world.start();
        world.register();
        world
    }

    fn config(&self) -> StoreConfig {
        let kubernetes = StoreConfig {
            datastore_type: "kubernetes".into(),
            kubeconfig: self.server.kubeconfig().display().to_string(),
            calico_api_group: CalicoGroup::V1.api_version().into(),
            ..StoreConfig::default()
        };
        match &self.storage {
            TestStorage::Kubernetes => kubernetes,
            TestStorage::Etcd(etcd) => {
                StoreConfig { datastore_type: "etcdv3".into(), etcd_endpoints: etcd.endpoint(), ..kubernetes }
            }
        }
    }

    /// Runs operations of another client of the same store, such as calicoctl.
    pub fn block_on<T>(&self, work: impl AsyncFnOnce(ResourceClient) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let config = self.config();
        runtime
            .block_on(async { work(ResourceClient::new(StoreClient::connect(&config).await.unwrap())).await })
    }

    pub fn start(&mut self) {
        let args = ApiServerArgs {
            secure_port: self.port,
            listen: ListenArgs { bind_address: Some([127, 0, 0, 1].into()), ..ListenArgs::default() },
            config: PathBuf::new(),
        };
        let config = self.config();
        self.replica = Some(ServerReplica::start(|end| tortie_apiserver::serve(config, args, end)));
    }

    pub fn stop(&mut self) {
        self.replica.take().unwrap().stop();
    }

    /// Kills the replica without a graceful shutdown.
    pub fn kill(&mut self) {
        self.replica = None;
    }

    pub fn keeps_in_etcd(&self) -> bool {
        matches!(self.storage, TestStorage::Etcd(_))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Registers the API server with kube-apiserver.
    fn register(&self) {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "calico-api"},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": self.port}]}});
        self.server.create("/api/v1/namespaces/calico-apiserver/services", &service);
        let registration = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v3.projectcalico.org"},
            "spec": {"group": "projectcalico.org", "version": "v3", "groupPriorityMinimum": 1500, "versionPriority": 200,
                "insecureSkipTLSVerify": true,
                "service": {"namespace": "calico-apiserver", "name": "calico-api", "port": self.port}}});
        self.server.create("/apis/apiregistration.k8s.io/v1/apiservices", &registration);
        self.wait_until_served();
    }

    pub fn wait_until_served(&self) {
        let path = "/apis/apiregistration.k8s.io/v1/apiservices/v3.projectcalico.org";
        let conditions = || self.server.must("GET", path, None)["status"]["conditions"].clone();
        eventually_showing(
            "the API service is available",
            || {
                let conditions = conditions();
                let listed = conditions.as_array().cloned().unwrap_or_default();
                let available =
                    listed.iter().any(|one| one["type"] == "Available" && one["status"] == "True");
                available && self.server.send("GET", "/apis/projectcalico.org/v3/tiers", None).is_ok()
            },
            || conditions().to_string(),
        );
    }
}

impl TestCluster {
    pub fn new(server: ApiServer) -> TestCluster {
        TestCluster { server, cache: tempfile::tempdir().unwrap() }
    }

    pub fn kubectl(&self, kubeconfig: &Path, words: &[&str], input: &str) -> Output {
        let mut command = self.server.program("kubectl");
        command.arg("--kubeconfig").arg(kubeconfig).arg("--cache-dir").arg(self.cache.path()).args(words);
        // The settings of the user who runs the test must not have an effect.
        command.env_remove("KUBECONFIG").env("HOME", self.cache.path());
        output(&mut command, input)
    }

    /// Runs kubectl as administrator and returns its output; it must succeed.
    pub fn must(&self, words: &[&str], input: &str) -> String {
        let output = self.kubectl(&self.server.kubeconfig(), words, input);
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {words:?}: {text}{errors}\n{input}");
        text.into_owned()
    }

    /// Runs kubectl as administrator and returns its error output; it must fail.
    pub fn refused(&self, words: &[&str], input: &str) -> String {
        let output = self.kubectl(&self.server.kubeconfig(), words, input);
        assert!(!output.status.success(), "kubectl {words:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Returns an object as served.
    pub fn object(&self, words: &[&str]) -> Value {
        let text = self.must(&[&["get", "-o", "json", "--show-managed-fields"], words].concat(), "");
        serde_json::from_str(&text).unwrap()
    }

    /// Runs kubectl as a user and returns whether it succeeded, and its output.
    pub fn said(&self, user: &str, words: &[&str], input: &str) -> (bool, String) {
        let output = self.kubectl(&self.server.kubeconfig_of(user), words, input);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// Grants a user a ClusterRole with these rules.
    pub fn grant(&self, user: &str, rules: &[Value]) {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
        self.must(&["apply", "-f", "-"], &documents(&[role, binding]));
    }
}

impl Drop for ServerReplica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Ensures that no tasks and no open port remain.
            runtime.shutdown_timeout(tortie_testkit::CONDITION_TIMEOUT);
        }
    }
}

/// Returns an RBAC rule for our resources.
pub fn rule(resources: &[&str], verbs: &[&str], names: &[&str]) -> Value {
    let mut rule = json!({"apiGroups": ["projectcalico.org"], "resources": resources, "verbs": verbs});
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}
