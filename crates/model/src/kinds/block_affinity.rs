//! The affinity of an address block to a node, as a resource. In etcd the allocator stores
//! [`crate::ipam::BlockAffinity`] instead.

use super::shared::check_name;
use crate::object::NoStatus;
use crate::schema::forms;
use crate::validation::FieldChecker;
use crate::{Kind, ResourceSpec, TypedObject, string_enum};

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

api_types! {
    #[schemars(extend("required" = ["state", "node", "cidr"]))]
    pub struct BlockAffinitySpec {
        #[schemars(extend("enum" = ["", "confirmed", "pending", "pendingDeletion"]))]
        pub state: BlockAffinityState = always,
        #[schemars(schema_with = "forms::name")]
        pub node: String = always,
        #[serde(rename = "type")]
        pub type_: BlockAffinityType,
        #[schemars(schema_with = "forms::masked_network")]
        pub cidr: String = always,
        /// Set by the software while the object is being deleted; users must not set it.
        #[schemars(extend("default" = false))]
        pub deleted: bool,
    }
}

impl ResourceSpec for BlockAffinitySpec {
    const KIND: Kind = Kind::BlockAffinity;
    type Status = NoStatus;

    fn check_spec(&self, at: &FieldChecker<'_>) {
        at.field("state").one_of(&self.state);
        check_name(&at.field("node"), &self.node);
        at.field("type").one_of(&self.type_);
        at.field("cidr").masked_cidr(&self.cidr);
        at.field("deleted").ensure(!self.deleted, self.deleted, "cannot be set");
    }
}
