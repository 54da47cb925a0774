//! The Kubernetes API as a store: Calico's own objects as custom resources, the rest derived from Kubernetes' objects.
//!
//! `group` is the API group in use; `object` and `records` turn resources and IPAM's records into custom resources and
//! back; `pod`, `profile`, `node` and `policy` derive what is not stored; `collection` says where keys and ranges are. All of these
//! are functions without I/O. `connection`, `servers`, `api` and `response` speak to the server, `discovery` finds the group, `entries` are the client's verbs,
//! `source` its watches. `orchestrator` is what the node's daemon asks of Kubernetes itself. Nothing outside knows the crate kube.

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

use crate::backend::ConnectPatience;
use crate::config::KubernetesTarget;
use crate::{Limits, Result};
use api::Api;
use collection::Reader;
use group::ApiGroup;
pub(crate) use profile::{NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX};
pub use response::{ResponseError, rejected_responses};
use source::KubernetesSource;
use tortie_model::KeyRange;

/// Names of interfaces begin with the first of these (a list with commas).
const INTERFACE_PREFIX_VARIABLE: &str = "FELIX_INTERFACEPREFIX";
const INTERFACE_PREFIX: &str = "cali";

#[derive(Clone, Debug)]
pub struct Kubernetes {
    api: Api,
    reader: Reader,
}

impl Kubernetes {
    /// Asks the server for its API groups, unless the settings name ours.
    pub(crate) async fn connect(
        target: &KubernetesTarget,
        limits: Limits,
        patience: ConnectPatience<'_>,
    ) -> Result<Kubernetes> {
        let api = Api::connect(target, limits).await?;
        let group = match target.api_group.is_empty() {
            true => discovery::discover_group(&api, patience).await?,
            false => ApiGroup::parse(&target.api_group),
        };
        let prefixes = std::env::var(INTERFACE_PREFIX_VARIABLE).unwrap_or_default();
        let prefix = prefixes.split(',').next().filter(|prefix| !prefix.is_empty());
        let interface_prefix = prefix.unwrap_or(INTERFACE_PREFIX).to_owned();
        let reader = Reader { group, interface_prefix, use_pod_cidr: target.use_pod_cidr };
        Ok(Kubernetes { api, reader })
    }

    pub(crate) fn absence_grace(&self) -> std::time::Duration {
        self.api.limits.absence_grace
    }

    pub(crate) fn source(&self, range: &KeyRange) -> KubernetesSource {
        KubernetesSource::new(self.clone(), range.clone())
    }
}

/// Reads text as an object and as a list of objects of every kind that is looked at, in both groups; returns how many
/// objects mean something.
#[cfg(fuzzing)]
pub fn read_objects(text: &str) -> usize {
    use collection::Form;
    use tortie_model::Kind;
    let own = Kind::ALL.iter().flat_map(|kind| [Form::Resource(*kind), Form::Record(*kind)]);
    let forms = own.chain([
        Form::Pod,
        Form::Namespace,
        Form::ServiceAccount,
        Form::Node,
        Form::NetworkPolicy,
        Form::ClusterNetworkPolicy,
        Form::EndpointSlice,
    ]);
    let object: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let mut found = 0;
    for form in forms {
        for group in [ApiGroup::V1, ApiGroup::V3] {
            let reader = Reader { group, interface_prefix: INTERFACE_PREFIX.to_owned(), use_pod_cidr: true };
            found += object.clone().and_then(|object| reader.read(form, object)).iter().count();
            found += reader.read_list(form, text).map_or(0, |(_, found)| found.len());
        }
    }
    found
}
