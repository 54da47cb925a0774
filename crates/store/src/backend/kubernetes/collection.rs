//! Mapping of keys and ranges to paths of the Kubernetes API, and of the objects there to entries.

use super::api::{ListHead, ListQuery, ListResponse, ObjectDetail};
use super::core::{
    CoreEndpointSlice, CoreMetadata, CoreMetadataObject, CoreNetworkPolicy, CoreNode, CoreObject, CorePod,
    CoreService,
};
use super::group::CalicoApiGroup;
use super::profile::{self, ProfileOrigin};
use super::records::{self, StoredIpamRecord};
use super::{names, node, object, pod, policy, text_at};
use crate::{Revision, StoreError};
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use tortie_model::kubernetes::{
    ClusterPolicyKind, KubernetesService, NETWORK_POLICY_PREFIX, is_derived_policy,
};
use tortie_model::names::split_workload_endpoint_name;
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};

/// Type of the objects of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectionForm {
    /// A Calico resource, stored as a custom resource of the same kind.
    Resource(Kind),
    /// An IPAM record stored as a custom resource of this kind.
    Record(Kind),
    Pod,
    Namespace,
    ServiceAccount,
    Node,
    NetworkPolicy,
    ClusterPolicy(ClusterPolicyKind),
    EndpointSlice,
    Service,
}

const NETWORK_POLICY_API_PATH: &str = "/apis/networking.k8s.io/v1";
const ENDPOINT_SLICE_API_PATH: &str = "/apis/discovery.k8s.io/v1";

/// An API path that can be listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiCollection {
    pub form: CollectionForm,
    pub path: String,
    pub labels: Option<String>,
}

/// Location of one object in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLocation {
    pub form: CollectionForm,
    pub collection: String,
    pub name: String,
}

/// Cluster settings that affect how objects are converted.
#[derive(Clone, Debug)]
pub struct ObjectReader {
    pub group: CalicoApiGroup,
    pub interface_prefix: String,
    pub use_pod_cidr: bool,
}

/// An API object converted to an entry.
#[derive(Debug)]
pub struct ConvertedObject {
    pub key: StoreKey,
    pub revision: Revision,
    pub uid: String,
    /// `None` if the object is marked as deleted, or has no counterpart in the model.
    pub value: Option<Result<StoreValue, StoreError>>,
}

/// Returns whether the kind is stored as a custom resource.
fn is_custom(kind: Kind) -> bool {
    !matches!(kind, Kind::WorkloadEndpoint | Kind::Profile | Kind::Node | Kind::LiveMigration)
}

impl CollectionForm {
    /// Returns the `kind` field of the objects.
    pub fn kind_name(self, group: CalicoApiGroup) -> &'static str {
        match self {
            CollectionForm::Resource(kind) | CollectionForm::Record(kind) => group.kind_name(kind),
            CollectionForm::Pod => "Pod",
            CollectionForm::Namespace => "Namespace",
            CollectionForm::ServiceAccount => "ServiceAccount",
            CollectionForm::Node => "Node",
            CollectionForm::NetworkPolicy => "NetworkPolicy",
            CollectionForm::ClusterPolicy(kind) => kind.name(),
            CollectionForm::EndpointSlice => "EndpointSlice",
            CollectionForm::Service => "Service",
        }
    }

    /// Returns which part of the objects is read.
    pub fn detail(self) -> ObjectDetail {
        match self {
            CollectionForm::Namespace | CollectionForm::ServiceAccount => ObjectDetail::Metadata,
            _ => ObjectDetail::Whole,
        }
    }
}

impl ApiCollection {
    /// Returns the name of the CustomResourceDefinition, if the kind is a custom resource that a cluster may lack.
    pub fn definition(&self) -> Option<String> {
        if !matches!(
            self.form,
            CollectionForm::Resource(_) | CollectionForm::Record(_) | CollectionForm::ClusterPolicy(_)
        ) {
            return None;
        }
        let mut parts = self.path.strip_prefix("/apis/")?.split('/');
        let group = parts.next()?;
        Some(format!("{}.{group}", parts.next_back()?))
    }

    pub fn query(&self, limit: usize, after: Option<String>) -> ListQuery {
        ListQuery { limit, after, labels: self.labels.clone(), detail: self.form.detail() }
    }
}

impl ObjectLocation {
    fn new(form: CollectionForm, collection: String, name: &str) -> ObjectLocation {
        ObjectLocation { form, collection, name: name.to_owned() }
    }

