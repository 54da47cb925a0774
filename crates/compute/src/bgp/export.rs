//! What is advertised by default, and which routes go into the kernel.

use super::settings::Settings;
use ipnet::IpNet;
use std::collections::BTreeMap;
use tortie_model::kinds::{EncapMode, IPPool};
use tortie_plan::bgp::{Export, Install};

pub(super) fn export(
    settings: &Settings,
    pools: &BTreeMap<String, IPPool>,
    blocks: &BTreeMap<IpNet, bool>,
    reflects: bool,
) -> Export {
    let nets = |silent: bool| -> Vec<IpNet> {
        let mut nets: Vec<IpNet> = pools
            .values()
            .filter(|pool| pool.spec.disable_bgp_export == silent)
            .filter_map(|pool| pool.spec.cidr.parse().ok())
            .collect();
        nets.sort_unstable();
        nets
    };
    Export {
        blocks: blocks.clone(),
        pools: nets(false),
        silent_pools: nets(true),
        reflected: if reflects { settings.reflected_ranges.clone() } else { Vec::new() },
        communities: settings.communities.clone(),
        priority_v4: settings.priority_v4,
        priority_v6: settings.priority_v6,
    }
}

pub(super) fn install(settings: &Settings, pools: &BTreeMap<String, IPPool>) -> Install {
    let wraps = |mode: &EncapMode| matches!(mode, EncapMode::Always | EncapMode::CrossSubnet);
    let owned = |pool: &IPPool| {
        let spec = &pool.spec;
        match (wraps(&spec.vxlan_mode), wraps(&spec.ipip_mode)) {
            (true, _) => false,
            (false, true) => settings.programs.ipip,
            (false, false) => settings.programs.no_encap,
        }
    };
    let mut nets: Vec<(IpNet, bool)> =
        pools.values().filter_map(|pool| Some((pool.spec.cidr.parse().ok()?, owned(pool)))).collect();
    nets.sort_unstable();
    Install { never: settings.service_ranges.clone(), pools: nets }
}
