//! The number of addresses that a handle has in each block, as stored in Kubernetes. The etcd format is
//! [`crate::ipam::Handle`].

use crate::object::{NoStatus, StatusForm};
use crate::scalar::is_default;
use crate::validation::FieldChecker;
use crate::{Kind, ResourceSpec, TypedObject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub type IPAMHandle = TypedObject<IPAMHandleSpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["handleID", "block"]))]
pub struct IPAMHandleSpec {
    /// The original identifier; the object's name is its lower-case form.
    #[serde(rename = "handleID")]
    #[schemars(length(min = 1))]
    pub handle_id: String,
    /// The number of addresses, by the block's CIDR.
    pub block: BTreeMap<String, i64>,
    #[serde(skip_serializing_if = "is_default")]
    pub deleted: bool,
}

impl ResourceSpec for IPAMHandleSpec {
    const KIND: Kind = Kind::IPAMHandle;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn check(handle: &IPAMHandle, at: &FieldChecker<'_>) {
        let (spec, at) = (&handle.spec, at.field("spec"));
        at.field("handleID").ensure(!spec.handle_id.is_empty(), "", "must not be empty");
        for cidr in spec.block.keys() {
            at.field("block").key(cidr).masked_cidr(cidr);
        }
    }
}
