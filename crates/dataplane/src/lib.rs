#![doc = include_str!("../README.md")]

mod announce;
mod arrivals;
mod engine;
mod error;
mod failure;
mod faults;
mod felix;
mod flow;
mod host_routes;
mod host_traffic;
mod interfaces;
mod kernel;
mod mtu;
mod netlink;
mod netns;
pub mod pod;
mod policy;
mod reconcile;
mod reports;
mod route_lookup;
mod socket_filter;
mod sysctl;
mod wireguard_keys;
mod wireguard_traffic;

pub use crate::reconcile::WorkloadState;
pub use engine::{ApplyOutcome, DataplaneHandle};
pub use error::{DataplaneError, DataplaneResult};
pub use failure::{AffectedWorkloads, FailureReason, KernelFailure, KernelObject};
#[cfg(feature = "fault-injection")]
pub use faults::KernelFaults;
pub use felix::{MissingGuard, missing_guards};
pub use flow::{FlowSource, SharedGeneration};
pub use host_routes::{HostRoute, has_bgp_routes, host_routes};
pub use host_traffic::free_host_traffic;
pub use interfaces::{interface_mtus, interface_names};
pub use mtu::MtuChoice;
pub use netns::Netns;
pub use policy::{
    CountedStage, CountedVerdict, CounterSubject, EngineStats, LoggedPacket, PolicyStats, RuleCounter,
    follow_log_group, read_counters, remove_policy,
};
#[doc(hidden)]
pub use policy::{describe_flow_message, describe_packet};
pub use reports::{DataplaneReport, ReportReceiver};
pub use route_lookup::{HostNextHop, NextHopError, RouteLookup};
pub use wireguard_keys::WireguardKeys;
pub use wireguard_traffic::{PeerTraffic, WireguardTraffic};
