//! The table of parameters: field, JSON key, the name in the environment and in files if it differs, type,
//! accepted values, default.

use super::accepts::Accepts::{self, *};
use super::accepts::{Parameter, WrittenText};
use super::parts::{BPFConntrackTimeouts, HealthTimeoutOverride, ProtoPort, RouteTableRange};
use crate::Checker;
use crate::kinds::cel_settings;
use crate::kinds::shared::MAX_ROUTE_PRIORITY;
use crate::scalar::{Dscp, Duration, Port};
use crate::schema::make_structural;
use crate::validation::Family::{V4, V6};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A parameter of the node's daemon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FelixParameter {
    /// The JSON key in a FelixConfiguration.
    pub key: &'static str,
    /// The name in the environment (after `FELIX_`) and in configuration files; case-insensitive.
    pub name: &'static str,
    pub accepts: Accepts,
    /// The default; empty if no default exists or if it is determined at run time.
    pub default: &'static str,
}

type Flag = Option<bool>;
type Number = Option<i64>;
type Span = Option<Duration>;
type Text = String;
type StringList = Option<Vec<String>>;
type Ports = Option<Vec<Port>>;
type Choice = Option<String>;

macro_rules! parameters {
    ($($field:ident $key:literal $(= $name:literal)? $type:ty, $accepts:expr, $default:literal;)*) => {
        /// All fields are optional. A field that is not set here may be set by another configuration source,
        /// or has a default.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        #[schemars(transform = describe, extend("x-kubernetes-validations" = cel_settings::felix_configuration()))]
        pub struct FelixConfigurationSpec {$(
            #[serde(rename = $key, skip_serializing_if = "Parameter::is_unset")]
            pub $field: $type,
        )*}

        impl FelixConfigurationSpec {
            /// Every parameter that a FelixConfiguration can set.
            pub const PARAMETERS: &'static [FelixParameter] = &[$(FelixParameter {
                key: $key,
                name: parameters!(@name $key $($name)?),
                accepts: $accepts,
                default: $default,
            },)*];

            /// For each parameter, the function that adds the constraints of its type to the schema.
            const TYPES: &'static [fn(&mut Map<String, Value>)] = &[$(<$type as Parameter>::describe,)*];

            /// Returns the parameters that are set, with their values in the syntax of environment variables.
            pub fn set(&self) -> Vec<(&'static FelixParameter, String)> {
                let texts = [$(Parameter::text(&self.$field),)*];
                Self::PARAMETERS.iter().zip(texts).filter(|(_, text)| !text.is_empty()).collect()
            }

            pub(super) fn check_parameters(&self, at: &Checker<'_>) {
                $(Parameter::check(&self.$field, &$accepts, &at.field($key));)*
            }
        }
    };
    (@name $key:literal) => { $key };
    (@name $key:literal $name:literal) => { $name };
}

/// Adds accepted values and defaults to the schema.
fn describe(schema: &mut Schema) {
    let Some(properties) = schema.get_mut("properties") else { return };
    for (parameter, describe_type) in
        FelixConfigurationSpec::PARAMETERS.iter().zip(FelixConfigurationSpec::TYPES)
    {
        let Some(property) = properties.get_mut(parameter.key) else { continue };
        make_structural(property);
        if let Value::Object(property) = property {
            describe_type(property);
            parameter.describe(property);
        }
    }
}

impl FelixParameter {
    fn describe(&self, property: &mut Map<String, Value>) {
        if !self.default.is_empty() {
            property.insert("description".to_owned(), json!(format!("Default: {}", self.default)));
        }
        self.accepts.describe(property);
    }
}

const SWITCH: Accepts = Exactly(&["Enabled", "Disabled"]);
const LOG_LEVEL: Accepts = OneOf(&["Trace", "Debug", "Info", "Warning", "Error", "Fatal"]);
const ALLOW_ACTION: Accepts = OneOf(&["Accept", "Return"]);
const DENY_ACTION: Accepts = OneOf(&["Drop", "Reject"]);
const PORT: Accepts = Within(0, 65535);
const SIZE: Accepts = Within(0, u32::MAX as i64);
const PRIORITY: Accepts = Within(1, MAX_ROUTE_PRIORITY);
const INTERFACES: Accepts = Form("^[a-zA-Z0-9_.+-]{1,15}$");
const CLUSTER_ROUTES: Accepts = Exactly(&["Enabled", "Disabled", "EnabledIPIPOnly", "EnabledNoEncapOnly"]);

