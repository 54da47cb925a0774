//! The properties of an IPPool that the plan depends on, parsed once for all parts of the computation.

use crate::conversion_error::{ConversionError, parse_cidr};
use ipnet::IpNet;
use tortie_model::kinds::{AllowedUse, AssignmentMode, EncapMode, IPPool};

/// The node selector of a pool from which no node allocates blocks automatically.
const NO_NODE_SELECTOR: &str = "!all()";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolFacts {
    /// As written, possibly with host bits.
    pub cidr: IpNet,
    pub encapsulation: PoolEncapsulation,
    pub nat_outgoing: bool,
    /// Its addresses may be given to load balancers, and to nothing else if `only_balancers`.
    pub balances: bool,
    pub only_balancers: bool,
    /// Workloads may have its addresses.
    pub for_workloads: bool,
    /// Workloads get only addresses of this pool that they name, so a block of it does not claim its other addresses.
    pub is_manual: bool,
    pub disable_bgp_export: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolEncapsulation {
    None,
    Ipip(EncapsulationScope),
    Vxlan(EncapsulationScope),
}

/// Between which nodes packets are encapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncapsulationScope {
    Always,
    CrossSubnet,
}

impl PoolFacts {
    pub fn read(pool: &IPPool) -> Result<PoolFacts, ConversionError> {
        let spec = &pool.spec;
        let uses = &spec.allowed_uses;
        Ok(PoolFacts {
            cidr: parse_cidr("cidr", &spec.cidr)?,
            encapsulation: match (convert_scope(&spec.vxlan_mode), convert_scope(&spec.ipip_mode)) {
                (Some(scope), _) => PoolEncapsulation::Vxlan(scope),
                (None, Some(scope)) => PoolEncapsulation::Ipip(scope),
                (None, None) => PoolEncapsulation::None,
            },
            nat_outgoing: spec.nat_outgoing,
            balances: uses.contains(&AllowedUse::LoadBalancer),
            only_balancers: *uses == [AllowedUse::LoadBalancer],
            for_workloads: !spec.disabled && (uses.is_empty() || uses.contains(&AllowedUse::Workload)),
            is_manual: spec.assignment_mode == AssignmentMode::Manual
                || spec.node_selector.replace(' ', "") == NO_NODE_SELECTOR,
            disable_bgp_export: spec.disable_bgp_export,
        })
    }
}

fn convert_scope(mode: &EncapMode) -> Option<EncapsulationScope> {
    match mode {
        EncapMode::Always => Some(EncapsulationScope::Always),
        EncapMode::CrossSubnet => Some(EncapsulationScope::CrossSubnet),
        EncapMode::Never | EncapMode::Unknown(_) => None,
    }
}
