//! The table of parameters: field, JSON key, the name in the environment and in files if it differs, type,
//! accepted values, default.

use super::accepts::AcceptedValues::{self, *};
use super::accepts::{ParameterType, WrittenText};
use super::parts::{BPFConntrackTimeouts, HealthTimeoutOverride, ProtoPort, RouteTableRange};
use crate::FieldChecker;
use crate::kinds::cel_settings;
use crate::kinds::shared::MAX_ROUTE_PRIORITY;
use crate::scalar::{Dscp, GoDuration, Port};
use crate::schema::make_structural;
use crate::validation::NetworkFamily::{V4, V6};
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
    pub accepts: AcceptedValues,
    /// The default; empty if no default exists or if it is determined at run time.
    pub default: &'static str,
}

type OptionalFlag = Option<bool>;
type OptionalNumber = Option<i64>;
type OptionalDuration = Option<GoDuration>;
type PlainText = String;
type StringList = Option<Vec<String>>;
type OptionalPorts = Option<Vec<Port>>;
type OptionalChoice = Option<String>;

macro_rules! parameters {
    ($($field:ident $key:literal $(= $name:literal)? $type:ty, $accepts:expr, $default:literal;)*) => {
        /// All fields are optional. A field that is not set here may be set by another configuration source,
        /// or has a default.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        #[schemars(transform = describe, extend("x-kubernetes-validations" = cel_settings::felix_configuration()))]
        pub struct FelixConfigurationSpec {$(
            #[serde(rename = $key, skip_serializing_if = "ParameterType::is_unset")]
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
            const TYPES: &'static [fn(&mut Map<String, Value>)] = &[$(<$type as ParameterType>::describe,)*];

            /// Returns the parameters that are set, with their values in the syntax of environment variables.
            pub fn set(&self) -> Vec<(&'static FelixParameter, String)> {
                let texts = [$(ParameterType::text(&self.$field),)*];
                Self::PARAMETERS.iter().zip(texts).filter(|(_, text)| !text.is_empty()).collect()
            }

            pub(super) fn check_parameters(&self, at: &FieldChecker<'_>) {
                $(ParameterType::check(&self.$field, &$accepts, &at.field($key));)*
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

const SWITCH: AcceptedValues = Exactly(&["Enabled", "Disabled"]);
const LOG_LEVEL: AcceptedValues = OneOf(&["Trace", "Debug", "Info", "Warning", "Error", "Fatal"]);
const ALLOW_ACTION: AcceptedValues = OneOf(&["Accept", "Return"]);
const DENY_ACTION: AcceptedValues = OneOf(&["Drop", "Reject"]);
const PORT: AcceptedValues = Within(0, 65535);
const SIZE: AcceptedValues = Within(0, u32::MAX as i64);
const PRIORITY: AcceptedValues = Within(1, MAX_ROUTE_PRIORITY);
const INTERFACES: AcceptedValues = Form("^[a-zA-Z0-9_.+-]{1,15}$");
const CLUSTER_ROUTES: AcceptedValues =
    Exactly(&["Enabled", "Disabled", "EnabledIPIPOnly", "EnabledNoEncapOnly"]);

#[rustfmt::skip]
parameters! {
    node_selector "nodeSelector" PlainText, Selector, "";
    use_internal_dataplane_driver "useInternalDataplaneDriver" OptionalFlag, Any, "true";
    dataplane_driver "dataplaneDriver" PlainText, Any, "calico-iptables-plugin";
    dataplane_watchdog_timeout "dataplaneWatchdogTimeout" OptionalDuration, Any, "90s";
    ipv6_support "ipv6Support" = "Ipv6Support" OptionalFlag, Any, "true";
    route_refresh_interval "routeRefreshInterval" OptionalDuration, Any, "90s";
    interface_refresh_interval "interfaceRefreshInterval" OptionalDuration, Any, "90s";
    iptables_refresh_interval "iptablesRefreshInterval" OptionalDuration, Any, "3m";
    iptables_post_write_check_interval "iptablesPostWriteCheckInterval" = "IptablesPostWriteCheckIntervalSecs" OptionalDuration, Any, "5s";
    iptables_lock_probe_interval "iptablesLockProbeInterval" = "IptablesLockProbeIntervalMillis" OptionalDuration, Any, "50ms";
    feature_detect_override "featureDetectOverride" PlainText, Form("^([a-zA-Z0-9-_]+=(true|false|),)*([a-zA-Z0-9-_]+=(true|false|))?$"), "";
    feature_gates "featureGates" PlainText, Form("^([a-zA-Z0-9-_]+=([^=]+),)*([a-zA-Z0-9-_]+=([^=]+))?$"), "";
    ipsets_refresh_interval "ipsetsRefreshInterval" OptionalDuration, Any, "90s";
    max_ipset_size "maxIpsetSize" OptionalNumber, SIZE, "1048576";
    iptables_backend "iptablesBackend" OptionalChoice, OneOf(&["Legacy", "NFT", "Auto"]), "Auto";
    xdp_refresh_interval "xdpRefreshInterval" OptionalDuration, Any, "90s";
    netlink_timeout "netlinkTimeout" = "NetlinkTimeoutSecs" OptionalDuration, Any, "10s";
    metadata_addr "metadataAddr" PlainText, Any, "127.0.0.1";
    metadata_port "metadataPort" OptionalNumber, PORT, "8775";
    openstack_region "openstackRegion" PlainText, Region, "";
    interface_prefix "interfacePrefix" PlainText, Any, "cali";
    interface_exclude "interfaceExclude" PlainText, Any, "kube-ipvs0";
    chain_insert_mode "chainInsertMode" PlainText, OneOf(&["Insert", "Append"]), "Insert";
    default_endpoint_to_host_action "defaultEndpointToHostAction" PlainText, OneOf(&["Drop", "Return", "Accept"]), "Drop";
    iptables_filter_allow_action "iptablesFilterAllowAction" PlainText, ALLOW_ACTION, "Accept";
    iptables_mangle_allow_action "iptablesMangleAllowAction" PlainText, ALLOW_ACTION, "Accept";
    iptables_filter_deny_action "iptablesFilterDenyAction" PlainText, DENY_ACTION, "Drop";
    log_prefix "logPrefix" PlainText, Form("^([a-zA-Z0-9%: /_-])*$"), "calico-packet";
    log_action_rate_limit "logActionRateLimit" OptionalChoice, Form("^[1-9][0-9]{0,3}/(second|minute|hour|day)$"), "";
    log_action_rate_limit_burst "logActionRateLimitBurst" OptionalNumber, Within(0, 9999), "5";
    log_file_path "logFilePath" PlainText, Any, "/var/log/calico/felix.log";
    log_severity_file "logSeverityFile" PlainText, LOG_LEVEL, "Info";
    log_severity_screen "logSeverityScreen" PlainText, LOG_LEVEL, "Info";
    log_severity_sys "logSeveritySys" PlainText, LOG_LEVEL, "Info";
    log_debug_filename_regex "logDebugFilenameRegex" PlainText, Regex, "";
    ipip_enabled "ipipEnabled" = "IpInIpEnabled" OptionalFlag, Any, "";
    ipip_mtu "ipipMTU" = "IpInIpMtu" OptionalNumber, Any, "0";
    vxlan_enabled "vxlanEnabled" OptionalFlag, Any, "";
    vxlan_mtu "vxlanMTU" OptionalNumber, Any, "0";
    vxlan_mtu_v6 "vxlanMTUV6" OptionalNumber, Any, "0";
    vxlan_port "vxlanPort" OptionalNumber, PORT, "4789";
    vxlan_vni "vxlanVNI" OptionalNumber, Any, "4096";
    allow_vxlan_packets_from_workloads "allowVXLANPacketsFromWorkloads" OptionalFlag, Any, "false";
    allow_ipip_packets_from_workloads "allowIPIPPacketsFromWorkloads" OptionalFlag, Any, "false";
    reporting_interval "reportingInterval" = "ReportingIntervalSecs" OptionalDuration, Any, "30s";
    reporting_ttl "reportingTTL" = "ReportingTTLSecs" OptionalDuration, Any, "90s";
    endpoint_reporting_enabled "endpointReportingEnabled" OptionalFlag, Any, "false";
    endpoint_reporting_delay "endpointReportingDelay" = "EndpointReportingDelaySecs" OptionalDuration, Any, "1s";
    endpoint_status_path_prefix "endpointStatusPathPrefix" PlainText, Any, "/var/run/calico";
    iptables_mark_mask "iptablesMarkMask" OptionalNumber, Mask, "0xffff0000";
    disable_conntrack_invalid_check "disableConntrackInvalidCheck" OptionalFlag, Any, "false";
    health_enabled "healthEnabled" OptionalFlag, Any, "false";
    health_host "healthHost" OptionalChoice, Any, "localhost";
    health_port "healthPort" OptionalNumber, PORT, "9099";
    health_timeout_overrides "healthTimeoutOverrides" Vec<HealthTimeoutOverride>, Any, "";
    prometheus_metrics_enabled "prometheusMetricsEnabled" OptionalFlag, Any, "false";
    prometheus_metrics_host "prometheusMetricsHost" PlainText, Any, "";
    prometheus_metrics_port "prometheusMetricsPort" OptionalNumber, PORT, "9091";
    prometheus_go_metrics_enabled "prometheusGoMetricsEnabled" OptionalFlag, Any, "true";
    prometheus_process_metrics_enabled "prometheusProcessMetricsEnabled" OptionalFlag, Any, "true";
    prometheus_wireguard_metrics_enabled "prometheusWireGuardMetricsEnabled" OptionalFlag, Any, "true";
    prometheus_metrics_ca_file "prometheusMetricsCAFile" OptionalChoice, Any, "";
    prometheus_metrics_cert_file "prometheusMetricsCertFile" OptionalChoice, Any, "";
    prometheus_metrics_key_file "prometheusMetricsKeyFile" OptionalChoice, Any, "";
    prometheus_metrics_client_auth "prometheusMetricsClientAuth" OptionalChoice, Any, "";
    failsafe_inbound_host_ports "failsafeInboundHostPorts" Option<Vec<ProtoPort>>, Any,
        "tcp:22,udp:68,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667";
    failsafe_outbound_host_ports "failsafeOutboundHostPorts" Option<Vec<ProtoPort>>, Any,
        "udp:53,udp:67,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667";
    kube_node_port_ranges "kubeNodePortRanges" OptionalPorts, Any, "30000:32767";
    policy_sync_path_prefix "policySyncPathPrefix" PlainText, Any, "";
    // Not in Calico, where the kernel ignores HTTP conditions.
    http_rules_without_proxy "httpRulesWithoutProxy" OptionalChoice, Exactly(&["Ignore", "Allow"]), "Ignore";
    usage_reporting_enabled "usageReportingEnabled" OptionalFlag, Any, "true";
    usage_reporting_initial_delay "usageReportingInitialDelay" = "UsageReportingInitialDelaySecs" OptionalDuration, Any, "5m";
    usage_reporting_interval "usageReportingInterval" = "UsageReportingIntervalSecs" OptionalDuration, Any, "24h";
    nat_port_range "natPortRange" Option<Port>, Any, "";
    nat_outgoing_address "natOutgoingAddress" PlainText, Address(V4), "";
    nat_outgoing_exclusions "natOutgoingExclusions" OptionalChoice, Exactly(&["IPPoolsOnly", "IPPoolsAndHostIPs"]), "IPPoolsOnly";
    device_route_source_address "deviceRouteSourceAddress" PlainText, Address(V4), "";
    device_route_source_address_ipv6 "deviceRouteSourceAddressIPv6" PlainText, Address(V6), "";
    device_route_protocol "deviceRouteProtocol" OptionalNumber, Within(0, 255), "3";
    remove_external_routes "removeExternalRoutes" OptionalFlag, Any, "true";
    program_cluster_routes "programClusterRoutes" OptionalChoice, CLUSTER_ROUTES, "EnabledIPIPOnly";
    ipv4_normal_route_priority "ipv4NormalRoutePriority" OptionalNumber, PRIORITY, "1024";
    ipv4_elevated_route_priority "ipv4ElevatedRoutePriority" OptionalNumber, PRIORITY, "512";
    ipv6_normal_route_priority "ipv6NormalRoutePriority" OptionalNumber, PRIORITY, "1024";
    ipv6_elevated_route_priority "ipv6ElevatedRoutePriority" OptionalNumber, PRIORITY, "512";
    live_migration_route_convergence_time "liveMigrationRouteConvergenceTime" OptionalDuration, Any, "30s";
    ip_forwarding "ipForwarding" PlainText, SWITCH, "Enabled";
    external_nodes_list "externalNodesList" = "ExternalNodesCIDRList" StringList, Networks(Some(V4)), "";
    debug_memory_profile_path "debugMemoryProfilePath" PlainText, Any, "";
    debug_disable_log_dropping "debugDisableLogDropping" OptionalFlag, Any, "false";
    debug_simulate_calc_graph_hang_after "debugSimulateCalcGraphHangAfter" OptionalDuration, Any, "";
    debug_simulate_dataplane_hang_after "debugSimulateDataplaneHangAfter" OptionalDuration, Any, "";
    debug_simulate_dataplane_apply_delay "debugSimulateDataplaneApplyDelay" OptionalDuration, Any, "";
    debug_host "debugHost" OptionalChoice, Any, "localhost";
    debug_port "debugPort" OptionalNumber, PORT, "";
    iptables_nat_outgoing_interface_filter "iptablesNATOutgoingInterfaceFilter" PlainText, INTERFACES, "";
    sidecar_acceleration_enabled "sidecarAccelerationEnabled" OptionalFlag, Any, "false";
    xdp_enabled "xdpEnabled" OptionalFlag, Any, "true";
    generic_xdp_enabled "genericXDPEnabled" OptionalFlag, Any, "false";
    nftables_mode "nftablesMode" OptionalChoice, Exactly(&["Enabled", "Disabled", "Auto"]), "Auto";
    nftables_flow_table_offload "nftablesFlowTableOffload" OptionalChoice, Exactly(&["All", "Disabled"]), "Disabled";
    nftables_refresh_interval "nftablesRefreshInterval" OptionalDuration, Any, "3m";
    nftables_filter_allow_action "nftablesFilterAllowAction" PlainText, ALLOW_ACTION, "Accept";
    nftables_mangle_allow_action "nftablesMangleAllowAction" PlainText, ALLOW_ACTION, "Accept";
    nftables_filter_deny_action "nftablesFilterDenyAction" PlainText, DENY_ACTION, "Drop";
    nftables_mark_mask "nftablesMarkMask" OptionalNumber, Mask, "0xffff0000";
    bpf_enabled "bpfEnabled" OptionalFlag, Any, "false";
    bpf_disable_unprivileged "bpfDisableUnprivileged" OptionalFlag, Any, "true";
    bpf_jit_hardening "bpfJITHardening" OptionalChoice, Exactly(&["Auto", "Strict"]), "Auto";
    bpf_log_level "bpfLogLevel" WrittenText, OneOf(&["Off", "Info", "Debug"]), "Off";
    bpf_conntrack_log_level "bpfConntrackLogLevel" PlainText, Exactly(&["Off", "Debug"]), "Off";
    bpf_conntrack_mode "bpfConntrackMode" = "BPFConntrackCleanupMode" OptionalChoice, Exactly(&["Auto", "Userspace", "BPFProgram"]), "Userspace";
    bpf_log_filters "bpfLogFilters" Option<BTreeMap<String, String>>, Any, "";
    bpf_ctlb_log_filter "bpfCTLBLogFilter" PlainText, Any, "";
    bpf_data_iface_pattern "bpfDataIfacePattern" PlainText, Regex, "^((en|wl|ww|sl|ib)[Popsx].*|(eth|wlan|wwan|bond).*)";
    bpf_l3_iface_pattern "bpfL3IfacePattern" PlainText, Regex, "";
    bpf_connect_time_load_balancing_enabled "bpfConnectTimeLoadBalancingEnabled" OptionalFlag, Any, "";
    bpf_connect_time_load_balancing "bpfConnectTimeLoadBalancing" OptionalChoice, Exactly(&["TCP", "Enabled", "Disabled"]), "TCP";
    bpf_host_networked_nat_without_ctlb "bpfHostNetworkedNATWithoutCTLB" OptionalChoice, SWITCH, "Enabled";
    bpf_external_service_mode "bpfExternalServiceMode" PlainText, OneOf(&["Tunnel", "DSR"]), "Tunnel";
    bpf_dsr_optout_cidrs "bpfDSROptoutCIDRs" StringList, Networks(None), "";
    bpf_ext_to_service_connmark "bpfExtToServiceConnmark" OptionalNumber, SIZE, "0";
    bpf_kube_proxy_iptables_cleanup_enabled "bpfKubeProxyIptablesCleanupEnabled" OptionalFlag, Any, "true";
    bpf_kube_proxy_min_sync_period "bpfKubeProxyMinSyncPeriod" OptionalDuration, Any, "1s";
    bpf_kube_proxy_healthz_port "bpfKubeProxyHealthzPort" OptionalNumber, PORT, "10256";
    bpf_psnat_ports "bpfPSNATPorts" Option<Port>, Any, "20000:29999";
    bpf_map_size_nat_frontend "bpfMapSizeNATFrontend" OptionalNumber, SIZE, "65536";
    bpf_map_size_nat_backend "bpfMapSizeNATBackend" OptionalNumber, SIZE, "262144";
    bpf_map_size_nat_affinity "bpfMapSizeNATAffinity" OptionalNumber, SIZE, "65536";
    bpf_map_size_route "bpfMapSizeRoute" OptionalNumber, SIZE, "262144";
    bpf_map_size_conntrack "bpfMapSizeConntrack" OptionalNumber, SIZE, "512000";
    bpf_map_size_per_cpu_conntrack "bpfMapSizePerCpuConntrack" OptionalNumber, SIZE, "0";
    bpf_map_size_conntrack_scaling "bpfMapSizeConntrackScaling" PlainText, OneOf(&["Disabled", "DoubleIfFull"]), "DoubleIfFull";
    bpf_map_size_conntrack_cleanup_queue "bpfMapSizeConntrackCleanupQueue" OptionalNumber, Within(1, u32::MAX as i64), "";
    bpf_map_size_ip_sets "bpfMapSizeIPSets" OptionalNumber, SIZE, "1048576";
    bpf_map_size_if_state "bpfMapSizeIfState" OptionalNumber, SIZE, "1000";
    bpf_host_conntrack_bypass "bpfHostConntrackBypass" OptionalFlag, Any, "false";
    bpf_enforce_rpf "bpfEnforceRPF" PlainText, OneOf(&["Disabled", "Strict", "Loose"]), "Loose";
    bpf_policy_debug_enabled "bpfPolicyDebugEnabled" OptionalFlag, Any, "true";
    bpf_force_track_packets_from_ifaces "bpfForceTrackPacketsFromIfaces" StringList, INTERFACES, "docker+";
    bpf_disable_gro_for_ifaces "bpfDisableGROForIfaces" PlainText, Regex, "";
    bpf_exclude_cidrs_from_nat "bpfExcludeCIDRsFromNAT" StringList, Networks(None), "";
    bpf_redirect_to_peer "bpfRedirectToPeer" PlainText, Exactly(&["Enabled", "Disabled", "L2Only"]), "Enabled";
    bpf_attach_type "bpfAttachType" OptionalChoice, Exactly(&["Netkit", "TCX", "TC"]), "Netkit";
    bpf_export_buffer_size_mb "bpfExportBufferSizeMB" OptionalNumber, SIZE, "1";
    bpf_profiling "bpfProfiling" PlainText, SWITCH, "Disabled";
    bpf_conntrack_timeouts "bpfConntrackTimeouts" Option<BPFConntrackTimeouts>, Any,
        "CreationGracePeriod=10s,TCPSynSent=20s,TCPEstablished=1h,TCPFinsSeen=Auto,TCPResetSeen=40s,UDPTimeout=60s,GenericTimeout=10m,ICMPTimeout=5s";
    bpf_ip_frag_timeout "bpfIPFragTimeout" OptionalDuration, Any, "";
    bpf_ip_fragment_reassembly_enabled "bpfIPFragmentReassemblyEnabled" OptionalFlag, Any, "true";
    bpf_maglev_max_endpoints_per_service "bpfMaglevMaxEndpointsPerService" OptionalNumber, SIZE, "100";
    bpf_maglev_max_services "bpfMaglevMaxServices" OptionalNumber, SIZE, "100";
    bpf_overlay_host_source_ip "bpfOverlayHostSourceIP" OptionalChoice, Exactly(&["TunnelAddress", "HostAddress"]), "TunnelAddress";
    cgroup_v2_path "cgroupV2Path" PlainText, Any, "";
    route_source "routeSource" PlainText, OneOf(&["WorkloadIPs", "CalicoIPAM"]), "CalicoIPAM";
    route_table_ranges "routeTableRanges" Option<Vec<RouteTableRange>>, Any, "1-250";
    route_table_range "routeTableRange" Option<RouteTableRange>, Any, "";
    route_sync_disabled "routeSyncDisabled" OptionalFlag, Any, "false";
    wireguard_enabled "wireguardEnabled" OptionalFlag, Any, "false";
    wireguard_enabled_v6 "wireguardEnabledV6" OptionalFlag, Any, "false";
    wireguard_threading_enabled "wireguardThreadingEnabled" OptionalFlag, Any, "false";
    wireguard_listening_port "wireguardListeningPort" OptionalNumber, Within(1, 65535), "51820";
    wireguard_listening_port_v6 "wireguardListeningPortV6" OptionalNumber, Within(1, 65535), "51821";
    wireguard_routing_rule_priority "wireguardRoutingRulePriority" OptionalNumber, Within(1, 32765), "99";
    wireguard_interface_name "wireguardInterfaceName" PlainText, Interface, "wireguard.cali";
    wireguard_interface_name_v6 "wireguardInterfaceNameV6" PlainText, Interface, "wg-v6.cali";
    wireguard_mtu "wireguardMTU" OptionalNumber, Any, "0";
    wireguard_mtu_v6 "wireguardMTUV6" OptionalNumber, Any, "0";
    wireguard_host_encryption_enabled "wireguardHostEncryptionEnabled" OptionalFlag, Any, "false";
    wireguard_keep_alive "wireguardKeepAlive" = "WireguardPersistentKeepAlive" OptionalDuration, Any, "0s";
    aws_src_dst_check "awsSrcDstCheck" OptionalChoice, Exactly(&["DoNothing", "Enable", "Disable"]), "DoNothing";
    service_loop_prevention "serviceLoopPrevention" PlainText, OneOf(&["Drop", "Reject", "Disabled"]), "Drop";
    workload_source_spoofing "workloadSourceSpoofing" PlainText, OneOf(&["Disabled", "Any"]), "Disabled";
    mtu_iface_pattern "mtuIfacePattern" PlainText, Regex, "^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)";
    require_mtu_file "requireMTUFile" OptionalFlag, Any, "false";
    floating_ips "floatingIPs" OptionalChoice, SWITCH, "Disabled";
    windows_manage_firewall_rules "windowsManageFirewallRules" OptionalChoice, SWITCH, "Disabled";
    istio_ambient_mode "istioAmbientMode" OptionalChoice, SWITCH, "Disabled";
    istio_dscp_mark "istioDSCPMark" Option<Dscp>, Any, "23";
    local_subnet_l2_reachability "localSubnetL2Reachability" OptionalChoice, Exactly(&["Disabled", "PodsAndLoadBalancers"]), "Disabled";
    local_subnet_l2_reachability_refresh_interval "localSubnetL2ReachabilityRefreshInterval" OptionalDuration, Any, "120s";
    flow_logs_flush_interval "flowLogsFlushInterval" OptionalDuration, Any, "5m";
    flow_logs_collector_debug_trace "flowLogsCollectorDebugTrace" OptionalFlag, Any, "false";
    flow_logs_goldmane_server "flowLogsGoldmaneServer" OptionalChoice, Any, "";
    flow_logs_local_reporter "flowLogsLocalReporter" OptionalChoice, SWITCH, "Disabled";
    flow_logs_policy_evaluation_mode "flowLogsPolicyEvaluationMode" OptionalChoice, Exactly(&["None", "Continuous"]), "Continuous";
    go_gc_threshold "goGCThreshold" OptionalNumber, Within(-1, i32::MAX as i64), "40";
    go_memory_limit_mb "goMemoryLimitMB" OptionalNumber, Within(-1, i32::MAX as i64), "-1";
    go_max_procs "goMaxProcs" OptionalNumber, Within(-1, i32::MAX as i64), "-1";
}
