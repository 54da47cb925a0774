//! Tests of a cluster whose objects are custom resources of projectcalico.org/v3: kube-apiserver itself sets defaults
//! and rejects invalid objects, and calls the webhooks for tier permissions. The manifests of `deploy/` are applied.

mod admission;
mod agreement;
mod certificates;
mod tiers;

use crate::world::{ServerReplica, TestCluster};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tortie_apiserver::{CertificateLifetimes, ListenArgs, WebhooksArgs};
use tortie_store::{ResourceClient, StoreClient, StoreConfig};
use tortie_testkit::{ApiServer, CalicoGroup, eventually_showing, free_port};

const API: &str = "/apis/projectcalico.org/v3";

/// Such a cluster with the webhooks.
pub struct CustomResourceCluster {
    // Fields are dropped in this order.
    webhooks: Option<ServerReplica>,
    pub cluster: TestCluster,
    pub port: u16,
}

impl CustomResourceCluster {
    /// Starts a cluster with CRDs, admission policies and RBAC enabled.
    pub fn new() -> CustomResourceCluster {
        let server = ApiServer::start_with_rules();
        server.install(CalicoGroup::V3);
        server.add_namespace("shop", serde_json::json!({}));
        let custom = CustomResourceCluster {
            webhooks: None,
            cluster: TestCluster::new(server),
            port: free_port().unwrap(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let resources = ResourceClient::new(StoreClient::connect(&custom.config()).await.unwrap());
            resources.ensure_initialized("v3.32.0", "k8s").await.unwrap();
        });
        custom.cluster.must(&["apply", "-f", "-"], &manifest("webhooks/10-policies.yaml"));
        // Admission policies take effect some time after they are created.
        let server = &custom.cluster.server;
        let plain = object("GlobalNetworkPolicy", "plain", serde_json::json!({}));
        let filled = || server.send("POST", &format!("{API}/globalnetworkpolicies?dryRun=All"), Some(&plain));
        let is_filled = |stored: &Value| {
            let label = stored.pointer("/metadata/labels/projectcalico.org~1tier");
            label.is_some() && stored.pointer("/spec/types").is_some()
        };
        let kept = || server.send("DELETE", &format!("{API}/tiers/kube-admin?dryRun=All"), None);
        eventually_showing(
            "the policies are in force",
            || {
                filled().is_ok_and(|stored| is_filled(&stored))
                    && kept().is_err_and(|refusal| refusal.contains("is built in"))
            },
            || format!("{:?}\n{:?}", filled(), kept()),
        );
        custom
    }

    fn config(&self) -> StoreConfig {
        StoreConfig {
            datastore_type: "kubernetes".into(),
            kubeconfig: self.cluster.server.kubeconfig().display().to_string(),
            calico_api_group: CalicoGroup::V3.api_version().into(),
            ..StoreConfig::default()
        }
    }

    /// Starts the webhooks and registers them with the manifest of `deploy/` and their address.
    pub fn start_webhooks(&mut self, lifetimes: CertificateLifetimes) {
        self.start_webhooks_for(lifetimes, None);
    }

    /// Same, but clients need a certificate of this authority.
    pub fn start_webhooks_for(&mut self, lifetimes: CertificateLifetimes, client_ca_file: Option<PathBuf>) {
        let args = WebhooksArgs {
            port: self.port,
            listen: ListenArgs { bind_address: Some([127, 0, 0, 1].into()), ..ListenArgs::default() },
            client_ca_file,
            namespace: "kube-system".into(),
            config: PathBuf::new(),
        };
        let config = self.config();
        self.webhooks =
            Some(ServerReplica::start(|end| tortie_apiserver::serve_webhooks(config, args, lifetimes, end)));
        let service = "  selector: {k8s-app: calico-webhooks}\n  ports: [{name: webhooks, port: 443, targetPort: 6443, protocol: TCP}]\n";
        let text = manifest("webhooks/20-webhooks.yaml");
        assert_eq!(text.matches(service).count(), 1);
        let here = format!(
            "  type: ExternalName\n  externalName: localhost\n  ports: [{{name: webhooks, port: {}}}]\n",
            self.port
        );
        let text = text.replace(service, &here).replace("port: 443}", &format!("port: {}}}", self.port));
        self.cluster.must(&["apply", "-f", "-"], &text);
        // kube-apiserver verifies the name of the Service in the certificate, whatever address the Service has.
        eventually_showing(
            "the webhooks are asked",
            || self.probe().is_err_and(|refusal| refusal.contains("does not exist")),
            || format!("{:?}", self.probe()),
        );
    }

    /// Creates a policy of a tier that does not exist, which only the webhooks reject.
    fn probe(&self) -> Result<Value, String> {
        let mut policy = object("GlobalNetworkPolicy", "probe", serde_json::json!({"tier": "nowhere"}));
        policy["metadata"]["labels"] = serde_json::json!({"a": "b"});
        self.cluster.server.send("POST", &format!("{API}/globalnetworkpolicies?dryRun=All"), Some(&policy))
    }

    pub fn stop_webhooks(&mut self) {
        self.webhooks.take().unwrap().stop();
    }
}

pub fn object(kind: &str, name: &str, spec: Value) -> Value {
    serde_json::json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

pub fn manifest(name: &str) -> String {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    std::fs::read_to_string(deploy.join(name)).unwrap()
}

/// Long enough that no renewal happens during a test.
pub const LONG_LIFETIMES: CertificateLifetimes = CertificateLifetimes {
    authority: Duration::from_secs(360_000),
    certificate: Duration::from_secs(36_000),
};
