//! The affinity of an address block to a node, as a resource. In etcd the allocator stores
//! [`crate::ipam::BlockAffinity`] instead.

use super::shared::check_name;
use crate::object::{NoStatus, StatusForm};
use crate::scalar::is_default;
use crate::schema::forms;
use crate::validation::FieldChecker;
use crate::{Kind, ResourceSpec, TypedObject, string_enum};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

string_enum! {
    /// The state of a claim; an empty state counts as confirmed.
    pub enum BlockAffinityState {
        Confirmed = "confirmed",
        Pending = "pending",
        PendingDeletion = "pendingDeletion",
    }
}

string_enum! {
    pub enum BlockAffinityType { Host = "host", Virtual = "virtual" }
}

pub type BlockAffinity = TypedObject<BlockAffinitySpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["state", "node", "cidr"]))]
pub struct BlockAffinitySpec {
    #[schemars(extend("enum" = ["", "confirmed", "pending", "pendingDeletion"]))]
    pub state: BlockAffinityState,
    #[schemars(schema_with = "forms::name")]
    pub node: String,
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub type_: BlockAffinityType,
    #[schemars(schema_with = "forms::masked_network")]
    pub cidr: String,
    /// Set by the software while the object is being deleted; users must not set it.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub deleted: bool,
}

impl ResourceSpec for BlockAffinitySpec {
    const KIND: Kind = Kind::BlockAffinity;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn check(affinity: &BlockAffinity, at: &FieldChecker<'_>) {
        let (spec, at) = (&affinity.spec, at.field("spec"));
        at.field("state").one_of(&spec.state);
        check_name(&at.field("node"), &spec.node);
        at.field("type").one_of(&spec.type_);
        at.field("cidr").masked_cidr(&spec.cidr);
        at.field("deleted").ensure(!spec.deleted, spec.deleted, "cannot be set");
    }
}
