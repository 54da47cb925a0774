//! The table of the parameters that take effect. Each is a field, so a wrong name does not compile.

use super::effect::{OWN_PARAMETERS, ParameterEffect};
use super::read::{
    ClientAuth, ClusterRoutes, DscpMark, FirstRouteTable, FlowEvaluation, FlowOffload, HealthTimeouts,
    HttpRulesWithoutProxy, L2Reachability, LogRate, LogSeverity, MarkMask, NatExclusions, OptionalParameter,
    RouteSource, SourceSpoofing, read,
};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use tortie_model::kinds::{FelixConfigurationSpec, FelixParameter};
use tortie_plan::{AllowAction, DenyAction, EndpointToHostAction, FailsafePort, PortInterval};

macro_rules! values {
    ($($field:ident $key:literal $type:ty, $when:ident $since:literal;)*) => {
        /// The parsed values of the parameters that take effect.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Values {$(
            pub $field: $type,
        )*}

        // A key that is not in the tables of parameters does not compile.
        $(const _: &FelixParameter = parameter($key);)*

        impl Values {
            /// Parses all parameters. `text` returns the text that is set for a key; `report_invalid`
            /// receives values that cannot be used, with the reason.
            pub(super) fn read<'a>(
                text: impl Fn(&str) -> Option<&'a str>,
                mut report_invalid: impl FnMut(&FelixParameter, String),
            ) -> Values {
                Values {$(
                    $field: read(const { parameter($key) }, text($key), &mut report_invalid),
                )*}
            }
        }

        pub(super) const TAKES_EFFECT: &[(&str, ParameterEffect)] = &[
            ("nodeSelector", ParameterEffect::Live { since: "0.1.0" }),
            $(($key, ParameterEffect::$when { since: $since }),)*
        ];
    };
}

impl Default for Values {
    fn default() -> Values {
        Values::read(|_| None, |_, _| {})
    }
}

