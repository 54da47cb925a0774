//! BGP settings of the whole cluster (`default`) or of one node (`node.<name>`).

use super::cel_settings;
use super::shared::{
    BGPPassword, MAX_ROUTE_PRIORITY, ProgramClusterRoutes, check_community, check_name, check_word,
};
use crate::names::DEFAULT_OBJECT_NAME;
use crate::object::NoStatus;
use crate::scalar::{ASNumber, GoDuration, StringEnum};
use crate::schema::forms;
use crate::validation::{FieldChecker, InclusiveRange, NetworkFamily, is_name_byte};
use crate::{Kind, ResourceSpec, TypedObject, string_enum};

string_enum! {
    /// Whether load balancer addresses are advertised only as part of their pool's route.
    pub enum ServiceLoadBalancerAggregation { Enabled, Disabled }
}

string_enum! {
    /// The addresses on which the BGP speaker listens.
    pub enum BindMode { None, NodeIP }
}

/// Maximum number of service networks of one type. The schema has the same bound: without it, the estimated
/// CEL cost would exceed the limit of Kubernetes.
const MAX_SERVICE_BLOCKS: usize = 10_000;

pub type BGPConfiguration = TypedObject<BGPConfigurationSpec>;

api_types! {
    #[schemars(extend("x-kubernetes-validations" = cel_settings::bgp_configuration()))]
    pub struct BGPConfigurationSpec {
        #[schemars(regex(pattern = "^(?i)(Trace|Debug|Info|Warning|Error|Fatal)?$"), extend("default" = "Info"))]
        pub log_severity_screen: String,
        pub node_to_node_mesh_enabled: Option<bool>,
        pub as_number: Option<ASNumber>,
        #[serde(rename = "serviceLoadBalancerIPs")]
        #[schemars(length(max = 10000))]
        pub service_load_balancer_ips: Vec<ServiceIPBlock>,
        #[serde(rename = "serviceExternalIPs")]
        #[schemars(length(max = 10000))]
        pub service_external_ips: Vec<ServiceIPBlock>,
        #[serde(rename = "serviceClusterIPs")]
        #[schemars(length(max = 10000))]
        pub service_cluster_ips: Vec<ServiceIPBlock>,
        #[schemars(extend("default" = "Enabled"))]
        pub service_load_balancer_aggregation: ServiceLoadBalancerAggregation,
        #[schemars(length(max = 500))]
        pub communities: Vec<Community>,
        #[schemars(length(max = 500))]
        pub prefix_advertisements: Vec<PrefixAdvertisement>,
        #[schemars(range(min = 1, max = 65535))]
        pub listen_port: u16,
        pub node_mesh_password: Option<BGPPassword>,
        pub node_mesh_max_restart_time: Option<GoDuration>,
        pub bind_mode: BindMode,
        #[schemars(schema_with = "forms::interface_globs", extend("x-kubernetes-list-type" = "set"))]
        pub ignored_interfaces: Vec<String>,
        #[serde(rename = "localWorkloadPeeringIPV4")]
        #[schemars(schema_with = "forms::optional_ipv4")]
        pub local_workload_peering_ip_v4: String,
        #[serde(rename = "localWorkloadPeeringIPV6")]
        #[schemars(schema_with = "forms::optional_ipv6")]
        pub local_workload_peering_ip_v6: String,
        pub program_cluster_routes: ProgramClusterRoutes,
        #[schemars(range(min = 1, max = 2147483646))]
        pub ipv4_normal_route_priority: Option<i64>,
        #[schemars(range(min = 1, max = 2147483646))]
        pub ipv6_normal_route_priority: Option<i64>,
    }

    /// Service addresses that may be advertised.
    #[schemars(extend("required" = ["cidr"]))]
    pub struct ServiceIPBlock {
        #[schemars(schema_with = "forms::masked_network_or_address")]
        pub cidr: String,
    }

    /// A named community for use in prefix advertisements.
    #[schemars(extend("required" = ["name", "value"]))]
    pub struct Community {
        #[schemars(schema_with = "forms::name")]
        pub name: String,
        #[schemars(schema_with = "forms::community")]
        pub value: String,
    }

    /// Communities to attach to routes within a prefix.
    #[schemars(extend("required" = ["cidr", "communities"]))]
    pub struct PrefixAdvertisement {
        #[schemars(schema_with = "forms::masked_network_or_address")]
        pub cidr: String,
        /// Community values, or names defined in `communities`.
        #[schemars(schema_with = "forms::communities_or_names")]
        pub communities: Vec<String>,
    }
}

impl ResourceSpec for BGPConfigurationSpec {
    const KIND: Kind = Kind::BGPConfiguration;
    type Status = NoStatus;

    fn set_defaults(configuration: &mut BGPConfiguration) {
        let spec = &mut configuration.spec;
        if spec.log_severity_screen.is_empty() {
            spec.log_severity_screen = "Info".to_owned();
        }
        if spec.service_load_balancer_aggregation.is_unset() {
            spec.service_load_balancer_aggregation = ServiceLoadBalancerAggregation::Enabled;
        }
    }

    fn object_rules() -> Vec<serde_json::Value> {
        cel_settings::bgp_configuration_object()
    }

