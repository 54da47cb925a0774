//! Settings of the node's daemon: for all nodes (`default`), for one (`node.<name>`), or for the nodes that a
//! selector matches.

mod accepts;
mod parameters;
mod parts;

pub use accepts::{AcceptedValues, WrittenText};
pub use parameters::{FelixConfigurationSpec, FelixParameter};
pub use parts::{BPFConntrackTimeouts, HealthTimeoutOverride, ProtoPort, RouteTableRange};

use crate::kinds::cel_settings;
use crate::names::DEFAULT_OBJECT_NAME;
use crate::{FieldChecker, Kind, NoStatus, ResourceSpec, TypedObject};

pub type FelixConfiguration = TypedObject<FelixConfigurationSpec>;

impl ResourceSpec for FelixConfigurationSpec {
    const KIND: Kind = Kind::FelixConfiguration;
    type Status = NoStatus;

    fn set_defaults(configuration: &mut FelixConfiguration) {
        let spec = &mut configuration.spec;
        if let Some(enabled) = spec.bpf_connect_time_load_balancing_enabled {
            let mode = if enabled { "Enabled" } else { "Disabled" };
            spec.bpf_connect_time_load_balancing = Some(mode.to_owned());
            spec.bpf_host_networked_nat_without_ctlb = Some("Disabled".to_owned());
        }
        for (field, default) in [
            (&mut spec.floating_ips, "Disabled"),
            (&mut spec.bpf_connect_time_load_balancing, "TCP"),
            (&mut spec.bpf_host_networked_nat_without_ctlb, "Enabled"),
            (&mut spec.nftables_mode, "Auto"),
            (&mut spec.nftables_flow_table_offload, "Disabled"),
        ] {
            field.get_or_insert_with(|| default.to_owned());
        }
    }

    fn object_rules() -> Vec<serde_json::Value> {
        cel_settings::felix_configuration_object()
    }

    fn check(configuration: &FelixConfiguration, at: &FieldChecker<'_>) {
        let spec = &configuration.spec;
        let at = at.field("spec");
        spec.check_parameters(&at);
        let name = configuration.metadata.name.as_str();
        let by_name = name == DEFAULT_OBJECT_NAME || name.starts_with("node.");
        at.field("nodeSelector").ensure(
            spec.node_selector.is_empty() || !by_name,
            &spec.node_selector,
            "cannot be set here: the objects named default and node.<name> already say which nodes they are for",
        );
        at.field("routeTableRange").ensure(
            spec.route_table_range.is_none() || spec.route_table_ranges.is_none(),
            "",
            "cannot be set together with routeTableRanges, which replaces it",
        );
    }
}