    pub fn path(&self) -> String {
        format!("{}/{}", self.collection, self.name)
    }
}

impl ObjectReader {
    /// Returns the location of a key; `None` if the key does not exist in this backend.
    pub fn place(&self, key: &StoreKey) -> Option<ObjectLocation> {
        if let Some((kind, name)) = records::place(key) {
            let collection = self.group.collection(kind, None);
            return Some(ObjectLocation { form: CollectionForm::Record(kind), collection, name });
        }
        if let StoreKey::EndpointSlice { namespace, name } = key {
            let collection = format!("{ENDPOINT_SLICE_API_PATH}/namespaces/{namespace}/endpointslices");
            return Some(ObjectLocation::new(CollectionForm::EndpointSlice, collection, name));
        }
        if let StoreKey::Service { namespace, name } = key {
            return Some(ObjectLocation::new(
                CollectionForm::Service,
                format!("/api/v1/namespaces/{namespace}/services"),
                name,
            ));
        }
        let StoreKey::Resource { kind, namespace, name } = key else { return None };
        Some(match kind {
            Kind::NetworkPolicy if is_derived_policy(*kind, name) => {
                let collection = format!("{NETWORK_POLICY_API_PATH}/namespaces/{namespace}/networkpolicies");
                ObjectLocation::new(
                    CollectionForm::NetworkPolicy,
                    collection,
                    name.strip_prefix(NETWORK_POLICY_PREFIX)?,
                )
            }
            Kind::GlobalNetworkPolicy if is_derived_policy(*kind, name) => {
                let (kind, name) = ClusterPolicyKind::find_origin(name)?;
                ObjectLocation::new(CollectionForm::ClusterPolicy(kind), kind.api_path().into(), name)
            }
            Kind::WorkloadEndpoint => {
                let [_, orchestrator, pod, _] = split_workload_endpoint_name(name)?;
                let collection = format!("/api/v1/namespaces/{namespace}/pods");
                (orchestrator == "k8s").then(|| ObjectLocation::new(CollectionForm::Pod, collection, &pod))?
            }
            Kind::Profile => match profile::origin(name)? {
                ProfileOrigin::Namespace(name) => {
                    ObjectLocation::new(CollectionForm::Namespace, "/api/v1/namespaces".into(), name)
                }
                ProfileOrigin::ServiceAccount { namespace, name } => ObjectLocation::new(
                    CollectionForm::ServiceAccount,
                    format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
                    name,
                ),
            },
            Kind::Node => ObjectLocation::new(CollectionForm::Node, "/api/v1/nodes".into(), name),
            Kind::LiveMigration => return None,
            _ => {
                let collection = self.group.collection(*kind, Some(namespace));
                ObjectLocation { form: CollectionForm::Resource(*kind), collection, name: name.clone() }
            }
        })
    }

