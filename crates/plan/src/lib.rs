#![doc = include_str!("../README.md")]

mod assign;
pub mod bgp;
mod change;
mod endpoint;
pub mod evaluate;
pub mod flow;
mod identity;
mod marks;
mod nat;
mod policy;
mod qos;
mod route;
mod rule_id;
mod set;
mod settings;
mod tunnel;
mod workload;

pub use assign::{HostEndpointAssignment, assign};
pub use change::{AddressSet, NodePlan, PeerLabels, PlanUpdate, ServiceAccountId};
pub use endpoint::{EndpointId, EndpointTier, HostEndpointPolicy, TierDefaultAction, WorkloadPolicy};
pub use identity::{AddressIdentity, IdentityKind, ServiceIdentity};
pub use marks::MarkBits;
pub use nat::{ALL_POOLS_SET, FloatingIp, NAT_EXCLUSIONS_SET, NAT_SOURCES_SET, NatSettings};
pub use policy::{
    HttpMatch, HttpPathMatch, IcmpMatch, IpVersion, PeerMatch, PlannedPolicy, PlannedRule, PolicyDirection,
    PolicyId, PolicyKind, PortInterval, ProfileRules, RuleAction, RuleSide,
};
pub use qos::{BandwidthLimit, DirectionQos, PacketRate, PeakRate, QosSettings};
pub use route::{LearntNextHop, LearntRouteEntry, Route, RouteKey, RouteTarget, RoutingRule, RoutingTable};
pub use rule_id::{ParseOwnerError, RuleId, RuleIndex, RuleOwner};
pub use set::{AMBIENT_WORKLOADS_SET, SetId, SetKind, SetMember};
pub use settings::{
    AllowAction, DataplaneSettings, DenyAction, EndpointToHostAction, FailsafePort, LogLimit,
    MetadataService, PolicySettings,
};
pub use tunnel::{TunnelDevice, TunnelKind, TunnelProtocol, Vtep, VtepId, WireguardPeer, WireguardPeerId};
pub use workload::{MigrationState, PlannedWorkload, WorkloadId, WorkloadPeering, link_local};
