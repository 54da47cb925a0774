//! A block of addresses as stored in Kubernetes. The etcd format is [`crate::ipam::Block`].

use crate::object::NoStatus;
use crate::schema::forms;
use crate::validation::{FieldChecker, is_name_byte};
use crate::{Kind, ResourceSpec, TypedObject};
use std::collections::BTreeMap;

pub type IPAMBlock = TypedObject<IPAMBlockSpec>;

api_types! {
    #[schemars(extend("required" = ["cidr", "allocations", "unallocated", "attributes", "strictAffinity"]))]
    pub struct IPAMBlockSpec {
        #[schemars(schema_with = "forms::masked_network")]
        pub cidr: String = always,
        /// `host:<node>` or `virtual:<name>`.
        #[schemars(regex(pattern = r"^(host|virtual):[a-zA-Z0-9\.\-_]+$"))]
        pub affinity: Option<String>,
        pub affinity_claim_time: Option<String>,
        /// One entry per address: an index into `attributes`, or null if the address is free.
        #[schemars(extend("items" = {"type": "integer", "nullable": true}))]
        pub allocations: Vec<Option<i64>> = always,
        /// Ordinals of free addresses, in the order in which they are assigned.
        pub unallocated: Vec<i64> = always,
        pub attributes: Vec<IPAMBlockAttribute> = always,
        pub sequence_number: u64 = always,
        pub sequence_number_for_allocation: BTreeMap<String, u64> = always,
        pub deleted: bool = always,
        /// Obsolete, but the schema of other versions requires it.
        pub strict_affinity: bool = always,
    }

    /// The owner of an allocated address, or the time of its release.
    pub struct IPAMBlockAttribute {
        #[serde(rename = "handle_id")]
        pub handle_id: Option<String>,
        pub secondary: BTreeMap<String, String>,
        #[serde(rename = "alternateOwnerAttrs")]
        pub alternate_owner: BTreeMap<String, String>,
        pub released_at: Option<String>,
    }
}

impl ResourceSpec for IPAMBlockSpec {
    const KIND: Kind = Kind::IPAMBlock;
    type Status = NoStatus;

    fn check_spec(&self, at: &FieldChecker<'_>) {
        at.field("cidr").masked_cidr(&self.cidr);
        if let Some(affinity) = &self.affinity {
            let owner = affinity.strip_prefix("host:").or_else(|| affinity.strip_prefix("virtual:"));
            at.field("affinity").ensure(
                owner.is_some_and(|owner| !owner.is_empty() && owner.bytes().all(is_name_byte)),
                affinity,
                "must be host:<name> or virtual:<name>",
            );
        }
    }
}
