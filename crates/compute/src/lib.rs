#![doc = include_str!("../README.md")]

mod address_owners;
mod bgp;
mod changes;
mod conversion_error;
mod counted_nets;
mod engine;
mod floating;
mod interests;
mod migrations;
mod nat;
mod nodes;
mod parameters;
mod policy;
mod pools;
mod proxied;
mod qos;
mod routes;
mod services;
mod settings;
mod tunnels;
mod wireguard;
mod workloads;

pub use bgp::BgpEnvironment;
pub use conversion_error::{ConversionError, ConversionReason};
pub use engine::{ObjectCounts, POLICY_KINDS, PlanCompute};
pub use floating::{FloatingRefusal, MAX_FLOATING_IPS};
pub use interests::cluster_interests;
pub use parameters::{
    ClientAuth, ClusterRoutes, FirstRouteTable, FlowEvaluation, FlowOffload, L2Reachability, LogRate,
    LogSeverity, NatExclusions, NodeParameters, OWN_PARAMETERS, OptionalParameter, ParameterEffect,
    ParameterEnvironment, ParameterSource, ResolvedParameter, RouteSource, SourceSpoofing, Values,
    describe_parameter,
};
pub use policy::EvaluationCounts;
pub use routes::{MissingBgpRoutes, UnroutedPool};
pub use workloads::{EndpointPermissions, local_workload};
