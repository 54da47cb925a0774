//! Sets of networks that rules select by label.

use crate::schema::forms;
use crate::{FieldChecker, Kind, NoStatus, ObjectMeta, ResourceSpec, TypedObject};

/// Rejected on network sets: it would make a set appear to belong to another namespace.
pub(crate) const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";

/// Networks for rules in any namespace.
pub type GlobalNetworkSet = TypedObject<GlobalNetworkSetSpec>;

/// Networks for rules that select its namespace.
pub type NetworkSet = TypedObject<NetworkSetSpec>;

api_types! {
    pub struct GlobalNetworkSetSpec {
        #[schemars(schema_with = "forms::networks_or_addresses", extend("x-kubernetes-list-type" = "set"))]
        pub nets: Vec<String>,
    }

    pub struct NetworkSetSpec {
        #[schemars(schema_with = "forms::networks_or_addresses", extend("x-kubernetes-list-type" = "set"))]
        pub nets: Vec<String>,
    }
}

impl ResourceSpec for GlobalNetworkSetSpec {
    const KIND: Kind = Kind::GlobalNetworkSet;
    type Status = NoStatus;

    fn check(object: &TypedObject<Self>, at: &FieldChecker<'_>) {
        check_set(at, &object.metadata, &object.spec.nets);
    }
}

impl ResourceSpec for NetworkSetSpec {
    const KIND: Kind = Kind::NetworkSet;
    type Status = NoStatus;

    fn check(object: &TypedObject<Self>, at: &FieldChecker<'_>) {
        check_set(at, &object.metadata, &object.spec.nets);
    }
}

fn check_set(at: &FieldChecker<'_>, metadata: &ObjectMeta, nets: &[String]) {
    if let Some(value) = metadata.labels.get(NAMESPACE_LABEL) {
        at.field("metadata").field("labels").fail(
            format_args!("{NAMESPACE_LABEL}={value}"),
            format!("label {NAMESPACE_LABEL} is not allowed"),
        );
    }
    // Host bits and duplicates are harmless: nets are masked and merged where they are used.
    for (at, net) in at.field("spec").field("nets").each(nets) {
        at.cidr(net);
    }
}