#[rustfmt::skip]
parameters! {
    node_selector "nodeSelector" Text, Selector, "";
    use_internal_dataplane_driver "useInternalDataplaneDriver" Flag, Any, "true";
    dataplane_driver "dataplaneDriver" Text, Any, "calico-iptables-plugin";
    dataplane_watchdog_timeout "dataplaneWatchdogTimeout" Span, Any, "90s";
    ipv6_support "ipv6Support" = "Ipv6Support" Flag, Any, "true";
    route_refresh_interval "routeRefreshInterval" Span, Any, "90s";
    interface_refresh_interval "interfaceRefreshInterval" Span, Any, "90s";
    iptables_refresh_interval "iptablesRefreshInterval" Span, Any, "3m";
    iptables_post_write_check_interval "iptablesPostWriteCheckInterval" = "IptablesPostWriteCheckIntervalSecs" Span, Any, "5s";
    iptables_lock_probe_interval "iptablesLockProbeInterval" = "IptablesLockProbeIntervalMillis" Span, Any, "50ms";
    feature_detect_override "featureDetectOverride" Text, Form("^([a-zA-Z0-9-_]+=(true|false|),)*([a-zA-Z0-9-_]+=(true|false|))?$"), "";
    feature_gates "featureGates" Text, Form("^([a-zA-Z0-9-_]+=([^=]+),)*([a-zA-Z0-9-_]+=([^=]+))?$"), "";
    ipsets_refresh_interval "ipsetsRefreshInterval" Span, Any, "90s";
    max_ipset_size "maxIpsetSize" Number, SIZE, "1048576";
    iptables_backend "iptablesBackend" Choice, OneOf(&["Legacy", "NFT", "Auto"]), "Auto";
    xdp_refresh_interval "xdpRefreshInterval" Span, Any, "90s";
    netlink_timeout "netlinkTimeout" = "NetlinkTimeoutSecs" Span, Any, "10s";
    metadata_addr "metadataAddr" Text, Any, "127.0.0.1";
    metadata_port "metadataPort" Number, PORT, "8775";
    openstack_region "openstackRegion" Text, Region, "";
    interface_prefix "interfacePrefix" Text, Any, "cali";
    interface_exclude "interfaceExclude" Text, Any, "kube-ipvs0";
    chain_insert_mode "chainInsertMode" Text, OneOf(&["Insert", "Append"]), "Insert";
    default_endpoint_to_host_action "defaultEndpointToHostAction" Text, OneOf(&["Drop", "Return", "Accept"]), "Drop";
    iptables_filter_allow_action "iptablesFilterAllowAction" Text, ALLOW_ACTION, "Accept";
    iptables_mangle_allow_action "iptablesMangleAllowAction" Text, ALLOW_ACTION, "Accept";
    iptables_filter_deny_action "iptablesFilterDenyAction" Text, DENY_ACTION, "Drop";
    log_prefix "logPrefix" Text, Form("^([a-zA-Z0-9%: /_-])*$"), "calico-packet";
    log_action_rate_limit "logActionRateLimit" Choice, Form("^[1-9][0-9]{0,3}/(second|minute|hour|day)$"), "";
    log_action_rate_limit_burst "logActionRateLimitBurst" Number, Within(0, 9999), "5";
    log_file_path "logFilePath" Text, Any, "/var/log/calico/felix.log";
    log_severity_file "logSeverityFile" Text, LOG_LEVEL, "Info";
    log_severity_screen "logSeverityScreen" Text, LOG_LEVEL, "Info";
    log_severity_sys "logSeveritySys" Text, LOG_LEVEL, "Info";
    log_debug_filename_regex "logDebugFilenameRegex" Text, Regex, "";
    ipip_enabled "ipipEnabled" = "IpInIpEnabled" Flag, Any, "";
    ipip_mtu "ipipMTU" = "IpInIpMtu" Number, Any, "0";
    vxlan_enabled "vxlanEnabled" Flag, Any, "";
    vxlan_mtu "vxlanMTU" Number, Any, "0";
    vxlan_mtu_v6 "vxlanMTUV6" Number, Any, "0";
    vxlan_port "vxlanPort" Number, PORT, "4789";
    vxlan_vni "vxlanVNI" Number, Any, "4096";
    allow_vxlan_packets_from_workloads "allowVXLANPacketsFromWorkloads" Flag, Any, "false";
    allow_ipip_packets_from_workloads "allowIPIPPacketsFromWorkloads" Flag, Any, "false";
    reporting_interval "reportingInterval" = "ReportingIntervalSecs" Span, Any, "30s";
    reporting_ttl "reportingTTL" = "ReportingTTLSecs" Span, Any, "90s";
    endpoint_reporting_enabled "endpointReportingEnabled" Flag, Any, "false";
    endpoint_reporting_delay "endpointReportingDelay" = "EndpointReportingDelaySecs" Span, Any, "1s";
    endpoint_status_path_prefix "endpointStatusPathPrefix" Text, Any, "/var/run/calico";
    iptables_mark_mask "iptablesMarkMask" Number, Mask, "0xffff0000";
    disable_conntrack_invalid_check "disableConntrackInvalidCheck" Flag, Any, "false";
    health_enabled "healthEnabled" Flag, Any, "false";
    health_host "healthHost" Choice, Any, "localhost";
    health_port "healthPort" Number, PORT, "9099";
    health_timeout_overrides "healthTimeoutOverrides" Vec<HealthTimeoutOverride>, Any, "";
    prometheus_metrics_enabled "prometheusMetricsEnabled" Flag, Any, "false";
    prometheus_metrics_host "prometheusMetricsHost" Text, Any, "";
    prometheus_metrics_port "prometheusMetricsPort" Number, PORT, "9091";
    prometheus_go_metrics_enabled "prometheusGoMetricsEnabled" Flag, Any, "true";
    prometheus_process_metrics_enabled "prometheusProcessMetricsEnabled" Flag, Any, "true";
    prometheus_wireguard_metrics_enabled "prometheusWireGuardMetricsEnabled" Flag, Any, "true";
    prometheus_metrics_ca_file "prometheusMetricsCAFile" Choice, Any, "";
    prometheus_metrics_cert_file "prometheusMetricsCertFile" Choice, Any, "";
    prometheus_metrics_key_file "prometheusMetricsKeyFile" Choice, Any, "";
    prometheus_metrics_client_auth "prometheusMetricsClientAuth" Choice, Any, "";
    failsafe_inbound_host_ports "failsafeInboundHostPorts" Option<Vec<ProtoPort>>, Any,
        "tcp:22,udp:68,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667";
    failsafe_outbound_host_ports "failsafeOutboundHostPorts" Option<Vec<ProtoPort>>, Any,
        "udp:53,udp:67,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667";
    kube_node_port_ranges "kubeNodePortRanges" Ports, Any, "30000:32767";
    policy_sync_path_prefix "policySyncPathPrefix" Text, Any, "";
    usage_reporting_enabled "usageReportingEnabled" Flag, Any, "true";
    usage_reporting_initial_delay "usageReportingInitialDelay" = "UsageReportingInitialDelaySecs" Span, Any, "5m";
    usage_reporting_interval "usageReportingInterval" = "UsageReportingIntervalSecs" Span, Any, "24h";
    nat_port_range "natPortRange" Option<Port>, Any, "";
    nat_outgoing_address "natOutgoingAddress" Text, Address(V4), "";
    nat_outgoing_exclusions "natOutgoingExclusions" Choice, Exactly(&["IPPoolsOnly", "IPPoolsAndHostIPs"]), "IPPoolsOnly";
    device_route_source_address "deviceRouteSourceAddress" Text, Address(V4), "";
    device_route_source_address_ipv6 "deviceRouteSourceAddressIPv6" Text, Address(V6), "";
    device_route_protocol "deviceRouteProtocol" Number, Within(0, 255), "3";
    remove_external_routes "removeExternalRoutes" Flag, Any, "true";
    program_cluster_routes "programClusterRoutes" Choice, CLUSTER_ROUTES, "EnabledIPIPOnly";
    ipv4_normal_route_priority "ipv4NormalRoutePriority" Number, PRIORITY, "1024";
    ipv4_elevated_route_priority "ipv4ElevatedRoutePriority" Number, PRIORITY, "512";
    ipv6_normal_route_priority "ipv6NormalRoutePriority" Number, PRIORITY, "1024";
    ipv6_elevated_route_priority "ipv6ElevatedRoutePriority" Number, PRIORITY, "512";
    live_migration_route_convergence_time "liveMigrationRouteConvergenceTime" Span, Any, "30s";
    ip_forwarding "ipForwarding" Text, SWITCH, "Enabled";
    external_nodes_list "externalNodesList" = "ExternalNodesCIDRList" StringList, Networks(Some(V4)), "";
    debug_memory_profile_path "debugMemoryProfilePath" Text, Any, "";
    debug_disable_log_dropping "debugDisableLogDropping" Flag, Any, "false";
    debug_simulate_calc_graph_hang_after "debugSimulateCalcGraphHangAfter" Span, Any, "";
    debug_simulate_dataplane_hang_after "debugSimulateDataplaneHangAfter" Span, Any, "";
    debug_simulate_dataplane_apply_delay "debugSimulateDataplaneApplyDelay" Span, Any, "";
    debug_host "debugHost" Choice, Any, "localhost";
    debug_port "debugPort" Number, PORT, "";
    iptables_nat_outgoing_interface_filter "iptablesNATOutgoingInterfaceFilter" Text, INTERFACES, "";
    sidecar_acceleration_enabled "sidecarAccelerationEnabled" Flag, Any, "false";
    xdp_enabled "xdpEnabled" Flag, Any, "true";
    generic_xdp_enabled "genericXDPEnabled" Flag, Any, "false";
    nftables_mode "nftablesMode" Choice, Exactly(&["Enabled", "Disabled", "Auto"]), "Auto";
    nftables_flow_table_offload "nftablesFlowTableOffload" Choice, Exactly(&["All", "Disabled"]), "Disabled";
    nftables_refresh_interval "nftablesRefreshInterval" Span, Any, "3m";
    nftables_filter_allow_action "nftablesFilterAllowAction" Text, ALLOW_ACTION, "Accept";
    nftables_mangle_allow_action "nftablesMangleAllowAction" Text, ALLOW_ACTION, "Accept";
    nftables_filter_deny_action "nftablesFilterDenyAction" Text, DENY_ACTION, "Drop";
    nftables_mark_mask "nftablesMarkMask" Number, Mask, "0xffff0000";
    bpf_enabled "bpfEnabled" Flag, Any, "false";
    bpf_disable_unprivileged "bpfDisableUnprivileged" Flag, Any, "true";
    bpf_jit_hardening "bpfJITHardening" Choice, Exactly(&["Auto", "Strict"]), "Auto";
    bpf_log_level "bpfLogLevel" WrittenText, OneOf(&["Off", "Info", "Debug"]), "Off";
    bpf_conntrack_log_level "bpfConntrackLogLevel" Text, Exactly(&["Off", "Debug"]), "Off";
    bpf_conntrack_mode "bpfConntrackMode" = "BPFConntrackCleanupMode" Choice, Exactly(&["Auto", "Userspace", "BPFProgram"]), "Userspace";
    bpf_log_filters "bpfLogFilters" Option<BTreeMap<String, String>>, Any, "";
    bpf_ctlb_log_filter "bpfCTLBLogFilter" Text, Any, "";
    bpf_data_iface_pattern "bpfDataIfacePattern" Text, Regex, "^((en|wl|ww|sl|ib)[Popsx].*|(eth|wlan|wwan|bond).*)";
    bpf_l3_iface_pattern "bpfL3IfacePattern" Text, Regex, "";
    bpf_connect_time_load_balancing_enabled "bpfConnectTimeLoadBalancingEnabled" Flag, Any, "";
    bpf_connect_time_load_balancing "bpfConnectTimeLoadBalancing" Choice, Exactly(&["TCP", "Enabled", "Disabled"]), "TCP";
    bpf_host_networked_nat_without_ctlb "bpfHostNetworkedNATWithoutCTLB" Choice, SWITCH, "Enabled";
    bpf_external_service_mode "bpfExternalServiceMode" Text, OneOf(&["Tunnel", "DSR"]), "Tunnel";
    bpf_dsr_optout_cidrs "bpfDSROptoutCIDRs" StringList, Networks(None), "";
    bpf_ext_to_service_connmark "bpfExtToServiceConnmark" Number, SIZE, "0";
    bpf_kube_proxy_iptables_cleanup_enabled "bpfKubeProxyIptablesCleanupEnabled" Flag, Any, "true";
    bpf_kube_proxy_min_sync_period "bpfKubeProxyMinSyncPeriod" Span, Any, "1s";
    bpf_kube_proxy_healthz_port "bpfKubeProxyHealthzPort" Number, PORT, "10256";
    bpf_psnat_ports "bpfPSNATPorts" Option<Port>, Any, "20000:29999";
    bpf_map_size_nat_frontend "bpfMapSizeNATFrontend" Number, SIZE, "65536";
    bpf_map_size_nat_backend "bpfMapSizeNATBackend" Number, SIZE, "262144";
    bpf_map_size_nat_affinity "bpfMapSizeNATAffinity" Number, SIZE, "65536";
    bpf_map_size_route "bpfMapSizeRoute" Number, SIZE, "262144";
    bpf_map_size_conntrack "bpfMapSizeConntrack" Number, SIZE, "512000";
    bpf_map_size_per_cpu_conntrack "bpfMapSizePerCpuConntrack" Number, SIZE, "0";
    bpf_map_size_conntrack_scaling "bpfMapSizeConntrackScaling" Text, OneOf(&["Disabled", "DoubleIfFull"]), "DoubleIfFull";
    bpf_map_size_conntrack_cleanup_queue "bpfMapSizeConntrackCleanupQueue" Number, Within(1, u32::MAX as i64), "";
    bpf_map_size_ip_sets "bpfMapSizeIPSets" Number, SIZE, "1048576";
    bpf_map_size_if_state "bpfMapSizeIfState" Number, SIZE, "1000";
    bpf_host_conntrack_bypass "bpfHostConntrackBypass" Flag, Any, "false";
    bpf_enforce_rpf "bpfEnforceRPF" Text, OneOf(&["Disabled", "Strict", "Loose"]), "Loose";
    bpf_policy_debug_enabled "bpfPolicyDebugEnabled" Flag, Any, "true";
    bpf_force_track_packets_from_ifaces "bpfForceTrackPacketsFromIfaces" StringList, INTERFACES, "docker+";
    bpf_disable_gro_for_ifaces "bpfDisableGROForIfaces" Text, Regex, "";
    bpf_exclude_cidrs_from_nat "bpfExcludeCIDRsFromNAT" StringList, Networks(None), "";
    bpf_redirect_to_peer "bpfRedirectToPeer" Text, Exactly(&["Enabled", "Disabled", "L2Only"]), "Enabled";
    bpf_attach_type "bpfAttachType" Choice, Exactly(&["Netkit", "TCX", "TC"]), "Netkit";
    bpf_export_buffer_size_mb "bpfExportBufferSizeMB" Number, SIZE, "1";
    bpf_profiling "bpfProfiling" Text, SWITCH, "Disabled";
    bpf_conntrack_timeouts "bpfConntrackTimeouts" Option<BPFConntrackTimeouts>, Any,
        "CreationGracePeriod=10s,TCPSynSent=20s,TCPEstablished=1h,TCPFinsSeen=Auto,TCPResetSeen=40s,UDPTimeout=60s,GenericTimeout=10m,ICMPTimeout=5s";
    bpf_ip_frag_timeout "bpfIPFragTimeout" Span, Any, "";
    bpf_ip_fragment_reassembly_enabled "bpfIPFragmentReassemblyEnabled" Flag, Any, "true";
    bpf_maglev_max_endpoints_per_service "bpfMaglevMaxEndpointsPerService" Number, SIZE, "100";
    bpf_maglev_max_services "bpfMaglevMaxServices" Number, SIZE, "100";
    bpf_overlay_host_source_ip "bpfOverlayHostSourceIP" Choice, Exactly(&["TunnelAddress", "HostAddress"]), "TunnelAddress";
    cgroup_v2_path "cgroupV2Path" Text, Any, "";
    route_source "routeSource" Text, OneOf(&["WorkloadIPs", "CalicoIPAM"]), "CalicoIPAM";
    route_table_ranges "routeTableRanges" Option<Vec<RouteTableRange>>, Any, "1-250";
    route_table_range "routeTableRange" Option<RouteTableRange>, Any, "";
    route_sync_disabled "routeSyncDisabled" Flag, Any, "false";
    wireguard_enabled "wireguardEnabled" Flag, Any, "false";
    wireguard_enabled_v6 "wireguardEnabledV6" Flag, Any, "false";
    wireguard_threading_enabled "wireguardThreadingEnabled" Flag, Any, "false";
    wireguard_listening_port "wireguardListeningPort" Number, Within(1, 65535), "51820";
    wireguard_listening_port_v6 "wireguardListeningPortV6" Number, Within(1, 65535), "51821";
    wireguard_routing_rule_priority "wireguardRoutingRulePriority" Number, Within(1, 32765), "99";
    wireguard_interface_name "wireguardInterfaceName" Text, Interface, "wireguard.cali";
    wireguard_interface_name_v6 "wireguardInterfaceNameV6" Text, Interface, "wg-v6.cali";
    wireguard_mtu "wireguardMTU" Number, Any, "0";
    wireguard_mtu_v6 "wireguardMTUV6" Number, Any, "0";
    wireguard_host_encryption_enabled "wireguardHostEncryptionEnabled" Flag, Any, "false";
    wireguard_keep_alive "wireguardKeepAlive" = "WireguardPersistentKeepAlive" Span, Any, "0s";
    aws_src_dst_check "awsSrcDstCheck" Choice, Exactly(&["DoNothing", "Enable", "Disable"]), "DoNothing";
    service_loop_prevention "serviceLoopPrevention" Text, OneOf(&["Drop", "Reject", "Disabled"]), "Drop";
    workload_source_spoofing "workloadSourceSpoofing" Text, OneOf(&["Disabled", "Any"]), "Disabled";
    mtu_iface_pattern "mtuIfacePattern" Text, Regex, "^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)";
    require_mtu_file "requireMTUFile" Flag, Any, "false";
    floating_ips "floatingIPs" Choice, SWITCH, "Disabled";
    windows_manage_firewall_rules "windowsManageFirewallRules" Choice, SWITCH, "Disabled";
    istio_ambient_mode "istioAmbientMode" Choice, SWITCH, "Disabled";
    istio_dscp_mark "istioDSCPMark" Option<Dscp>, Any, "23";
    local_subnet_l2_reachability "localSubnetL2Reachability" Choice, Exactly(&["Disabled", "PodsAndLoadBalancers"]), "Disabled";
    local_subnet_l2_reachability_refresh_interval "localSubnetL2ReachabilityRefreshInterval" Span, Any, "120s";
    flow_logs_flush_interval "flowLogsFlushInterval" Span, Any, "5m";
    flow_logs_collector_debug_trace "flowLogsCollectorDebugTrace" Flag, Any, "false";
    flow_logs_goldmane_server "flowLogsGoldmaneServer" Choice, Any, "";
    flow_logs_local_reporter "flowLogsLocalReporter" Choice, SWITCH, "Disabled";
    flow_logs_policy_evaluation_mode "flowLogsPolicyEvaluationMode" Choice, Exactly(&["None", "Continuous"]), "Continuous";
    go_gc_threshold "goGCThreshold" Number, Within(-1, i32::MAX as i64), "40";
    go_memory_limit_mb "goMemoryLimitMB" Number, Within(-1, i32::MAX as i64), "-1";
    go_max_procs "goMaxProcs" Number, Within(-1, i32::MAX as i64), "-1";
}
