//! Where keys and ranges are in the API, and what the objects there mean.

use super::core::{CoreNode, Labelled, Pod};
use super::group::ApiGroup;
use super::profile::{self, Origin};
use super::records::{self, Record};
use super::{names, node, object, pod};
use crate::{Error, Revision};
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tortie_model::names::split_workload_endpoint_name;
use tortie_model::{Key, KeyRange, Kind, Resource, Value};

/// What kind of object a collection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A resource as a custom resource of its own kind.
    Resource(Kind),
    /// A record of IPAM as a custom resource of this kind.
    Record(Kind),
    Pod,
    Namespace,
    ServiceAccount,
    Node,
}

/// A path of the API that can be listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    pub form: Form,
    pub path: String,
    pub labels: Option<String>,
}

/// One object of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub form: Form,
    pub collection: String,
    pub name: String,
}

/// What the cluster's settings have to do with reading objects.
#[derive(Clone, Debug)]
pub struct Reader {
    pub group: ApiGroup,
    pub interface_prefix: String,
    pub use_pod_cidr: bool,
}

/// What an object stands for.
#[derive(Debug)]
pub struct Found {
    pub key: Key,
    pub revision: Revision,
    pub uid: String,
    /// `None` if the object is marked as deleted.
    pub value: Option<Result<Value, Error>>,
}

impl Place {
    pub fn path(&self) -> String {
        format!("{}/{}", self.collection, self.name)
    }
}

impl Reader {
    /// Where a key is; `None` for what this store does not have.
    pub fn place(&self, key: &Key) -> Option<Place> {
        if let Some((kind, name)) = records::place(key) {
            let collection = self.group.collection(kind, None);
            return Some(Place { form: Form::Record(kind), collection, name });
        }
        let Key::Resource { kind, namespace, name } = key else { return None };
        let core = |form, collection: String, name: &str| Place { form, collection, name: name.to_owned() };
        Some(match kind {
            Kind::WorkloadEndpoint => {
                let [_, orchestrator, pod, _] = split_workload_endpoint_name(name)?;
                let collection = format!("/api/v1/namespaces/{namespace}/pods");
                (orchestrator == "k8s").then(|| core(Form::Pod, collection, &pod))?
            }
            Kind::Profile => match profile::origin(name)? {
                Origin::Namespace(name) => core(Form::Namespace, "/api/v1/namespaces".into(), name),
                Origin::ServiceAccount { namespace, name } => core(
                    Form::ServiceAccount,
                    format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
                    name,
                ),
            },
            Kind::Node => core(Form::Node, "/api/v1/nodes".into(), name),
            Kind::LiveMigration => return None,
            _ => {
                let collection = self.group.collection(*kind, Some(namespace));
                Place { form: Form::Resource(*kind), collection, name: name.clone() }
            }
        })
    }

    /// The collections that hold a range; none for what this store does not have.
    pub fn collections(&self, range: &KeyRange) -> Vec<Collection> {
        let one = |form, path: String| vec![Collection { form, path, labels: None }];
        let record = |kind: Kind| Collection {
            form: Form::Record(kind),
            path: self.group.collection(kind, None),
            labels: None,
        };
        match range {
            KeyRange::Resources { kind: Kind::WorkloadEndpoint, namespace: Some(namespace), .. } => {
                one(Form::Pod, format!("/api/v1/namespaces/{namespace}/pods"))
            }
            KeyRange::Resources { kind: Kind::WorkloadEndpoint, namespace: None, .. } => {
                one(Form::Pod, "/api/v1/pods".into())
            }
            KeyRange::Resources { kind: Kind::Profile, .. } => [
                one(Form::Namespace, "/api/v1/namespaces".into()),
                one(Form::ServiceAccount, "/api/v1/serviceaccounts".into()),
            ]
            .concat(),
            KeyRange::Resources { kind: Kind::Node, .. } => one(Form::Node, "/api/v1/nodes".into()),
            KeyRange::Resources { kind: Kind::LiveMigration, .. } => Vec::new(),
            KeyRange::Resources { kind, namespace, .. } => {
                one(Form::Resource(*kind), self.group.collection(*kind, namespace.as_deref()))
            }
            KeyRange::Blocks { .. } => vec![record(Kind::IPAMBlock)],
            KeyRange::BlockAffinities { affinity, owner, ip_version } => {
                let mut labels = vec![format!("{}={affinity}", names::AFFINITY_TYPE_LABEL)];
                labels.extend(
                    owner
                        .as_ref()
                        .map(|owner| format!("{}={}", names::HOSTNAME_LABEL, names::hostname_hash(owner))),
                );
                labels.extend(ip_version.map(|version| format!("{}={version}", names::IP_VERSION_LABEL)));
                vec![Collection { labels: Some(labels.join(",")), ..record(Kind::BlockAffinity) }]
            }
            KeyRange::Handles => vec![record(Kind::IPAMHandle)],
            KeyRange::IpamConfig => vec![record(Kind::IPAMConfiguration)],
            KeyRange::FelixStatuses
            | KeyRange::WorkloadEndpointStatuses { .. }
            | KeyRange::HostEndpointStatuses { .. } => Vec::new(),
        }
    }

