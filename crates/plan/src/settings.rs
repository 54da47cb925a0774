//! Settings for programming the plan into the kernel, from FelixConfiguration and the environment.

use crate::evaluate::Packet;
use crate::flow::FlowSourceSettings;
use crate::marks::MarkBits;
use crate::nat::NatSettings;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Settings for programming kernel state; from FelixConfiguration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DataplaneSettings {
    /// Interfaces whose names start with one of these lead to workloads.
    pub interface_prefixes: Vec<String>,
    /// Protocol number of workload routes; 3 (boot) also means that all other routes of the node carry 80.
    pub device_route_protocol: u8,
    /// Source address of packets that the host sends along routes of this node.
    pub device_route_source_v4: Option<IpAddr>,
    pub device_route_source_v6: Option<IpAddr>,
    pub ipv4_route_priority: u32,
    pub ipv6_route_priority: u32,
    /// Priority of routes to workloads that have just migrated from another node.
    pub ipv4_elevated_priority: u32,
    pub ipv6_elevated_priority: u32,
    /// Remove routes on workload interfaces that this node did not write.
    pub remove_external_routes: bool,
    /// False if another plugin wires workloads: routes, neighbours and interface settings are left to it.
    pub program_routes: bool,
    pub ip_forwarding: bool,
    pub ipv6: bool,
    /// Interfaces that host endpoints never match by address: names, or regular expressions between slashes.
    pub excluded_interfaces: Vec<String>,
    /// Interval between full checks of the kernel state, in case a kernel event was missed; no checks if `None`.
    pub audit_routes: Option<Duration>,
    pub audit_policy: Option<Duration>,
    /// Regular expression for the interfaces that determine the MTU of workloads.
    pub mtu_interface_pattern: String,
    /// Clamp the TCP MSS of workload connections to the path MTU, regardless of the MTU of their interfaces.
    pub clamp_mss: bool,
    pub nat: NatSettings,
    /// Interval between gratuitous ARP and unsolicited neighbour advertisements for proxied addresses; sent only once
    /// if `None`.
    pub announce_proxied: Option<Duration>,
    /// Encrypt traffic between the nodes themselves with WireGuard too.
    pub host_encryption: bool,
    pub policy: PolicySettings,
}

impl Default for DataplaneSettings {
    fn default() -> Self {
        DataplaneSettings {
            interface_prefixes: vec!["cali".into()],
            device_route_protocol: 3,
            device_route_source_v4: None,
            device_route_source_v6: None,
            ipv4_route_priority: 1024,
            ipv6_route_priority: 1024,
            ipv4_elevated_priority: 512,
            ipv6_elevated_priority: 512,
            remove_external_routes: true,
            program_routes: true,
            ip_forwarding: true,
            ipv6: true,
            excluded_interfaces: vec!["kube-ipvs0".into()],
            audit_routes: Some(Duration::from_secs(90)),
            audit_policy: Some(Duration::from_secs(90)),
            mtu_interface_pattern: "^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)".into(),
            clamp_mss: false,
            nat: NatSettings::default(),
            announce_proxied: Some(Duration::from_secs(120)),
            host_encryption: false,
            policy: PolicySettings::default(),
        }
    }
}

/// How policy is enforced; from FelixConfiguration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PolicySettings {
    /// Action for workload traffic to the host itself that the workload's policy allows.
    pub endpoint_to_host: EndpointToHostAction,
    pub deny: DenyAction,
    /// Whether an allow verdict of policy is final for the filter chains of other software too.
    pub filter_allow: AllowAction,
    /// The same for chains that modify packets before routing.
    pub mangle_allow: AllowAction,
    /// Drop packets that connection tracking considers invalid.
    pub drop_invalid: bool,
    /// UDP port of VXLAN. Workloads may not send to it, nor send IP in IP, unless the next two settings allow it.
    pub vxlan_port: u16,
    pub vxlan_from_workloads: bool,
    pub ipip_from_workloads: bool,
    /// Ports of the host that no policy can block.
    pub failsafe_inbound: Vec<FailsafePort>,
    pub failsafe_outbound: Vec<FailsafePort>,
    /// May contain `%t` tier, `%k` kind, `%n` name, `%p` namespace and name.
    pub log_prefix: String,
    /// Rate limit of rules with the action Log; no limit if `None`.
    pub log_limit: Option<LogLimit>,
    /// Terminate established flows that a new policy denies.
    pub cut_denied_flows: bool,
    /// Let connections that policy has allowed bypass all rules from then on, where the kernel supports it.
    pub flow_offload: bool,
    /// Action for packets forwarded to a service address that no service has; no special action if `None`.
    pub service_loop: Option<DenyAction>,
    pub marks: MarkBits,
    pub metadata: Option<MetadataService>,
    /// DSCP of the first packets of TCP connections between two workloads of Istio's ambient mesh; not set if `None`.
    pub ambient_dscp: Option<u8>,
    /// Record flows; the kernel has no rule and no set for it if `None`.
    pub flows: Option<FlowSourceSettings>,
}

/// Where requests of OpenStack VMs for 169.254.169.254 are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MetadataService {
    pub address: Ipv4Addr,
    pub port: u16,
}

/// Rate limit: `packets` in `seconds`, plus a burst after idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogLimit {
    pub packets: u32,
    pub seconds: u32,
    pub burst: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EndpointToHostAction {
    #[default]
    Drop,
    /// Continue with the host's own rules.
    Return,
    Accept,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DenyAction {
    #[default]
    Drop,
    Reject,
}

/// Effect of an allow verdict of policy on the chains of other software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AllowAction {
    /// The verdict is final.
    #[default]
    Accept,
    /// The other chains decide.
    Return,
}

/// A failsafe port. `net` is the source of inbound packets and the destination of outbound packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FailsafePort {
    pub protocol: u8,
    pub port: u16,
    pub net: Option<IpNet>,
}

impl FailsafePort {
    fn anywhere(protocol: u8, port: u16) -> FailsafePort {
        FailsafePort { protocol, port, net: None }
    }
}

impl Default for PolicySettings {
    fn default() -> Self {
        let both =
            [179, 2379, 2380, 5473, 6443, 6666, 6667].map(|port| FailsafePort::anywhere(Packet::TCP, port));
        let inbound = [FailsafePort::anywhere(Packet::TCP, 22), FailsafePort::anywhere(Packet::UDP, 68)];
        let outbound = [FailsafePort::anywhere(Packet::UDP, 53), FailsafePort::anywhere(Packet::UDP, 67)];
        PolicySettings {
            endpoint_to_host: EndpointToHostAction::default(),
            deny: DenyAction::default(),
            filter_allow: AllowAction::default(),
            mangle_allow: AllowAction::default(),
            drop_invalid: true,
            vxlan_port: 4789,
            vxlan_from_workloads: false,
            ipip_from_workloads: false,
            failsafe_inbound: inbound.into_iter().chain(both.clone()).collect(),
            failsafe_outbound: outbound.into_iter().chain(both).collect(),
            log_prefix: "calico-packet".into(),
            log_limit: None,
            cut_denied_flows: false,
            flow_offload: false,
            service_loop: Some(DenyAction::Drop),
            marks: MarkBits::default(),
            metadata: None,
            ambient_dscp: None,
            flows: None,
        }
    }
}
