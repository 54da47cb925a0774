//! Settings of IP address management. There is one object, `default`.

use super::cel_settings;
use super::shared::EnabledSwitch;
use crate::object::NoStatus;
use crate::validation::{FieldChecker, InclusiveRange};
use crate::{Kind, ResourceSpec, TypedObject};
use serde::Serializer;

pub type IPAMConfiguration = TypedObject<IPAMConfigurationSpec>;

api_types! {
    pub struct IPAMConfigurationSpec {
        /// Whether a node may only use addresses of its own blocks.
        pub strict_affinity: bool = always,
        /// 0 means that this setting imposes no limit.
        #[schemars(range(min = 0, max = 1000000), extend("default" = 0))]
        pub max_blocks_per_host: i64,
        /// Whether nodes claim blocks automatically. Always written, because a stored object without it means
        /// false.
        #[serde(serialize_with = "unset_is_false")]
        #[schemars(extend("default" = true))]
        pub auto_allocate_blocks: Option<bool> = always,
        /// Whether a virtual machine keeps its address across restarts; enabled by default.
        #[serde(rename = "kubeVirtVMAddressPersistence")]
        pub kubevirt_vm_address_persistence: EnabledSwitch,
        /// How long a released address is not assigned again.
        #[schemars(range(min = 0, max = 1200))]
        pub ip_cooldown_seconds: i64,
    }
}

impl ResourceSpec for IPAMConfigurationSpec {
    const KIND: Kind = Kind::IPAMConfiguration;
    type Status = NoStatus;

    fn set_defaults(configuration: &mut IPAMConfiguration) {
        configuration.spec.auto_allocate_blocks.get_or_insert(true);
    }

    fn object_rules() -> Vec<serde_json::Value> {
        cel_settings::singleton()
    }

    fn check_spec(&self, at: &FieldChecker<'_>) {
        at.field("maxBlocksPerHost").within(self.max_blocks_per_host, InclusiveRange(0, 1_000_000));
        at.field("kubeVirtVMAddressPersistence").one_of(&self.kubevirt_vm_address_persistence);
        at.field("ipCooldownSeconds").within(self.ip_cooldown_seconds, InclusiveRange(0, 1200));
    }
}

fn unset_is_false<S: Serializer>(value: &Option<bool>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(value.unwrap_or(false))
}
