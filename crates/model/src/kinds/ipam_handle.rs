//! The number of addresses that a handle has in each block, as stored in Kubernetes. The etcd format is
//! [`crate::ipam::Handle`].

use crate::object::NoStatus;
use crate::validation::FieldChecker;
use crate::{Kind, ResourceSpec, TypedObject};
use std::collections::BTreeMap;

pub type IPAMHandle = TypedObject<IPAMHandleSpec>;

api_types! {
    #[schemars(extend("required" = ["handleID", "block"]))]
    pub struct IPAMHandleSpec {
        /// The original identifier; the object's name is its lower-case form.
        #[serde(rename = "handleID")]
        #[schemars(length(min = 1))]
        pub handle_id: String = always,
        /// The number of addresses, by the block's CIDR.
        pub block: BTreeMap<String, i64> = always,
        pub deleted: bool,
    }
}

impl ResourceSpec for IPAMHandleSpec {
    const KIND: Kind = Kind::IPAMHandle;
    type Status = NoStatus;

    fn check_spec(&self, at: &FieldChecker<'_>) {
        at.field("handleID").ensure(!self.handle_id.is_empty(), "", "must not be empty");
        for cidr in self.block.keys() {
            at.field("block").key(cidr).masked_cidr(cidr);
        }
    }
}
