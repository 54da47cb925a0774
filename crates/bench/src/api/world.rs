//! Sets up a kube-apiserver that serves the same kind twice: through Tortie's API server, and as a plain custom
//! resource.

use crate::namespace::BenchResult;
use crate::process::{BenchProcess, tortie};
use serde_json::{Value as Json, json};
use std::ops::Range;
use tortie_model::{Kind, schema};
use tortie_store::{ResourceClient, StoreClient, StoreConfig};
use tortie_testkit::{ApiServer, CalicoGroup, eventually, free_port};

/// Tortie's group and the plain one.
pub const API_GROUPS: [&str; 2] = ["projectcalico.org", PLAIN_GROUP];
const PLAIN_GROUP: &str = "plain.example.org";
const APISERVER_NAMESPACE: &str = "calico-apiserver";

pub struct ApiSetup {
    // In drop order.
    pub ours: BenchProcess,
    pub server: ApiServer,
}

impl ApiSetup {
    pub fn start() -> BenchResult<ApiSetup> {
        let server = ApiServer::start();
        server.install(CalicoGroup::V1);
        install_plain(&server)?;
        let port = free_port()?;
        let mut command = BenchProcess::command(tortie()?);
        command
            .args(["apiserver", "--bind-address", "127.0.0.1", "--secure-port", &port.to_string()])
            .envs(server.environment(CalicoGroup::V1))
            .stdout(std::fs::File::create(server.path("ours.log"))?)
            .stderr(std::fs::File::create(server.path("ours.errors"))?);
        let ours = BenchProcess(command.spawn()?);
        initialise(&server)?;
        register(&server, port);
        Ok(ApiSetup { ours, server })
    }
}

/// Installs the kind with the same schema in another group, served by kube-apiserver alone.
fn install_plain(server: &ApiServer) -> BenchResult<()> {
    let kind = Kind::GlobalNetworkPolicy;
    let found = schema::crds().into_iter().find(|crd| crd["spec"]["names"]["kind"] == kind.name());
    let mut crd = found.ok_or("there is no definition of the kind")?;
    crd["metadata"]["name"] = format!("{}.{PLAIN_GROUP}", kind.plural()).into();
    crd["spec"]["group"] = PLAIN_GROUP.into();
    server.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd);
    let path = format!("/apis/{PLAIN_GROUP}/v3/{}", kind.plural());
    eventually(&path, || server.send("GET", &path, None).is_ok());
    Ok(())
}

/// Creates the built-in tiers as a node does.
fn initialise(server: &ApiServer) -> BenchResult<()> {
    let config = StoreConfig {
        datastore_type: "kubernetes".to_owned(),
        kubeconfig: server.kubeconfig().display().to_string(),
        calico_api_group: CalicoGroup::V1.api_version().to_owned(),
        ..StoreConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let resources = ResourceClient::new(StoreClient::connect(&config).await?);
        resources.ensure_initialized("v3.32.0", "k8s").await?;
        Ok(())
    })
}

/// Registers the APIService and returns when kube-apiserver forwards requests for the group.
fn register(server: &ApiServer, port: u16) {
    server.add_namespace(APISERVER_NAMESPACE, json!({}));
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "calico-api"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}});
    server.create(&format!("/api/v1/namespaces/{APISERVER_NAMESPACE}/services"), &service);
    let registration = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v3.projectcalico.org"},
        "spec": {"group": "projectcalico.org", "version": "v3", "groupPriorityMinimum": 1500, "versionPriority": 200,
            "insecureSkipTLSVerify": true,
            "service": {"namespace": APISERVER_NAMESPACE, "name": "calico-api", "port": port}}});
    server.create("/apis/apiregistration.k8s.io/v1/apiservices", &registration);
    let path = "/apis/projectcalico.org/v3/globalnetworkpolicies";
    eventually("our server is asked", || server.send("GET", path, None).is_ok());
}

/// Returns a policy with the path of its collection.
pub fn policy(group: &str, name: &str) -> (String, Json) {
    let rule = json!({"action": "Allow", "protocol": "TCP", "source": {"selector": "role == 'client'"},
        "destination": {"ports": [80, 443, "8000:8080"]}});
    let object = json!({"apiVersion": format!("{group}/v3"), "kind": "GlobalNetworkPolicy",
        "metadata": {"name": name, "labels": {"team": "bench"}},
        "spec": {"order": 10, "selector": format!("app == '{name}'"), "types": ["Ingress"], "ingress": [rule]}});
    (format!("/apis/{group}/v3/globalnetworkpolicies"), object)
}

pub fn policies(group: &str, numbers: Range<usize>) -> Vec<(String, Json)> {
    numbers.map(|number| policy(group, &format!("policy-{number}"))).collect()
}
