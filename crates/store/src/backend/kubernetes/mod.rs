//! Backend for the Kubernetes API: Calico's own objects are custom resources, all others are derived from Kubernetes
//! objects.
//!
//! These modules do no I/O: `group` is the API group in use; `object` and `records` convert resources and IPAM records
//! to custom resources and back; `pod`, `profile`, `node` and `policy` derive resources that are not stored;
//! `collection` maps keys and ranges to API paths. `connection`, `servers`, `api` and `response` communicate with
//! kube-apiserver, `discovery` finds the group, `entries` implements the operations of the client and `source` its
//! watches. `orchestrator` contains the requests that the daemons send to Kubernetes itself. No other module uses the
//! crate kube.

mod api;
mod collection;
mod connection;
mod core;
mod discovery;
mod entries;
mod failure;
mod group;
mod names;
mod node;
mod object;
pub mod orchestrator;
mod pod;
mod policy;
mod profile;
mod quantity;
mod records;
mod response;
mod servers;
mod service;
mod source;
mod uid;

use crate::backend::{BackendCapabilities, ConnectRetryMode};
use crate::config::KubernetesTarget;
use crate::{StoreLimits, StoreResult};
use api::KubernetesApi;
use collection::ObjectReader;
use group::CalicoApiGroup;
pub(crate) use profile::{NAMESPACE_PROFILE_PREFIX, SERVICE_ACCOUNT_PROFILE_PREFIX};
pub use response::{ResponseError, rejected_responses};
use serde_json::Value as Json;
use tortie_model::Kind;
use tortie_model::kubernetes::ClusterPolicyKind;

pub(crate) const CAPABILITIES: BackendCapabilities = BackendCapabilities {
    ordered_revisions: false,
    expiring_entries: false,
    derived_kinds: &[Kind::Node, Kind::Profile, Kind::WorkloadEndpoint],
    includes_kubernetes: true,
    checks_namespaces: true,
    is_api_server: true,
};

#[derive(Clone, Debug)]
pub(crate) struct KubernetesBackend {
    api: KubernetesApi,
    reader: ObjectReader,
}

impl KubernetesBackend {
    /// Connects to kube-apiserver and discovers the API group, unless the settings name it.
    pub async fn connect(
        target: &KubernetesTarget,
        limits: StoreLimits,
        mode: ConnectRetryMode<'_>,
    ) -> StoreResult<KubernetesBackend> {
        let api = KubernetesApi::connect(target, limits).await?;
        let group = if target.api_group.is_empty() {
            discovery::discover_group(&api, mode).await?
        } else {
            CalicoApiGroup::parse(&target.api_group)
        };
        let reader = ObjectReader {
            group,
            interface_prefix: target.interface_prefix.clone(),
            use_pod_cidr: target.use_pod_cidr,
        };
        Ok(KubernetesBackend { api, reader })
    }
}

/// Returns the text at a JSON pointer, or an empty one.
fn text_at<'a>(object: &'a Json, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Json::as_str).unwrap_or_default()
}

/// Returns the number at a JSON pointer, or 0.
fn number_at(object: &Json, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Json::as_i64).unwrap_or_default()
}

/// Decodes text as an object and as a list of each supported kind except Service, in both groups. Returns the number of
/// objects that were recognised.
#[doc(hidden)]
pub fn read_objects(text: &str) -> usize {
    use collection::CollectionForm;
    let own =
        Kind::ALL.iter().flat_map(|kind| [CollectionForm::Resource(*kind), CollectionForm::Record(*kind)]);
    let cluster_policies = ClusterPolicyKind::ALL.into_iter().map(CollectionForm::ClusterPolicy);
    let forms = own.chain(cluster_policies).chain([
        CollectionForm::Pod,
        CollectionForm::Namespace,
        CollectionForm::ServiceAccount,
        CollectionForm::Node,
        CollectionForm::NetworkPolicy,
        CollectionForm::EndpointSlice,
    ]);
    let object: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let mut found = 0;
    for form in forms {
        for group in [CalicoApiGroup::V1, CalicoApiGroup::V3] {
            let reader = ObjectReader { group, interface_prefix: "cali".to_owned(), use_pod_cidr: true };
            found += object.clone().and_then(|object| reader.read(form, object)).iter().count();
            found += reader.read_list(form, text).map_or(0, |(_, found)| found.len());
        }
    }
    found
}