    /// Returns the collections that contain a range; empty if the range does not exist in this backend.
    pub fn collections(&self, range: &KeyRange) -> Vec<ApiCollection> {
        match range {
            KeyRange::Written { kind, namespace } if is_custom(*kind) => {
                single(CollectionForm::Resource(*kind), self.group.collection(*kind, namespace.as_deref()))
            }
            KeyRange::Written { kind, namespace } => self.collections(&KeyRange::Resources {
                kind: *kind,
                namespace: namespace.clone(),
                name_prefix: String::new(),
            }),
            KeyRange::Resources { kind: Kind::WorkloadEndpoint, namespace: Some(namespace), .. } => {
                single(CollectionForm::Pod, format!("/api/v1/namespaces/{namespace}/pods"))
            }
            KeyRange::Resources { kind: Kind::WorkloadEndpoint, namespace: None, .. } => {
                single(CollectionForm::Pod, "/api/v1/pods".into())
            }
            KeyRange::Resources { kind: Kind::Profile, .. } => [
                single(CollectionForm::Namespace, "/api/v1/namespaces".into()),
                single(CollectionForm::ServiceAccount, "/api/v1/serviceaccounts".into()),
            ]
            .concat(),
            KeyRange::Resources { kind: Kind::Node, .. } => {
                single(CollectionForm::Node, "/api/v1/nodes".into())
            }
            KeyRange::Resources { kind: Kind::LiveMigration, .. } => Vec::new(),
            KeyRange::Resources { kind, namespace, .. } => {
                let namespace = namespace.as_deref();
                let mut all =
                    single(CollectionForm::Resource(*kind), self.group.collection(*kind, namespace));
                match kind {
                    Kind::NetworkPolicy => {
                        let within = namespace.map(|name| format!("/namespaces/{name}")).unwrap_or_default();
                        let path = format!("{NETWORK_POLICY_API_PATH}{within}/networkpolicies");
                        all.extend(single(CollectionForm::NetworkPolicy, path));
                    }
                    Kind::GlobalNetworkPolicy => {
                        all.extend(ClusterPolicyKind::ALL.into_iter().flat_map(|kind| {
                            single(CollectionForm::ClusterPolicy(kind), kind.api_path().into())
                        }));
                    }
                    _ => {}
                }
                all
            }
            KeyRange::EndpointSlices => {
                single(CollectionForm::EndpointSlice, format!("{ENDPOINT_SLICE_API_PATH}/endpointslices"))
            }
            KeyRange::Services => single(CollectionForm::Service, "/api/v1/services".into()),
            KeyRange::Blocks { .. } => vec![self.records_of(Kind::IPAMBlock)],
            KeyRange::BlockAffinities { affinity, owner, ip_version } => {
                let mut labels = vec![format!("{}={affinity}", names::AFFINITY_TYPE_LABEL)];
                labels.extend(
                    owner
                        .as_ref()
                        .map(|owner| format!("{}={}", names::HOSTNAME_LABEL, names::hostname_hash(owner))),
                );
                labels.extend(ip_version.map(|version| format!("{}={version}", names::IP_VERSION_LABEL)));
                vec![ApiCollection { labels: Some(labels.join(",")), ..self.records_of(Kind::BlockAffinity) }]
            }
            KeyRange::Handles => vec![self.records_of(Kind::IPAMHandle)],
            KeyRange::IpamConfig => vec![self.records_of(Kind::IPAMConfiguration)],
            KeyRange::FelixStatuses
            | KeyRange::DhcpSubnets { .. }
            | KeyRange::LegacyDhcpSubnets
            | KeyRange::WorkloadEndpointStatuses { .. }
            | KeyRange::HostEndpointStatuses { .. } => Vec::new(),
        }
    }

    fn records_of(&self, kind: Kind) -> ApiCollection {
        let path = self.group.collection(kind, None);
        ApiCollection { form: CollectionForm::Record(kind), path, labels: None }
    }

    /// Converts an object; `None` if it has no counterpart in the model.
    pub fn read(&self, form: CollectionForm, object: Json) -> Option<ConvertedObject> {
        match form {
            CollectionForm::Resource(kind) => self.resource(kind, object),
            CollectionForm::Record(kind) => self.record(kind, &object),
            CollectionForm::Pod => self.pod(&typed(object)?),
            CollectionForm::Namespace => self.namespace(&typed(object)?),
            CollectionForm::ServiceAccount => self.service_account(&typed(object)?),
            CollectionForm::Node => self.node(&typed(object)?),
            CollectionForm::NetworkPolicy => match CoreNetworkPolicy::deserialize(&object) {
                Ok(policy) => self.network_policy(&policy),
                Err(error) => self.closed_network_policy(object, &error),
            },
            CollectionForm::ClusterPolicy(kind) => self.cluster_policy(kind, object),
            CollectionForm::EndpointSlice => self.endpoint_slice(&typed(object)?),
            CollectionForm::Service => self.service(&typed(object)?),
        }
    }

    /// Converts a page of a list. Kubernetes' own objects are deserialised directly into the required fields, so that
    /// the full objects are never held in memory.
    pub fn read_list(
        &self,
        form: CollectionForm,
        text: &str,
    ) -> serde_json::Result<(ListHead, Vec<ConvertedObject>)> {
        let read = match form {
            CollectionForm::Pod => page(text, |pod| self.pod(pod)),
            CollectionForm::Namespace => page(text, |namespace| self.namespace(namespace)),
            CollectionForm::ServiceAccount => page(text, |account| self.service_account(account)),
            CollectionForm::Node => page(text, |node| self.node(node)),
            CollectionForm::NetworkPolicy => page(text, |policy| self.network_policy(policy)),
            CollectionForm::EndpointSlice => page(text, |slice| self.endpoint_slice(slice)),
            CollectionForm::Service => page(text, |service| self.service(service)),
            CollectionForm::Resource(_) | CollectionForm::Record(_) | CollectionForm::ClusterPolicy(_) => {
                None
            }
        };
        if let Some(read) = read {
            return Ok(read);
        }
        // Decode one by one, so that an invalid object does not hide the others.
        let (head, items) = serde_json::from_str::<ListResponse<Json>>(text)?.into_parts();
        if let Some(index) = items.iter().position(|item| ObjectIdentity::of(item).is_none()) {
            return Err(unidentified(index));
        }
        Ok((head, items.into_iter().filter_map(|item| self.read(form, item)).collect()))
    }

