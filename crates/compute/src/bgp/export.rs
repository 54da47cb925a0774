//! The routes that BGP advertises by default, and those that it installs in the kernel.

use super::ElevatedPriorities;
use super::services::ServiceRoutes;
use super::settings::BgpSettings;
use crate::pools::{EncapsulationScope, PoolEncapsulation, PoolFacts};
use ipnet::IpNet;
use std::collections::BTreeMap;
use tortie_plan::bgp::{BgpExport, BgpInstall, PoolRoutes};

pub(super) fn export(
    settings: &BgpSettings,
    pools: &BTreeMap<String, PoolFacts>,
    blocks: &BTreeMap<IpNet, bool>,
    services: &ServiceRoutes,
    reflects: bool,
    elevated: ElevatedPriorities,
) -> BgpExport {
    let (silent, exported): (Vec<&PoolFacts>, Vec<&PoolFacts>) =
        pools.values().partition(|pool| pool.disable_bgp_export);
    BgpExport {
        blocks: blocks.clone(),
        pools: sort_cidrs(&exported),
        silent_pools: sort_cidrs(&silent),
        service_ranges: services.ranges(),
        service_addresses: services.addresses(),
        reflected: if reflects { settings.services.reflected() } else { Vec::new() },
        services: settings.services.all(),
        communities: settings.communities.clone(),
        priority_v4: settings.priority_v4,
        priority_v6: settings.priority_v6,
        elevated_v4: elevated.v4,
        elevated_v6: elevated.v6,
    }
}

fn sort_cidrs(pools: &[&PoolFacts]) -> Vec<IpNet> {
    let mut nets: Vec<IpNet> = pools.iter().map(|pool| pool.cidr).collect();
    nets.sort_unstable();
    nets
}

pub(super) fn install(
    settings: &BgpSettings,
    pools: &BTreeMap<String, PoolFacts>,
    own_subnet: Option<IpNet>,
) -> BgpInstall {
    let nets = pools.values().map(|pool| {
        let routes = match pool.encapsulation {
            PoolEncapsulation::Ipip(EncapsulationScope::Always) if settings.programs.ipip => PoolRoutes::Ipip,
            PoolEncapsulation::Ipip(EncapsulationScope::CrossSubnet) if settings.programs.ipip => {
                PoolRoutes::IpipAcrossSubnets
            }
            PoolEncapsulation::None if settings.programs.no_encap => PoolRoutes::Plain,
            _ => PoolRoutes::OfOthers,
        };
        (pool.cidr, routes)
    });
    let mut nets: Vec<(IpNet, PoolRoutes)> = nets.collect();
    nets.sort_unstable();
    // The subnet matters only to these pools, and a change of it causes every route to be re-evaluated.
    let across = nets.iter().any(|(_, routes)| *routes == PoolRoutes::IpipAcrossSubnets);
    BgpInstall { never: settings.services.ranges(), pools: nets, own_subnet: own_subnet.filter(|_| across) }
}