#[rustfmt::skip]
values! {
    allow_ipip_packets_from_workloads "allowIPIPPacketsFromWorkloads" bool, Live "0.1.0";
    allow_vxlan_packets_from_workloads "allowVXLANPacketsFromWorkloads" bool, Live "0.1.0";
    clamp_mss "clampMSS" bool, Live "0.1.0";
    cut_denied_flows "cutDeniedFlows" bool, Live "0.1.0";
    dataplane_watchdog_timeout "dataplaneWatchdogTimeout" Duration, Live "0.2.0";
    debug_disable_log_dropping "debugDisableLogDropping" bool, Live "0.2.0";
    debug_host "debugHost" String, Live "0.2.0";
    debug_port "debugPort" Option<u16>, Live "0.2.0";
    default_endpoint_to_host_action "defaultEndpointToHostAction" EndpointToHostAction, Live "0.1.0";
    device_route_protocol "deviceRouteProtocol" u8, Live "0.1.0";
    device_route_source_address "deviceRouteSourceAddress" Option<IpAddr>, Live "0.1.0";
    device_route_source_address_ipv6 "deviceRouteSourceAddressIPv6" Option<IpAddr>, Live "0.1.0";
    disable_conntrack_invalid_check "disableConntrackInvalidCheck" bool, Live "0.1.0";
    endpoint_reporting_delay "endpointReportingDelay" Duration, Live "0.1.0";
    endpoint_reporting_enabled "endpointReportingEnabled" bool, Live "0.1.0";
    endpoint_status_path_prefix "endpointStatusPathPrefix" OptionalParameter<String>, Live "0.1.0";
    external_nodes_list "externalNodesList" Vec<IpNet>, Live "0.1.0";
    failsafe_inbound_host_ports "failsafeInboundHostPorts" Vec<FailsafePort>, Live "0.1.0";
    failsafe_outbound_host_ports "failsafeOutboundHostPorts" Vec<FailsafePort>, Live "0.1.0";
    flow_logs_goldmane_server "flowLogsGoldmaneServer" String, Live "0.2.0";
    flow_logs_local_reporter "flowLogsLocalReporter" bool, Live "0.2.0";
    flow_logs_policy_evaluation_mode "flowLogsPolicyEvaluationMode" FlowEvaluation, Live "0.2.0";
    floating_ips "floatingIPs" bool, Live "0.2.0";
    health_enabled "healthEnabled" bool, Live "0.1.0";
    health_host "healthHost" String, Live "0.1.0";
    health_port "healthPort" u16, Live "0.1.0";
    health_timeout_overrides "healthTimeoutOverrides" HealthTimeouts, Live "0.1.0";
    http_rules_without_proxy "httpRulesWithoutProxy" HttpRulesWithoutProxy, Live "0.2.0";
    interface_exclude "interfaceExclude" Vec<String>, Live "0.2.0";
    interface_prefix "interfacePrefix" Vec<String>, Live "0.1.0";
    interface_refresh_interval "interfaceRefreshInterval" Duration, Live "0.2.0";
    ip_forwarding "ipForwarding" bool, Live "0.1.0";
    ipip_enabled "ipipEnabled" OptionalParameter<bool>, Live "0.1.0";
    ipip_mtu "ipipMTU" u32, Live "0.1.0";
    ipsets_refresh_interval "ipsetsRefreshInterval" Duration, Live "0.2.0";
    iptables_filter_allow_action "iptablesFilterAllowAction" AllowAction, Live "0.2.0";
    iptables_filter_deny_action "iptablesFilterDenyAction" DenyAction, Live "0.1.0";
    iptables_mangle_allow_action "iptablesMangleAllowAction" AllowAction, Live "0.2.0";
    iptables_mark_mask "iptablesMarkMask" MarkMask, Live "0.2.0";
    iptables_nat_outgoing_interface_filter "iptablesNATOutgoingInterfaceFilter" String, Live "0.1.0";
    iptables_refresh_interval "iptablesRefreshInterval" Duration, Live "0.2.0";
    ipv4_elevated_route_priority "ipv4ElevatedRoutePriority" u32, Live "0.2.0";
    ipv4_normal_route_priority "ipv4NormalRoutePriority" u32, Live "0.1.0";
    ipv6_elevated_route_priority "ipv6ElevatedRoutePriority" u32, Live "0.2.0";
    ipv6_normal_route_priority "ipv6NormalRoutePriority" u32, Live "0.1.0";
    ipv6_support "ipv6Support" bool, Live "0.1.0";
    istio_ambient_mode "istioAmbientMode" bool, Live "0.2.0";
    istio_dscp_mark "istioDSCPMark" DscpMark, Live "0.2.0";
    live_migration_route_convergence_time "liveMigrationRouteConvergenceTime" Duration, Live "0.2.0";
    local_subnet_l2_reachability "localSubnetL2Reachability" L2Reachability, Live "0.2.0";
    local_subnet_l2_reachability_refresh_interval "localSubnetL2ReachabilityRefreshInterval" Duration, Live "0.2.0";
    log_action_rate_limit "logActionRateLimit" Option<LogRate>, Live "0.1.0";
    log_action_rate_limit_burst "logActionRateLimitBurst" u32, Live "0.1.0";
    log_debug_filename_regex "logDebugFilenameRegex" String, Live "0.2.0";
    log_file_path "logFilePath" OptionalParameter<String>, Live "0.2.0";
    log_severity_file "logSeverityFile" OptionalParameter<LogSeverity>, Live "0.2.0";
    log_severity_sys "logSeveritySys" OptionalParameter<LogSeverity>, Live "0.2.0";
    log_severity_screen "logSeverityScreen" LogSeverity, Live "0.2.0";
    log_prefix "logPrefix" String, Live "0.1.0";
    metadata_addr "metadataAddr" Option<Ipv4Addr>, Live "0.2.0";
    metadata_port "metadataPort" u16, Live "0.2.0";
    mtu_iface_pattern "mtuIfacePattern" String, Live "0.1.0";
    nat_outgoing_address "natOutgoingAddress" Option<Ipv4Addr>, Live "0.1.0";
    nat_outgoing_exclusions "natOutgoingExclusions" NatExclusions, Live "0.1.0";
    nat_port_range "natPortRange" Option<PortInterval>, Live "0.1.0";
    nftables_filter_allow_action "nftablesFilterAllowAction" OptionalParameter<AllowAction>, Live "0.2.0";
    nftables_filter_deny_action "nftablesFilterDenyAction" OptionalParameter<DenyAction>, Live "0.1.0";
    nftables_flow_table_offload "nftablesFlowTableOffload" FlowOffload, Live "0.2.0";
    nftables_mark_mask "nftablesMarkMask" OptionalParameter<MarkMask>, Live "0.2.0";
    nftables_mangle_allow_action "nftablesMangleAllowAction" OptionalParameter<AllowAction>, Live "0.2.0";
    nftables_refresh_interval "nftablesRefreshInterval" OptionalParameter<Duration>, Live "0.2.0";
    openstack_region "openstackRegion" String, Live "0.1.0";
    policy_sync_path_prefix "policySyncPathPrefix" String, Live "0.2.0";
    program_cluster_routes "programClusterRoutes" OptionalParameter<ClusterRoutes>, Live "0.1.0";
    prometheus_metrics_ca_file "prometheusMetricsCAFile" String, Live "0.2.0";
    prometheus_metrics_cert_file "prometheusMetricsCertFile" String, Live "0.2.0";
    prometheus_metrics_client_auth "prometheusMetricsClientAuth" ClientAuth, Live "0.2.0";
    prometheus_metrics_enabled "prometheusMetricsEnabled" bool, Live "0.1.0";
    prometheus_metrics_host "prometheusMetricsHost" String, Live "0.1.0";
    prometheus_metrics_key_file "prometheusMetricsKeyFile" String, Live "0.2.0";
    prometheus_metrics_port "prometheusMetricsPort" u16, Live "0.1.0";
    prometheus_process_metrics_enabled "prometheusProcessMetricsEnabled" bool, Live "0.2.0";
    prometheus_wireguard_metrics_enabled "prometheusWireGuardMetricsEnabled" bool, Live "0.2.0";
    remove_external_routes "removeExternalRoutes" bool, Live "0.1.0";
    reporting_interval "reportingInterval" Duration, Live "0.1.0";
    reporting_ttl "reportingTTL" Duration, Live "0.1.0";
    route_refresh_interval "routeRefreshInterval" Duration, Live "0.2.0";
    route_source "routeSource" RouteSource, Live "0.1.0";
    route_sync_disabled "routeSyncDisabled" bool, Live "0.1.0";
    route_table_range "routeTableRange" OptionalParameter<FirstRouteTable>, Live "0.1.0";
    route_table_ranges "routeTableRanges" FirstRouteTable, Live "0.1.0";
    service_loop_prevention "serviceLoopPrevention" Option<DenyAction>, Live "0.1.0";
    typha_addr "typhaAddr" String, AtStart "0.1.0";
    typha_ca_file "typhaCAFile" String, AtStart "0.1.0";
    typha_cert_file "typhaCertFile" String, AtStart "0.1.0";
    typha_cn "typhaCN" String, AtStart "0.1.0";
    typha_key_file "typhaKeyFile" String, AtStart "0.1.0";
    typha_k8s_namespace "typhaK8sNamespace" String, AtStart "0.1.0";
    typha_k8s_service_name "typhaK8sServiceName" String, AtStart "0.1.0";
    typha_uri_san "typhaURISAN" String, AtStart "0.1.0";
    typha_read_timeout "typhaReadTimeout" Duration, AtStart "0.1.0";
    typha_write_timeout "typhaWriteTimeout" Duration, AtStart "0.1.0";
    vxlan_enabled "vxlanEnabled" OptionalParameter<bool>, Live "0.1.0";
    vxlan_mtu "vxlanMTU" u32, Live "0.1.0";
    vxlan_mtu_v6 "vxlanMTUV6" u32, Live "0.1.0";
    vxlan_port "vxlanPort" u16, Live "0.1.0";
    vxlan_vni "vxlanVNI" u32, Live "0.1.0";
    wireguard_enabled "wireguardEnabled" bool, Live "0.1.0";
    wireguard_enabled_v6 "wireguardEnabledV6" bool, Live "0.1.0";
    wireguard_host_encryption_enabled "wireguardHostEncryptionEnabled" bool, Live "0.1.0";
    wireguard_interface_name "wireguardInterfaceName" String, Live "0.1.0";
    wireguard_interface_name_v6 "wireguardInterfaceNameV6" String, Live "0.1.0";
    wireguard_keep_alive "wireguardKeepAlive" Duration, Live "0.1.0";
    wireguard_listening_port "wireguardListeningPort" u16, Live "0.1.0";
    wireguard_listening_port_v6 "wireguardListeningPortV6" u16, Live "0.1.0";
    wireguard_mtu "wireguardMTU" u32, Live "0.1.0";
    wireguard_mtu_v6 "wireguardMTUV6" u32, Live "0.1.0";
    wireguard_routing_rule_priority "wireguardRoutingRulePriority" u32, Live "0.1.0";
    wireguard_threading_enabled "wireguardThreadingEnabled" bool, Live "0.1.0";
    workload_source_spoofing "workloadSourceSpoofing" SourceSpoofing, Live "0.1.0";
}

/// Finds a parameter at compile time; an unknown key fails the compilation.
const fn parameter(key: &str) -> &'static FelixParameter {
    let tables = [FelixConfigurationSpec::PARAMETERS, OWN_PARAMETERS];
    let mut table = 0;
    while table < tables.len() {
        let mut index = 0;
        while index < tables[table].len() {
            if is_equal(tables[table][index].key, key) {
                return &tables[table][index];
            }
            index += 1;
        }
        table += 1;
    }
    #[allow(clippy::panic, reason = "at compile time")]
    {
        panic!("no parameter has this key")
    }
}

/// Compares texts at compile time, where `==` is not available.
const fn is_equal(one: &str, other: &str) -> bool {
    let one = one.as_bytes();
    let other = other.as_bytes();
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}