    fn resource(&self, kind: Kind, object: Json) -> Option<ConvertedObject> {
        let meta = ObjectIdentity::of(&object)?;
        if is_derived_policy(kind, &meta.name) {
            tracing::debug!(%kind, meta.name, "ignoring a custom resource whose name is reserved for policies derived from Kubernetes");
            return None;
        }
        let (key, value) = object::read(self.group, kind, object);
        // Keep the text: the readable parts of a policy are still enforced.
        let value = value.map_err(|object| unreadable(&key, object.text, object.error.to_string()));
        Some(meta.found(key, Some(value)))
    }

    fn record(&self, kind: Kind, object: &Json) -> Option<ConvertedObject> {
        let meta = ObjectIdentity::of(object)?;
        Some(match records::read(kind, object) {
            StoredIpamRecord::Present(key, value) => {
                let value = value.map_err(|record| unreadable(&key, record.text, record.reason));
                meta.found(key, Some(value))
            }
            StoredIpamRecord::Deleted(key) => meta.found(key, None),
            StoredIpamRecord::Nameless(reason) => {
                let name = meta.name;
                tracing::warn!(%kind, name, reason, "an IPAM record cannot be read; correct it or delete it");
                return None;
            }
        })
    }

    fn pod(&self, pod: &CorePod) -> Option<ConvertedObject> {
        let (key, endpoint) = pod::endpoint(pod, &self.interface_prefix)?;
        let value = endpoint.map(|endpoint| StoreValue::Resource(Resource::from(endpoint)));
        // Keep no text: an endpoint without addresses or labels is useless.
        let value = value.map_err(|error| unreadable(&key, String::new(), error.to_string()));
        ObjectIdentity::in_metadata(&pod.metadata).map(|meta| meta.found(key, Some(value)))
    }

    fn namespace(&self, namespace: &CoreMetadataObject) -> Option<ConvertedObject> {
        let (key, profile) = profile::from_namespace(namespace);
        derived(&namespace.metadata, key, Some(Resource::from(profile)))
    }

    fn service_account(&self, account: &CoreMetadataObject) -> Option<ConvertedObject> {
        let (key, profile) = profile::from_service_account(account);
        derived(&account.metadata, key, Some(Resource::from(profile)))
    }

    fn node(&self, core: &CoreNode) -> Option<ConvertedObject> {
        let (key, node) = node::read(core, self.use_pod_cidr);
        derived(&core.metadata, key, Some(Resource::from(node)))
    }

    fn network_policy(&self, object: &CoreNetworkPolicy) -> Option<ConvertedObject> {
        let (key, policy) = policy::from_network_policy(object);
        derived(&object.metadata, key, Some(Resource::from(policy)))
    }

    /// Converts a policy whose rules are unreadable to one that selects the same pods and allows nothing. If the
    /// selector is unreadable too, the policy selects the whole namespace.
    fn closed_network_policy(&self, object: Json, error: &serde_json::Error) -> Option<ConvertedObject> {
        let metadata = CoreMetadata::deserialize(object.get("metadata")?).ok()?;
        let selector = object.pointer("/spec/podSelector").cloned().unwrap_or_default();
        let spec = json!({ "podSelector": selector, "policyTypes": ["Ingress", "Egress"] });
        let spec = serde_json::from_value(spec).unwrap_or_default();
        let (key, policy) = policy::from_network_policy(&CoreNetworkPolicy { metadata, spec });
        let text = StoreValue::Resource(Resource::from(policy)).encode();
        let text = String::from_utf8_lossy(&text).into_owned();
        let reason = format!("its rules cannot be read, so it allows nothing: {error}");
        let value = Some(Err(unreadable(&key, text, reason)));
        ObjectIdentity::of(&object).map(|identity| identity.found(key, value))
    }

