//! How a node writes what the plan says: from FelixConfiguration and the environment.

use crate::marks::MarkBits;
use crate::nat::NatSettings;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// How kernel state is written; from FelixConfiguration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Interfaces that start with one of these lead to workloads.
    pub interface_prefixes: Vec<String>,
    /// Protocol number of workload routes; 3 (boot) also means that all other routes of ours carry 80.
    pub device_route_protocol: u8,
    /// Which own address the host uses for what it sends along routes of ours.
    pub device_route_source_v4: Option<IpAddr>,
    pub device_route_source_v6: Option<IpAddr>,
    pub ipv4_route_priority: u32,
    pub ipv6_route_priority: u32,
    /// Of workloads that have just come from another node.
    pub ipv4_elevated_priority: u32,
    pub ipv6_elevated_priority: u32,
    /// Remove routes on workload interfaces that we did not write.
    pub remove_external_routes: bool,
    /// False where another plugin wires workloads: routes, neighbours and settings of interfaces are left to it.
    pub program_routes: bool,
    pub ip_forwarding: bool,
    pub ipv6: bool,
    /// Interfaces that no host endpoint has because of their addresses: names, or patterns between slashes.
    pub excluded_interfaces: Vec<String>,
    /// Between two looks at everything, should an event of the kernel have been missed; never if `None`.
    pub audit_routes: Option<Duration>,
    pub audit_policy: Option<Duration>,
    /// Which interfaces count for the MTU of workloads.
    pub mtu_interface_pattern: String,
    /// Connections of workloads agree on segments that fit the path, however large their interfaces are.
    pub clamp_mss: bool,
    pub nat: NatSettings,
    /// How often links are told again which addresses are answered for; only once if `None`.
    pub announce_proxied: Option<Duration>,
    /// What nodes send each other goes through WireGuard too.
    pub host_encryption: bool,
    pub policy: PolicySettings,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// What becomes of workload traffic to the host itself that the workload's policy allows.
    pub endpoint_to_host: EndpointToHost,
    pub deny: DenyAction,
    /// Whether what policy allows is accepted by the chains of others as well, where packets are filtered.
    pub filter_allow: AllowAction,
    /// The same, where packets are changed before they are routed.
    pub mangle_allow: AllowAction,
    /// Packets that connection tracking can make nothing of are dropped.
    pub drop_invalid: bool,
    /// Workloads may not send UDP to this port, nor IP in IP, unless the next two say so.
    pub vxlan_port: u16,
    pub vxlan_from_workloads: bool,
    pub ipip_from_workloads: bool,
    /// Ports of the host that no policy closes.
    pub failsafe_inbound: Vec<Failsafe>,
    pub failsafe_outbound: Vec<Failsafe>,
    /// May contain `%t` tier, `%k` kind, `%n` name, `%p` namespace and name.
    pub log_prefix: String,
    /// How much a rule with Log may say; everything if `None`.
    pub log_limit: Option<LogLimit>,
    /// Cut established flows that a new policy denies.
    pub cut_denied_flows: bool,
    /// Connections that policy has let pass go past all rules from then on, where the kernel can do that.
    pub flow_offload: bool,
    /// What becomes of what is forwarded to a service that is none; nothing special if `None`.
    pub service_loop: Option<DenyAction>,
    pub marks: MarkBits,
    pub metadata: Option<Metadata>,
}

/// Where OpenStack's machines find what they ask 169.254.169.254 for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Metadata {
    pub address: Ipv4Addr,
    pub port: u16,
}

/// So many packets in so many seconds, and some more at once after a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogLimit {
    pub packets: u32,
    pub seconds: u32,
    pub burst: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointToHost {
    #[default]
    Drop,
    /// On to the host's own rules.
    Return,
    Accept,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DenyAction {
    #[default]
    Drop,
    Reject,
}

/// What policy's allowing means to chains that are not ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllowAction {
    /// It is final.
    #[default]
    Accept,
    /// They judge for themselves.
    Return,
}

/// `net` is the source for inbound ones, the destination for outbound ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Failsafe {
    pub protocol: u8,
    pub port: u16,
    pub net: Option<IpNet>,
}

impl Default for PolicySettings {
    fn default() -> Self {
        let safe = |protocol, port| Failsafe { protocol, port, net: None };
        let (tcp, udp) = (6, 17);
        let both = [179, 2379, 2380, 5473, 6443, 6666, 6667].map(|port| safe(tcp, port));
        PolicySettings {
            endpoint_to_host: EndpointToHost::default(),
            deny: DenyAction::default(),
            filter_allow: AllowAction::default(),
            mangle_allow: AllowAction::default(),
            drop_invalid: true,
            vxlan_port: 4789,
            vxlan_from_workloads: false,
            ipip_from_workloads: false,
            failsafe_inbound: [safe(tcp, 22), safe(udp, 68)].into_iter().chain(both.clone()).collect(),
            failsafe_outbound: [safe(udp, 53), safe(udp, 67)].into_iter().chain(both).collect(),
            log_prefix: "calico-packet".into(),
            log_limit: None,
            cut_denied_flows: false,
            flow_offload: false,
            service_loop: Some(DenyAction::Drop),
            marks: MarkBits::default(),
            metadata: None,
        }
    }
}