    /// What an object stands for; `None` if for nothing of ours.
    pub fn read(&self, form: Form, object: Json) -> Option<Found> {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Json::as_str).unwrap_or_default().to_owned();
        let (revision, uid) = (text("/metadata/resourceVersion").parse().ok()?, text("/metadata/uid"));
        let name = text("/metadata/name");
        let failed =
            |key: &Key, reason: String| Error::Parse { key: key.to_string(), value: name.clone(), reason };
        let (key, value) = match form {
            Form::Resource(kind) => {
                let (key, value) = object::read(self.group, kind, object);
                let value = value.map_err(|error| failed(&key, error.to_string()));
                (key, Some(value))
            }
            Form::Record(kind) => match records::read(kind, &object) {
                Record::Present(key, value) => {
                    let value = value.map_err(|reason| failed(&key, reason));
                    (key, Some(value))
                }
                Record::Deleted(key) => (key, None),
                Record::Nameless(reason) => {
                    tracing::warn!(%kind, name, reason, "an IPAM record cannot be read; correct it or delete it");
                    return None;
                }
            },
            Form::Pod => {
                let (key, endpoint) = pod::endpoint(&typed::<Pod>(object)?, &self.interface_prefix)?;
                let value = endpoint.map(|endpoint| Value::Resource(Resource::from(endpoint)));
                let value = value.map_err(|reason| failed(&key, reason));
                (key, Some(value))
            }
            Form::Namespace => {
                let (key, profile) = profile::from_namespace(&typed::<Labelled>(object)?);
                (key, Some(Ok(Value::Resource(profile.into()))))
            }
            Form::ServiceAccount => {
                let (key, profile) = profile::from_service_account(&typed::<Labelled>(object)?);
                (key, Some(Ok(Value::Resource(profile.into()))))
            }
            Form::Node => {
                let (key, node) = node::read(&typed::<CoreNode>(object)?, self.use_pod_cidr);
                (key, Some(Ok(Value::Resource(node.into()))))
            }
        };
        Some(Found { key, revision, uid, value })
    }
}

/// Kubernetes' own objects are what the API server says they are; one that is not is of no use.
fn typed<T: DeserializeOwned>(object: Json) -> Option<T> {
    serde_json::from_value(object)
        .inspect_err(
            |error| tracing::warn!(%error, "an object of Kubernetes cannot be read and is passed over"),
        )
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tortie_model::key::AffinityType;

    fn reader() -> Reader {
        Reader { group: ApiGroup::V1, interface_prefix: "cali".into(), use_pod_cidr: false }
    }

    #[test]
    fn keys_have_their_place() {
        let path = |key: Key| reader().place(&key).map(|place| place.path());
        let resource = |kind, namespace: &str, name: &str| path(Key::resource(kind, namespace, name));
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
                path(Key::Block { cidr: "10.65.3.0/26".parse().unwrap() }),
                Some("/apis/crd.projectcalico.org/v1/ipamblocks/10-65-3-0-26"),
            ),
            (path(Key::IpamConfig), Some("/apis/crd.projectcalico.org/v1/ipamconfigs/default")),
            (path(Key::CompactRevision), None),
            (path(Key::FelixStatus { region: String::new(), host: "n1".into() }), None),
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
    }

    #[test]
    fn objects_are_read_by_the_form_of_their_collection() {
        let set =
            json!({"metadata": {"name": "s", "resourceVersion": "7", "uid": "u"}, "spec": {"nets": []}});
        let found = reader().read(Form::Resource(Kind::GlobalNetworkSet), set).unwrap();
        assert_eq!(found.key, Key::resource(Kind::GlobalNetworkSet, "", "s"));
        assert_eq!((found.revision, found.uid.as_str()), (7.into(), "u"));
        assert!(matches!(found.value, Some(Ok(_))));
        let gone = json!({"metadata": {"name": "h", "resourceVersion": "7"},
            "spec": {"handleID": "H", "block": {}, "deleted": true}});
        let found = reader().read(Form::Record(Kind::IPAMHandle), gone).unwrap();
        assert!(found.value.is_none() && found.key == Key::Handle { id: "H".into() });
        let host_network = json!({"metadata": {"name": "p", "namespace": "x", "resourceVersion": "7"},
            "spec": {"nodeName": "n1", "hostNetwork": true}});
        assert!(reader().read(Form::Pod, host_network).is_none());
    }
}
