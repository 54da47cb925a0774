//! The routes that BGP advertises by default, and those that it installs in the kernel.

use super::ElevatedPriorities;
use super::services::ServiceRoutes;
use super::settings::BgpSettings;
use ipnet::IpNet;
use std::collections::BTreeMap;
use tortie_model::kinds::{EncapMode, IPPool};
use tortie_plan::bgp::{BgpExport, BgpInstall, PoolRoutes};

pub(super) fn export(
    settings: &BgpSettings,
    pools: &BTreeMap<String, IPPool>,
    blocks: &BTreeMap<IpNet, bool>,
    services: &ServiceRoutes,
    reflects: bool,
    elevated: ElevatedPriorities,
) -> BgpExport {
    let nets = |silent: bool| -> Vec<IpNet> {
        let mut nets: Vec<IpNet> = pools
            .values()
            .filter(|pool| pool.spec.disable_bgp_export == silent)
            .filter_map(|pool| pool.spec.cidr.parse().ok())
            .collect();
        nets.sort_unstable();
        nets
    };
    BgpExport {
        blocks: blocks.clone(),
        pools: nets(false),
        silent_pools: nets(true),
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

pub(super) fn install(
    settings: &BgpSettings,
    pools: &BTreeMap<String, IPPool>,
    own_subnet: Option<IpNet>,
) -> BgpInstall {
    let wraps = |mode: &EncapMode| matches!(mode, EncapMode::Always | EncapMode::CrossSubnet);
    let routes = |pool: &IPPool| {
        let spec = &pool.spec;
        match (wraps(&spec.vxlan_mode), &spec.ipip_mode) {
            (true, _) => PoolRoutes::OfOthers,
            (false, EncapMode::Always) if settings.programs.ipip => PoolRoutes::Ipip,
            (false, EncapMode::CrossSubnet) if settings.programs.ipip => PoolRoutes::IpipAcrossSubnets,
            (false, mode) if wraps(mode) => PoolRoutes::OfOthers,
            (false, _) if settings.programs.no_encap => PoolRoutes::Plain,
            (false, _) => PoolRoutes::OfOthers,
        }
    };
    let mut nets: Vec<(IpNet, PoolRoutes)> =
        pools.values().filter_map(|pool| Some((pool.spec.cidr.parse().ok()?, routes(pool)))).collect();
    nets.sort_unstable();
    // The subnet matters only to these pools, and a change of it causes every route to be re-evaluated.
    let across = nets.iter().any(|(_, routes)| *routes == PoolRoutes::IpipAcrossSubnets);
    BgpInstall { never: settings.services.ranges(), pools: nets, own_subnet: own_subnet.filter(|_| across) }
}