    fn check(configuration: &BGPConfiguration, at: &FieldChecker<'_>) {
        let spec = &configuration.spec;
        let at = at.field("spec");
        check_word(
            &at.field("logSeverityScreen"),
            &spec.log_severity_screen,
            &["Trace", "Debug", "Info", "Warning", "Error", "Fatal"],
        );
        spec.check_services(&at);
        spec.check_communities(&at);
        spec.check_mesh(&at);
        at.field("bindMode").one_of(&spec.bind_mode);
        spec.check_interfaces(&at);
        for (key, text, family) in [
            ("localWorkloadPeeringIPV4", &spec.local_workload_peering_ip_v4, NetworkFamily::V4),
            ("localWorkloadPeeringIPV6", &spec.local_workload_peering_ip_v6, NetworkFamily::V6),
        ] {
            if !text.is_empty() {
                at.field(key).ip_of(text, family);
            }
        }
        at.field("programClusterRoutes").one_of(&spec.program_cluster_routes);
        for (key, priority) in [
            ("ipv4NormalRoutePriority", spec.ipv4_normal_route_priority),
            ("ipv6NormalRoutePriority", spec.ipv6_normal_route_priority),
        ] {
            if let Some(priority) = priority {
                at.field(key).within(priority, InclusiveRange(1, MAX_ROUTE_PRIORITY));
            }
        }
        if configuration.metadata.name != DEFAULT_OBJECT_NAME {
            spec.check_not_global(&at);
        }
    }
}

impl BGPConfigurationSpec {
    fn service_blocks(&self) -> [(&'static str, &[ServiceIPBlock]); 3] {
        [
            ("serviceLoadBalancerIPs", &self.service_load_balancer_ips),
            ("serviceExternalIPs", &self.service_external_ips),
            ("serviceClusterIPs", &self.service_cluster_ips),
        ]
    }

    fn check_services(&self, at: &FieldChecker<'_>) {
        for (key, blocks) in self.service_blocks() {
            at.field(key).max_items(blocks, MAX_SERVICE_BLOCKS);
            for (at, block) in at.field(key).each(blocks) {
                at.field("cidr").net(&block.cidr);
            }
        }
        at.field("serviceLoadBalancerAggregation").one_of(&self.service_load_balancer_aggregation);
    }

    fn check_communities(&self, at: &FieldChecker<'_>) {
        let place = at.field("communities");
        place.max_items(&self.communities, 500);
        place.ensure(
            self.communities.is_empty() || !self.prefix_advertisements.is_empty(),
            format_args!("{} items", self.communities.len()),
            "communities are used by prefixAdvertisements only, and there are none",
        );
        for (at, community) in place.each(&self.communities) {
            check_name(&at.field("name"), &community.name);
            check_community(&at.field("value"), &community.value);
        }
        let place = at.field("prefixAdvertisements");
        place.max_items(&self.prefix_advertisements, 500);
        for (at, advertisement) in place.each(&self.prefix_advertisements) {
            at.field("cidr").net(&advertisement.cidr);
            let place = at.field("communities");
            place.max_items(&advertisement.communities, 50);
            place.ensure(!advertisement.communities.is_empty(), "", "must have at least one community");
            for (at, community) in place.each(&advertisement.communities) {
                if !self.communities.iter().any(|defined| defined.name == *community) {
                    check_community(&at, community);
                }
            }
        }
    }

    fn check_mesh(&self, at: &FieldChecker<'_>) {
        if let Some(password) = &self.node_mesh_password {
            password.check(&at.field("nodeMeshPassword"));
        }
        if self.node_to_node_mesh_enabled == Some(false) {
            const REASON: &str = "cannot be set when nodeToNodeMeshEnabled is false";
            at.field("nodeMeshPassword").ensure(self.node_mesh_password.is_none(), "", REASON);
            if let Some(time) = self.node_mesh_max_restart_time {
                at.field("nodeMeshMaxRestartTime").fail(time, REASON);
            }
        }
    }

    fn check_interfaces(&self, at: &FieldChecker<'_>) {
        let place = at.field("ignoredInterfaces");
        for (at, interface) in place.each(&self.ignored_interfaces) {
            let fits = (1..=15).contains(&interface.len())
                && interface.bytes().all(|c| is_name_byte(c) || c == b'*')
                && interface != "*";
            at.ensure(
                fits,
                interface,
                "must be an interface name of up to 15 characters, in which * may stand for any text but not alone",
            );
        }
        place.unique(&self.ignored_interfaces);
    }

    fn check_not_global(&self, at: &FieldChecker<'_>) {
        const REASON: &str = "can only be set on the BGPConfiguration named default";
        if let Some(enabled) = self.node_to_node_mesh_enabled {
            at.field("nodeToNodeMeshEnabled").fail(enabled, REASON);
        }
        if let Some(number) = self.as_number {
            at.field("asNumber").fail(number, REASON);
        }
        for (key, blocks) in self.service_blocks() {
            let cidrs: Vec<&str> = blocks.iter().map(|block| block.cidr.as_str()).collect();
            at.field(key).ensure(blocks.is_empty(), cidrs.join(","), REASON);
        }
        at.field("nodeMeshPassword").ensure(self.node_mesh_password.is_none(), "", REASON);
        if let Some(time) = self.node_mesh_max_restart_time {
            at.field("nodeMeshMaxRestartTime").fail(time, REASON);
        }
    }
}
