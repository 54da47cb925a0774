//! The plan: the desired kernel state of one node, with its workloads, routes, tunnels and policies.
//!
//! `compute` produces updates to the plan and `dataplane` makes the kernel match it; neither depends on the other.
//! The plan is a value: the same datastore contents always give the same plan, regardless of the order in which they
//! were received. [`evaluate`] computes the verdict of a plan on a packet.

mod assign;
pub mod bgp;
mod change;
mod endpoint;
pub mod evaluate;
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

pub use assign::{Assignment, assign};
pub use change::{Plan, Set, Update};
pub use endpoint::{EndpointId, HostEndpoint, Tier, TierEnd, WorkloadPolicy};
pub use marks::MarkBits;
pub use nat::{FloatingIp, NAT_EXCLUSIONS, NAT_SOURCES, NatSettings, POOLS};
pub use policy::{
    Action, Direction, Http, HttpPath, Icmp, IpVersion, Policy, PolicyId, PolicyKind, PortRange, Profile,
    Rule, Side,
};
pub use qos::{Bandwidth, Limits, PacketRate, PeakRate, Qos};
pub use route::{Learnt, NextHop, Route, RouteKey, RouteTarget, RoutingRule, Table};
pub use rule_id::{RuleId, RuleIndex, RuleOwner, UnknownOwner};
pub use set::{Member, SetId, SetKind};
pub use settings::{
    AllowAction, DenyAction, EndpointToHost, Failsafe, LogLimit, Metadata, PolicySettings, Settings,
};
pub use tunnel::{TunnelDevice, TunnelKind, TunnelProtocol, Vtep, VtepId, WireguardPeer, WireguardPeerId};
pub use workload::{LocalPeer, Migration, Workload, WorkloadId, link_local};
