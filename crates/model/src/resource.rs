//! A resource of any kind, for code that handles all kinds alike, such as the store and the command line.

use crate::kinds::*;
use crate::object::{DecodeError, TypedObject};
use crate::{API_VERSION, Kind, ObjectMeta, ValidationError};
use serde_json::Value;

macro_rules! resource {
    ($($kind:ident)*) => {
        /// A resource of any kind. Boxed, because specs range from a few bytes to a few kilobytes.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Resource { $($kind(Box<$kind>),)* }

        impl Resource {
            /// Returns an empty object of a kind.
            pub fn new(kind: Kind) -> Resource {
                match kind { $(Kind::$kind => Resource::$kind(Box::default()),)* }
            }

            pub fn kind(&self) -> Kind {
                match self { $(Resource::$kind(_) => Kind::$kind,)* }
            }

            pub fn metadata(&self) -> &ObjectMeta {
                match self { $(Resource::$kind(object) => &object.metadata,)* }
            }

            pub fn metadata_mut(&mut self) -> &mut ObjectMeta {
                match self { $(Resource::$kind(object) => &mut object.metadata,)* }
            }

            /// Returns the object as JSON, with the fields in the order in which Calico writes them.
            pub fn to_value(&self) -> Value {
                match self { $(Resource::$kind(object) => object.to_value(),)* }
            }

            /// Sets the defaults that are stored for omitted fields.
            pub fn set_defaults(&mut self) {
                match self { $(Resource::$kind(object) => object.set_defaults(),)* }
            }

            /// Checks every rule of the kind and returns all violations together.
            pub fn validate(&self) -> Result<(), ValidationError> {
                match self { $(Resource::$kind(object) => object.validate(),)* }
            }

            /// Decodes user input. An unknown field is an error.
            pub fn from_user(value: Value) -> Result<Resource, DecodeError> {
                match kind_of(&value)? { $(Kind::$kind => Ok(Resource::$kind(Box::new(TypedObject::from_user(value)?))),)* }
            }

            /// Decodes user input. Unknown fields are dropped and returned as a list of paths.
            pub fn from_user_tolerant(value: Value) -> Result<(Resource, Vec<String>), DecodeError> {
                match kind_of(&value)? { $(Kind::$kind => {
                    let (object, unknown) = TypedObject::from_user_tolerant(value)?;
                    Ok((Resource::$kind(Box::new(object)), unknown))
                })* }
            }

            /// Decodes a stored object, which a newer version may have written: unknown fields are preserved.
            pub fn from_store(kind: Kind, value: Value) -> Result<Resource, DecodeError> {
                match kind { $(Kind::$kind => Ok(Resource::$kind(Box::new(TypedObject::from_store(value)?))),)* }
            }
        }

        /// Returns the schema of objects of a kind, and whether they have a status.
        pub(crate) fn schema_of(kind: Kind) -> (Value, bool) {
            match kind { $(Kind::$kind => crate::schema::object::<_>(std::marker::PhantomData::<$kind>),)* }
        }

        $(
            impl From<$kind> for Resource {
                fn from(object: $kind) -> Resource { Resource::$kind(Box::new(object)) }
            }

            impl TryFrom<Resource> for $kind {
                type Error = Resource;
                fn try_from(resource: Resource) -> Result<$kind, Resource> {
                    match resource {
                        Resource::$kind(object) => Ok(*object),
                        other => Err(other),
                    }
                }
            }
        )*
    };
}

resource! {
    IPPool IPReservation BGPConfiguration BGPPeer BGPFilter FelixConfiguration GlobalNetworkPolicy NetworkPolicy
    StagedGlobalNetworkPolicy StagedNetworkPolicy StagedKubernetesNetworkPolicy GlobalNetworkSet NetworkSet
    HostEndpoint WorkloadEndpoint Profile Node Tier ClusterInformation KubeControllersConfiguration
    CalicoNodeStatus IPAMConfiguration BlockAffinity IPAMBlock IPAMHandle LiveMigration
}

impl Resource {
    /// Formats the object for error messages: `Kind(name)` or `Kind(namespace/name)`.
    pub fn identify(&self) -> String {
        let meta = self.metadata();
        self.kind().identify(&meta.namespace, &meta.name)
    }
}

/// A list as the command line prints it: `kind: IPPoolList`.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceList {
    pub kind: Kind,
    pub resource_version: String,
    pub items: Vec<Resource>,
}

impl ResourceList {
    pub fn to_value(&self) -> Value {
        serde_json::json!({
            "kind": self.kind.list_name(),
            "apiVersion": API_VERSION,
            "metadata": {"resourceVersion": self.resource_version},
            "items": self.items.iter().map(Resource::to_value).collect::<Vec<_>>(),
        })
    }
}

/// Returns the kind that an object declares, if its kind and apiVersion are supported.
pub fn kind_of(value: &Value) -> Result<Kind, DecodeError> {
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
    let version = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    Kind::from_name(kind)
        .filter(|_| version == API_VERSION)
        .ok_or_else(|| DecodeError::UnknownKind { kind: kind.to_owned(), version: version.to_owned() })
}