    /// Converts a cluster policy. If its subject cannot be read, nothing can be enforced in its place; nodes report it.
    fn cluster_policy(&self, kind: ClusterPolicyKind, object: Json) -> Option<ConvertedObject> {
        let identity = ObjectIdentity::of(&object)?;
        let key = policy::cluster_policy_key(kind, &identity.name);
        let policy = match policy::from_cluster_policy(kind, object) {
            Ok(policy) => policy,
            Err(error) => {
                let value = Some(Err(unreadable(&key, String::new(), error.to_string())));
                return Some(identity.found(key, value));
            }
        };
        if policy.is_none() {
            let kind = kind.name();
            tracing::warn!(%key, kind, "policy is not enforced: its tier, subject or rules are unknown");
        }
        let value = policy.map(|policy| Ok(StoreValue::Resource(Resource::from(policy))));
        Some(identity.found(key, value))
    }

    fn endpoint_slice(&self, object: &CoreEndpointSlice) -> Option<ConvertedObject> {
        let (key, slice) = policy::from_endpoint_slice(object);
        let value = slice.map(|slice| Ok(StoreValue::EndpointSlice(slice)));
        ObjectIdentity::in_metadata(&object.metadata).map(|meta| meta.found(key, value))
    }

    fn service(&self, object: &CoreService) -> Option<ConvertedObject> {
        let meta = &object.metadata;
        let key = StoreKey::Service { namespace: meta.namespace.clone(), name: meta.name.clone() };
        let service = KubernetesService::read(&meta.uid, &meta.annotations, &object.service);
        ObjectIdentity::in_metadata(meta)
            .map(|meta| meta.found(key, Some(Ok(StoreValue::Service(Box::new(service))))))
    }
}

fn single(form: CollectionForm, path: String) -> Vec<ApiCollection> {
    vec![ApiCollection { form, path, labels: None }]
}

/// Identifying fields that every object has.
struct ObjectIdentity {
    name: String,
    uid: String,
    revision: Revision,
}

impl ObjectIdentity {
    fn of(object: &Json) -> Option<ObjectIdentity> {
        let revision = text_at(object, "/metadata/resourceVersion").parse().ok()?;
        let name = text_at(object, "/metadata/name");
        (!name.is_empty()).then(|| ObjectIdentity {
            name: name.to_owned(),
            uid: text_at(object, "/metadata/uid").to_owned(),
            revision,
        })
    }

    fn in_metadata(meta: &CoreMetadata) -> Option<ObjectIdentity> {
        let revision = meta.resource_version.parse().ok()?;
        let is_named = !meta.name.is_empty();
        is_named.then(|| ObjectIdentity { name: meta.name.clone(), uid: meta.uid.clone(), revision })
    }

    fn found(self, key: StoreKey, value: Option<Result<StoreValue, StoreError>>) -> ConvertedObject {
        ConvertedObject { key, revision: self.revision, uid: self.uid, value }
    }
}

fn derived(meta: &CoreMetadata, key: StoreKey, resource: Option<Resource>) -> Option<ConvertedObject> {
    let value = resource.map(|resource| Ok(StoreValue::Resource(resource)));
    ObjectIdentity::in_metadata(meta).map(|identity| identity.found(key, value))
}

fn unreadable(key: &StoreKey, value: String, reason: String) -> StoreError {
    StoreError::Parse { key: key.to_string(), value, reason }
}

/// Error for a list item without a name or resource version. It must not be skipped, since it would count as absent.
fn unidentified(index: usize) -> serde_json::Error {
    serde::de::Error::custom(format!("items[{index}] has no metadata.name or no metadata.resourceVersion"))
}

/// Decodes a page; `None` if an item is not of the type, or has no name or resource version.
fn page<T: DeserializeOwned + CoreObject>(
    text: &str,
    read: impl Fn(&T) -> Option<ConvertedObject>,
) -> Option<(ListHead, Vec<ConvertedObject>)> {
    let (head, items) = serde_json::from_str::<ListResponse<T>>(text).ok()?.into_parts();
    if items.iter().any(|item| ObjectIdentity::in_metadata(item.metadata()).is_none()) {
        return None;
    }
    Some((head, items.iter().filter_map(read).collect()))
}

