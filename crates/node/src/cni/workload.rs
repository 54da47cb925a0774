//! What Kubernetes says of the pod that is being attached.

use super::identity::Identity;
use super::ipam::store_failed;
use super::request::Request;
use super::service::Service;
use super::wishes::Wishes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::PoisonError;
use std::time::SystemTime;
use tortie_cni::{CniError, code};
use tortie_model::kinds::{Profile, ProfileSpec, WorkloadEndpoint};
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::Orchestrator;
use tortie_store::{Error, Limits};

/// A pod, as far as its network goes.
#[derive(Debug)]
pub(super) struct Workload {
    pub wishes: Wishes,
    pub namespace_labels: BTreeMap<String, String>,
    /// Labels, profiles and ports; what the plugin knows is filled in later.
    pub endpoint: WorkloadEndpoint,
    /// Of the namespace and of the service account.
    pub profiles: Vec<Profile>,
}

/// A connection to Kubernetes, as long as what it was made from is the same.
#[derive(Debug)]
pub(super) struct Connected {
    target: KubernetesTarget,
    /// Of the kubeconfig: with a new token the file is a new one.
    changed: Option<SystemTime>,
    orchestrator: Orchestrator,
}

impl Service {
    /// Kubernetes, if it is asked at all: by the daemon's own credentials, else by those of the configuration. A
    /// kubeconfig that is named and not there is an error.
    pub(super) async fn orchestrator(&self, request: &Request) -> Result<Option<Orchestrator>, CniError> {
        let Some(target) = self.own_orchestrator.clone().or_else(|| target(request)) else { return Ok(None) };
        let changed = modified(&target.kubeconfig);
        let mut known = self.connected.lock().await;
        if let Some(connected) = known.as_ref().filter(|it| it.target == target && it.changed == changed) {
            return Ok(Some(connected.orchestrator.clone()));
        }
        let connected = Orchestrator::connect(&target, Limits::default()).await;
        let orchestrator = connected.map_err(|error| {
            CniError::new(code::NETWORK_CONFIG, "Kubernetes cannot be asked").with(error.to_string())
        })?;
        *known = Some(Connected { target, changed, orchestrator: orchestrator.clone() });
        Ok(Some(orchestrator))
    }

    /// None for containers that are no pods, and where policy is not Kubernetes'.
    pub(super) async fn workload(
        &self,
        request: &Request,
        identity: &Identity,
        orchestrator: Option<&Orchestrator>,
    ) -> Result<Option<Workload>, CniError> {
        let Some(orchestrator) = orchestrator else { return Ok(None) };
        if identity.orchestrator != "k8s" || request.config.policy.kind != "k8s" {
            return Ok(None);
        }
        let namespace = orchestrator.namespace(&identity.namespace).await.map_err(store_failed)?;
        let prefix = self.interface_prefix();
        let pod =
            orchestrator.pod(&identity.namespace, &identity.pod, &prefix).await.map_err(store_failed)?;
        let wishes = Wishes::read(&pod.annotations, &namespace.annotations, &request.config)?;
        let mut profiles = vec![namespace.profile];
        let account = &pod.endpoint.spec.service_account_name;
        if !account.is_empty() {
            match orchestrator.service_account(&identity.namespace, account).await {
                Ok(profile) => profiles.push(profile),
                // A pod outlives its account.
                Err(Error::DoesNotExist { .. }) => {}
                Err(error) => return Err(store_failed(error)),
            }
        }
        let namespace_labels = namespace.labels;
        Ok(Some(Workload { wishes, namespace_labels, endpoint: pod.endpoint, profiles }))
    }

    /// The profiles of a pod, where nobody has written them yet: on Kubernetes as the datastore they are always there, on
    /// etcd they come from the controllers, which also keep them up to date. Returns the one that opens the pod.
    pub(super) async fn ensure_profiles(&self, workload: &Workload) -> Result<Option<String>, CniError> {
        for profile in &workload.profiles {
            let name = &profile.metadata.name;
            if self.profiles.lock().unwrap_or_else(PoisonError::into_inner).contains(name) {
                continue;
            }
            match self.resources.get_as::<ProfileSpec>("", name).await {
                Ok(_) => {}
                Err(Error::DoesNotExist { .. }) => {
                    let mut new = profile.clone();
                    new.metadata.uid = String::new();
                    new.metadata.creation_timestamp = None;
                    match self.resources.create(new.into()).await {
                        Ok(_) | Err(Error::AlreadyExists { .. }) => {}
                        Err(error) => return Err(store_failed(error)),
                    }
                }
                Err(error) => return Err(store_failed(error)),
            }
            self.profiles.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        }
        Ok(workload.profiles.first().map(|profile| profile.metadata.name.clone()))
    }
}

/// How the configuration says that Kubernetes is reached.
fn target(request: &Request) -> Option<KubernetesTarget> {
    let (kubernetes, policy) = (&request.config.kubernetes, &request.config.policy);
    // Old configurations name the root of the API, not the server.
    let server = |root: &str| root.split("/api/").next().unwrap_or(root).to_owned();
    let roots = [&policy.k8s_api_root, &kubernetes.k8s_api_root];
    let endpoint = roots.into_iter().find(|root| !root.is_empty()).map(|root| server(root));
    let target = KubernetesTarget {
        kubeconfig: kubernetes.kubeconfig.clone(),
        endpoint: endpoint.unwrap_or_default(),
        token: policy.k8s_auth_token.clone(),
        cert_file: policy.k8s_client_certificate.clone(),
        key_file: policy.k8s_client_key.clone(),
        ca_file: policy.k8s_certificate_authority.clone(),
        ..KubernetesTarget::default()
    };
    (!target.kubeconfig.is_empty() || !target.endpoint.is_empty()).then_some(target)
}

fn modified(path: &str) -> Option<SystemTime> {
    Path::new(path).metadata().ok()?.modified().ok()
}
