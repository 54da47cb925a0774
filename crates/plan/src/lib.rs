//! What one node must have in its kernel: the workloads wired to it, the routes it holds, and what may talk to what.
//!
//! `compute` says how the plan changes, `dataplane` makes the kernel match it; neither knows the other. The plan is a
//! value: the same datastore always gives the same plan, whatever the order in which it was learnt. [`evaluate`] says
//! what a plan does to a packet.

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