/// Decodes a Kubernetes object. kube-apiserver validates these, so an undecodable one is ignored.
fn typed<T: DeserializeOwned>(object: Json) -> Option<T> {
    serde_json::from_value(object)
        .inspect_err(|error| tracing::warn!(%error, "ignoring a Kubernetes object that cannot be parsed"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::key::AffinityType;

    fn reader() -> ObjectReader {
        ObjectReader { group: CalicoApiGroup::V1, interface_prefix: "cali".into(), use_pod_cidr: false }
    }

    #[test]
    fn keys_have_their_place() {
        let path = |key: StoreKey| reader().place(&key).map(|place| place.path());
        let resource = |kind, namespace: &str, name: &str| path(StoreKey::resource(kind, namespace, name));
        for (found, expected) in [
            (
                resource(Kind::NetworkSet, "prod", "dns"),
                Some("/apis/crd.projectcalico.org/v1/namespaces/prod/networksets/dns"),
            ),
            (resource(Kind::Tier, "", "default"), Some("/apis/crd.projectcalico.org/v1/tiers/default")),
            (
                resource(Kind::WorkloadEndpoint, "prod", "n--1-k8s-web--0-eth0"),
                Some("/api/v1/namespaces/prod/pods/web-0"),
            ),
            (resource(Kind::WorkloadEndpoint, "prod", "n1-cni-c1-eth0"), None),
            (resource(Kind::Profile, "", "kns.prod"), Some("/api/v1/namespaces/prod")),
            (resource(Kind::Profile, "", "ksa.prod.db"), Some("/api/v1/namespaces/prod/serviceaccounts/db")),
            (resource(Kind::Profile, "", "mine"), None),
            (resource(Kind::Node, "", "n1"), Some("/api/v1/nodes/n1")),
            (
                path(StoreKey::Block { cidr: "10.65.3.0/26".parse().unwrap() }),
                Some("/apis/crd.projectcalico.org/v1/ipamblocks/10-65-3-0-26"),
            ),
            (
                resource(Kind::NetworkPolicy, "prod", "knp.default.web.a"),
                Some("/apis/networking.k8s.io/v1/namespaces/prod/networkpolicies/web.a"),
            ),
            (
                resource(Kind::NetworkPolicy, "prod", "knp.web"),
                Some("/apis/crd.projectcalico.org/v1/namespaces/prod/networkpolicies/knp.web"),
            ),
            (
                resource(Kind::GlobalNetworkPolicy, "", "kcnp.all"),
                Some("/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies/all"),
            ),
            (
                resource(Kind::GlobalNetworkPolicy, "", "kanp.all"),
                Some("/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies/all"),
            ),
            (
                resource(Kind::GlobalNetworkPolicy, "", "kbanp.default"),
                Some("/apis/policy.networking.k8s.io/v1alpha1/baselineadminnetworkpolicies/default"),
            ),
            (
                path(StoreKey::EndpointSlice { namespace: "prod".into(), name: "web-x1".into() }),
                Some("/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices/web-x1"),
            ),
            (path(StoreKey::IpamConfig), Some("/apis/crd.projectcalico.org/v1/ipamconfigs/default")),
            (path(StoreKey::CompactRevision), None),
            (path(StoreKey::FelixStatus { region: String::new(), host: "n1".into() }), None),
        ] {
            assert_eq!(found.as_deref(), expected);
        }
    }

    #[test]
    fn ranges_have_their_collections() {
        let range = KeyRange::BlockAffinities {
            affinity: AffinityType::Host,
            owner: Some("n1".into()),
            ip_version: Some(4),
        };
        let labels = reader().collections(&range).remove(0).labels;
        let hash = names::hostname_hash("n1");
        assert_eq!(
            labels.unwrap(),
            format!(
                "projectcalico.org/affinity-type=host,projectcalico.org/hostname-hash={hash},projectcalico.org/ip-version=4"
            )
        );
        assert_eq!(reader().collections(&KeyRange::all(Kind::Profile)).len(), 2);
        assert_eq!(reader().collections(&KeyRange::all(Kind::WorkloadEndpoint))[0].path, "/api/v1/pods");
        assert!(reader().collections(&KeyRange::FelixStatuses).is_empty());
        let paths = |range: KeyRange| -> Vec<String> {
            reader().collections(&range).into_iter().map(|collection| collection.path).collect()
        };
        let namespace = Some("prod".to_owned());
        let of_prod =
            KeyRange::Resources { kind: Kind::NetworkPolicy, namespace, name_prefix: String::new() };
        assert_eq!(
            paths(of_prod),
            [
                "/apis/crd.projectcalico.org/v1/namespaces/prod/networkpolicies",
                "/apis/networking.k8s.io/v1/namespaces/prod/networkpolicies",
            ]
        );
        assert_eq!(
            paths(KeyRange::all(Kind::NetworkPolicy))[1],
            "/apis/networking.k8s.io/v1/networkpolicies"
        );
        assert_eq!(paths(KeyRange::all(Kind::GlobalNetworkPolicy)).len(), 4);
        assert_eq!(paths(KeyRange::EndpointSlices), ["/apis/discovery.k8s.io/v1/endpointslices"]);
        assert_eq!(paths(KeyRange::Services), ["/api/v1/services"]);
    }

    #[test]
    fn objects_are_read_by_their_collection_form() {
        let set =
            json!({"metadata": {"name": "s", "resourceVersion": "7", "uid": "u"}, "spec": {"nets": []}});
        let found = reader().read(CollectionForm::Resource(Kind::GlobalNetworkSet), set).unwrap();
        assert_eq!(found.key, StoreKey::resource(Kind::GlobalNetworkSet, "", "s"));
        assert_eq!((found.revision, found.uid.as_str()), (7.into(), "u"));
        assert!(matches!(found.value, Some(Ok(_))));
        let gone = json!({"metadata": {"name": "h", "resourceVersion": "7"},
            "spec": {"handleID": "H", "block": {}, "deleted": true}});
        let found = reader().read(CollectionForm::Record(Kind::IPAMHandle), gone).unwrap();
        assert!(found.value.is_none() && found.key == StoreKey::Handle { id: "H".into() });
        let host_network = json!({"metadata": {"name": "p", "namespace": "x", "resourceVersion": "7"},
            "spec": {"nodeName": "n1", "hostNetwork": true}});
        assert!(reader().read(CollectionForm::Pod, host_network).is_none());
    }

    #[test]
    fn an_unreadable_item_does_not_hide_the_others() {
        let pod = |name: &str, port: i64| {
            json!({"metadata": {"name": name, "namespace": "x", "resourceVersion": "7"},
                "spec": {"nodeName": "n1", "containers": [{"ports": [{"containerPort": port}]}]}})
        };
        let list = json!({"metadata": {"resourceVersion": "9", "continue": "more"},
            "items": [pod("a", 1), pod("b", 70000), pod("c", 3)]});
        let (ListHead { metadata, .. }, found) =
            reader().read_list(CollectionForm::Pod, &list.to_string()).unwrap();
        assert_eq!((metadata.resource_version.as_str(), metadata.r#continue.as_deref()), ("9", Some("more")));
        let names: Vec<String> = found.iter().map(|found| found.key.to_string()).collect();
        assert_eq!(names, ["WorkloadEndpoint(x/n1-k8s-a-eth0)", "WorkloadEndpoint(x/n1-k8s-c-eth0)"]);
        assert!(reader().read_list(CollectionForm::Pod, "nonsense").is_err());
        let nothing = r#"{"metadata": {"resourceVersion": "9"}, "items": null}"#;
        assert!(reader().read_list(CollectionForm::Namespace, nothing).unwrap().1.is_empty());
        for text in [r#"{"items": [{}]}"#, r#"{"items": [{"metadata": {"name": "a"}}]}"#, "{}"] {
            for form in [CollectionForm::Namespace, CollectionForm::Resource(Kind::Tier)] {
                assert!(reader().read_list(form, text).is_err(), "{form:?} {text}");
            }
        }
    }

    #[test]
    fn unreadable_policies_keep_their_text() {
        let salvaged = |form, object| {
            let found = reader().read(form, object).unwrap();
            let Some(Err(StoreError::Parse { value, .. })) = found.value else { panic!("{found:?}") };
            tortie_model::salvage::salvage(&found.key, &value).unwrap().value
        };
        let metadata = json!({"name": "web", "namespace": "x", "resourceVersion": "7"});
        let rule = json!({"action": "Deny", "destination": {"ports": [800_000]}});
        let policy = json!({"metadata": metadata, "spec": {"selector": "a == 'b'", "ingress": [rule]}});
        let found = salvaged(CollectionForm::Resource(Kind::NetworkPolicy), policy);
        let StoreValue::Resource(Resource::NetworkPolicy(found)) = found else { panic!("{found:?}") };
        assert_eq!((found.spec.selector.as_str(), found.spec.ingress.len()), ("a == 'b'", 1));
        assert!(found.spec.ingress[0].destination.ports.is_empty());

        let spec =
            json!({"podSelector": {"matchLabels": {"a": "b"}}, "ingress": [{"ports": [{"port": {}}]}]});
        let found = salvaged(CollectionForm::NetworkPolicy, json!({"metadata": metadata, "spec": spec}));
        let StoreValue::Resource(Resource::NetworkPolicy(found)) = found else { panic!("{found:?}") };
        assert!(found.spec.selector.contains("a == 'b'") && found.spec.ingress.is_empty(), "{found:?}");
        assert_eq!(found.spec.types.len(), 2);
        assert_eq!(found.metadata.name, "knp.default.web");
    }

    #[test]
    fn cluster_policies_with_unreadable_subjects_are_reported() {
        let metadata = json!({"name": "x", "resourceVersion": "7"});
        let rule = json!({"action": "Deny", "from": 3});
        for (subject, expected) in [(json!({"namespaces": 5}), None), (json!({"namespaces": {}}), Some(1))] {
            let spec = json!({"tier": "Admin", "subject": subject, "ingress": [rule]});
            let list = json!({"metadata": {"resourceVersion": "9"}, "items": [{"metadata": metadata, "spec": spec}]});
            for kind in ClusterPolicyKind::ALL {
                let form = CollectionForm::ClusterPolicy(kind);
                let (_, mut found) = reader().read_list(form, &list.to_string()).unwrap();
                assert_eq!(found[0].key.to_string(), format!("GlobalNetworkPolicy({}x)", kind.name_prefix()));
                let rules = match found.remove(0).value {
                    Some(Ok(StoreValue::Resource(Resource::GlobalNetworkPolicy(policy)))) => {
                        Some(policy.spec.ingress.len())
                    }
                    Some(Err(StoreError::Parse { .. })) => None,
                    other => panic!("{other:?}"),
                };
                assert_eq!(rules, expected, "{kind:?}");
            }
        }
    }

    #[test]
    fn kinds_that_may_be_missing_have_a_definition() {
        let definitions = |range: KeyRange| -> Vec<Option<String>> {
            reader().collections(&range).iter().map(ApiCollection::definition).collect()
        };
        let group = reader().group.api_version().split('/').next().unwrap().to_owned();
        let [cluster, admin, baseline] =
            ["clusternetworkpolicies", "adminnetworkpolicies", "baselineadminnetworkpolicies"]
                .map(|plural| Some(format!("{plural}.policy.networking.k8s.io")));
        assert_eq!(
            definitions(KeyRange::all(Kind::GlobalNetworkPolicy)),
            [Some(format!("globalnetworkpolicies.{group}")), cluster, admin, baseline]
        );
        let within = KeyRange::Written { kind: Kind::NetworkSet, namespace: Some("prod".into()) };
        assert_eq!(definitions(within), [Some(format!("networksets.{group}"))]);
        assert_eq!(definitions(KeyRange::Handles), [Some(format!("ipamhandles.{group}"))]);
        assert_eq!(definitions(KeyRange::Services), [None]);
    }

    #[test]
    fn custom_resources_cannot_use_derived_policy_names() {
        let policy = |name: &str| json!({"metadata": {"name": name, "namespace": "x", "resourceVersion": "7"}, "spec": {}});
        let form = CollectionForm::Resource(Kind::NetworkPolicy);
        assert!(reader().read(form, policy("knp.default.web")).is_none());
        assert!(reader().read(form, policy("web")).is_some());
        let odd = json!({"metadata": {"name": "odd", "resourceVersion": "7"}, "spec": {"tier": "Odd"}});
        for kind in ClusterPolicyKind::ALL {
            let found = reader().read(CollectionForm::ClusterPolicy(kind), odd.clone()).unwrap();
            let name = format!("{}odd", kind.name_prefix());
            assert!(found.value.is_none());
            assert_eq!(found.key, StoreKey::resource(Kind::GlobalNetworkPolicy, "", &name));
        }
        let global = |name: &str| json!({"metadata": {"name": name, "resourceVersion": "7"}, "spec": {}});
        let form = CollectionForm::Resource(Kind::GlobalNetworkPolicy);
        for name in ["kcnp.x", "kanp.x", "kbanp.x"] {
            assert!(reader().read(form, global(name)).is_none(), "{name}");
        }
        assert!(reader().read(form, global("x")).is_some());
    }
}
