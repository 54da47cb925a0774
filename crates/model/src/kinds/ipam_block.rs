//! A block of addresses as stored in Kubernetes. The etcd format is [`crate::ipam::Block`].

use crate::object::{NoStatus, StatusForm};
use crate::scalar::is_default;
use crate::schema::forms;
use crate::validation::FieldChecker;
use crate::{Kind, ResourceSpec, TypedObject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub type IPAMBlock = TypedObject<IPAMBlockSpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["cidr", "allocations", "unallocated", "attributes", "strictAffinity"]))]
pub struct IPAMBlockSpec {
    #[schemars(schema_with = "forms::masked_network")]
    pub cidr: String,
    /// `host:<node>` or `virtual:<name>`.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(regex(pattern = r"^(host|virtual):[a-zA-Z0-9\.\-_]+$"))]
    pub affinity: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub affinity_claim_time: Option<String>,
    /// One entry per address: an index into `attributes`, or null if the address is free.
    #[schemars(extend("items" = {"type": "integer", "nullable": true}))]
    pub allocations: Vec<Option<i64>>,
    /// Ordinals of free addresses, in the order in which they are assigned.
    pub unallocated: Vec<i64>,
    pub attributes: Vec<IPAMBlockAttribute>,
    pub sequence_number: u64,
    pub sequence_number_for_allocation: BTreeMap<String, u64>,
    pub deleted: bool,
    /// Obsolete, but the schema of other versions requires it.
    pub strict_affinity: bool,
}

/// The owner of an allocated address, or the time of its release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct IPAMBlockAttribute {
    #[serde(skip_serializing_if = "is_default")]
    pub handle_id: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub secondary: BTreeMap<String, String>,
    #[serde(rename = "alternateOwnerAttrs", skip_serializing_if = "is_default")]
    pub alternate_owner: BTreeMap<String, String>,
    #[serde(rename = "releasedAt", skip_serializing_if = "is_default")]
    pub released_at: Option<String>,
}

impl ResourceSpec for IPAMBlockSpec {
    const KIND: Kind = Kind::IPAMBlock;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn check(block: &IPAMBlock, at: &FieldChecker<'_>) {
        let (spec, at) = (&block.spec, at.field("spec"));
        at.field("cidr").masked_cidr(&spec.cidr);
        if let Some(affinity) = &spec.affinity {
            let owner = affinity.strip_prefix("host:").or_else(|| affinity.strip_prefix("virtual:"));
            let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
            at.field("affinity").ensure(
                owner.is_some_and(|owner| !owner.is_empty() && owner.bytes().all(allowed)),
                affinity,
                "must be host:<name> or virtual:<name>",
            );
        }
    }
}
