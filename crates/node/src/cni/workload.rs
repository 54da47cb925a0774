//! Reads the pod that is being attached, its namespace and its service account from Kubernetes.

use super::identity::ContainerIdentity;
use super::ipam::convert_store_error;
use super::pod_annotations::PodNetworkAnnotations;
use super::request::CniRequest;
use super::service::CniService;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::PoisonError;
use std::time::SystemTime;
use tortie_cni::{CniError, code};
use tortie_model::kinds::{Profile, ProfileSpec, WorkloadEndpoint};
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{StoreError, StoreLimits};

/// The data of a pod that concerns its network.
#[derive(Debug)]
pub(super) struct KubernetesPod {
    pub pod_annotations: PodNetworkAnnotations,
    pub namespace_labels: BTreeMap<String, String>,
    /// Labels, profiles and ports. The fields that the plugin knows are filled in later.
    pub endpoint: WorkloadEndpoint,
    /// The profiles of the namespace and of the service account.
    pub profiles: Vec<Profile>,
}

/// A cached connection to Kubernetes, valid while its configuration is unchanged.
#[derive(Debug)]
pub(super) struct CachedOrchestrator {
    target: KubernetesTarget,
    /// Modification time of the kubeconfig, which changes with a new token.
    changed: Option<SystemTime>,
    orchestrator: OrchestratorClient,
}

impl CniService {
    /// Returns the connection to Kubernetes, if there is one: with the daemon's own credentials, else with those of
    /// the network configuration. A configured but missing kubeconfig is an error.
    pub(super) async fn connect_orchestrator(
        &self,
        request: &CniRequest,
    ) -> Result<Option<OrchestratorClient>, CniError> {
        let Some(target) = self.own_orchestrator.clone().or_else(|| read_target(request)) else {
            return Ok(None);
        };
        let changed = read_modification_time(&target.kubeconfig);
        let mut known = self.connected.lock().await;
        if let Some(connected) = known.as_ref().filter(|it| it.target == target && it.changed == changed) {
            return Ok(Some(connected.orchestrator.clone()));
        }
        let connected = OrchestratorClient::connect(&target, StoreLimits::default()).await;
        let orchestrator = connected.map_err(|error| {
            CniError::new(code::NETWORK_CONFIG, "cannot connect to Kubernetes").with(error.to_string())
        })?;
        *known = Some(CachedOrchestrator { target, changed, orchestrator: orchestrator.clone() });
        Ok(Some(orchestrator))
    }

    /// Returns the pod. Returns None for containers that are not pods, and if the policy type is not `k8s`.
    pub(super) async fn read_workload(
        &self,
        request: &CniRequest,
        identity: &ContainerIdentity,
        orchestrator: Option<&OrchestratorClient>,
    ) -> Result<Option<KubernetesPod>, CniError> {
        let Some(orchestrator) = orchestrator else { return Ok(None) };
        if identity.orchestrator != "k8s" || request.config.policy.kind != "k8s" {
            return Ok(None);
        }
        let namespace = orchestrator.namespace(&identity.namespace).await.map_err(convert_store_error)?;
        let prefix = self.interface_prefix();
        let pod = orchestrator
            .pod(&identity.namespace, &identity.pod, &prefix)
            .await
            .map_err(convert_store_error)?;
        let pod_annotations =
            PodNetworkAnnotations::read(&pod.annotations, &namespace.annotations, &request.config)?;
        let mut profiles = vec![namespace.profile];
        let account = &pod.endpoint.spec.service_account_name;
        if !account.is_empty() {
            match orchestrator.service_account(&identity.namespace, account).await {
                Ok(profile) => profiles.push(profile),
                // A service account may be deleted before its pods.
                Err(StoreError::DoesNotExist { .. }) => {}
                Err(error) => return Err(convert_store_error(error)),
            }
        }
        let namespace_labels = namespace.labels;
        Ok(Some(KubernetesPod { pod_annotations, namespace_labels, endpoint: pod.endpoint, profiles }))
    }

    /// Creates the profiles of a pod if they do not exist. With the Kubernetes datastore they always exist; with etcd
    /// the controllers create and update them. Returns the name of the namespace's profile, whose rules allow the
    /// pod's traffic.
    pub(super) async fn ensure_profiles(&self, workload: &KubernetesPod) -> Result<Option<String>, CniError> {
        for profile in &workload.profiles {
            let name = &profile.metadata.name;
            if self.profiles.lock().unwrap_or_else(PoisonError::into_inner).contains(name) {
                continue;
            }
            match self.resources.get_as::<ProfileSpec>("", name).await {
                Ok(_) => {}
                Err(StoreError::DoesNotExist { .. }) => {
                    let mut new = profile.clone();
                    new.metadata.uid = String::new();
                    new.metadata.creation_timestamp = None;
                    match self.resources.create(new.into()).await {
                        Ok(_) | Err(StoreError::AlreadyExists { .. }) => {}
                        Err(error) => return Err(convert_store_error(error)),
                    }
                }
                Err(error) => return Err(convert_store_error(error)),
            }
            self.profiles.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        }
        Ok(workload.profiles.first().map(|profile| profile.metadata.name.clone()))
    }
}

/// Returns the connection to Kubernetes that the network configuration specifies.
fn read_target(request: &CniRequest) -> Option<KubernetesTarget> {
    let kubernetes = &request.config.kubernetes;
    let policy = &request.config.policy;
    let mut roots = [&policy.k8s_api_root, &kubernetes.k8s_api_root].into_iter();
    // Old configurations contain the URL of the API root instead of that of the server.
    let endpoint = roots.find(|root| !root.is_empty()).and_then(|root| root.split("/api/").next());
    let target = KubernetesTarget {
        kubeconfig: kubernetes.kubeconfig.clone(),
        endpoint: endpoint.unwrap_or_default().to_owned(),
        token: policy.k8s_auth_token.clone(),
        cert_file: policy.k8s_client_certificate.clone(),
        key_file: policy.k8s_client_key.clone(),
        ca_file: policy.k8s_certificate_authority.clone(),
        ..KubernetesTarget::default()
    };
    (!target.kubeconfig.is_empty() || !target.endpoint.is_empty()).then_some(target)
}

fn read_modification_time(path: &str) -> Option<SystemTime> {
    Path::new(path).metadata().ok()?.modified().ok()
}
