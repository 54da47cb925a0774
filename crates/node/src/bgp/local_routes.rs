//! The routes that this node originates (its blocks, the addresses of its workloads and of services), and which of
//! them the speaker has.

use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_bgp::RouteAttrs;
use tortie_dataplane::HostRoute;
use tortie_plan::bgp::{BgpConfig, BgpInstall, LOCAL_PREF_OF_METRIC_0};
use tortie_plan::{MigrationState, PlannedWorkload, WorkloadId};

/// A route that this node originates.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LocalRoute {
    metric: u32,
    /// The outgoing interface.
    interface: Option<Arc<str>>,
    preference: u16,
    service: bool,
}

/// Preferences as in BIRD: a connected network takes precedence over a route of a peer, and a route that another
/// program wrote to the table yields to one.
const CONNECTED_ROUTE_PREFERENCE: u16 = 240;
const FOREIGN_ROUTE_PREFERENCE: u16 = 10;

#[derive(Default)]
pub struct LocalRouteTable {
    workloads: BTreeMap<WorkloadId, PlannedWorkload>,
    host: BTreeMap<IpNet, HostRoute>,
    advertised: BTreeMap<IpNet, LocalRoute>,
    install: Option<BgpInstall>,
}

impl LocalRouteTable {
    pub fn put_workload(&mut self, id: WorkloadId, workload: Option<PlannedWorkload>) {
        match workload {
            Some(workload) => self.workloads.insert(id, workload),
            None => self.workloads.remove(&id),
        };
    }

    pub fn set_workloads(&mut self, workloads: BTreeMap<WorkloadId, PlannedWorkload>) {
        self.workloads = workloads;
    }

    /// Sets the routes of the host that filters may announce.
    pub fn set_host_routes<'r>(&mut self, routes: impl Iterator<Item = &'r HostRoute>) {
        self.host = routes.map(|route| (route.net, route.clone())).collect();
    }

    /// Forgets the advertised routes, because a new speaker has none.
    pub fn forget_advertised(&mut self) {
        self.advertised.clear();
    }

    /// Returns the routes to announce and, without attributes, those to withdraw.
    pub fn changes(&mut self, bgp: &BgpConfig) -> Vec<(IpNet, Option<RouteAttrs>)> {
        let wanted = self.wanted(bgp);
        let gone: BTreeSet<IpNet> =
            self.advertised.keys().filter(|net| !wanted.contains_key(net)).copied().collect();
        let new = wanted.iter().filter(|(net, route)| self.advertised.get(net) != Some(route));
        let mut changes: Vec<(IpNet, Option<RouteAttrs>)> =
            new.map(|(net, route)| (*net, Some(build_attributes(route)))).collect();
        changes.extend(gone.into_iter().map(|net| (net, None)));
        self.advertised = wanted;
        changes
    }

    fn wanted(&self, bgp: &BgpConfig) -> BTreeMap<IpNet, LocalRoute> {
        let metric = |net: &IpNet| match net {
            IpNet::V4(_) => bgp.export.priority_v4,
            IpNet::V6(_) => bgp.export.priority_v6,
        };
        let mut wanted: BTreeMap<IpNet, LocalRoute> = BTreeMap::new();
        for route in self.host.values() {
            let interface = route.interface.as_deref().map(Arc::from);
            let preference =
                if route.connected { CONNECTED_ROUTE_PREFERENCE } else { FOREIGN_ROUTE_PREFERENCE };
            let metric = if route.metric == 0 { metric(&route.net) } else { route.metric };
            wanted.insert(route.net, LocalRoute { metric, interface, preference, service: false });
        }
        let own = |net: &IpNet, interface| LocalRoute {
            metric: metric(net),
            interface,
            preference: RouteAttrs::LOCAL_PREFERENCE,
            service: false,
        };
        for net in bgp.export.service_routes() {
            wanted.insert(net, LocalRoute { service: true, ..own(&net, None) });
        }
        for block in bgp.export.blocks.keys() {
            if block.prefix_len() < block.max_prefix_len() {
                wanted.insert(*block, own(block, None));
            }
        }
        for workload in self.workloads.values() {
            let interface: Arc<str> = workload.interface.as_str().into();
            if workload.migration == MigrationState::Arriving {
                continue;
            }
            let elevated = workload.migration.is_elevated();
            for net in workload.addresses.iter().copied().map(IpNet::from) {
                // The block covers the address, unless other nodes still have another route to it (live migration).
                let covered = bgp.export.blocks.keys().any(|block| *block != net && block.contains(&net));
                if covered && !elevated {
                    continue;
                }
                let mut route = own(&net, Some(interface.clone()));
                if elevated {
                    route.metric = match net {
                        IpNet::V4(_) => bgp.export.elevated_v4,
                        IpNet::V6(_) => bgp.export.elevated_v6,
                    };
                }
                wanted.insert(net, route);
            }
        }
        wanted
    }

    /// Returns whether the settings that select routes for the kernel have changed.
    pub fn install_changed(&mut self, bgp: &BgpConfig) -> bool {
        let before = self.install.replace(bgp.install.clone());
        before.is_some_and(|before| before != bgp.install)
    }
}

fn build_attributes(route: &LocalRoute) -> RouteAttrs {
    RouteAttrs {
        preference: route.preference,
        local_pref: Some(LOCAL_PREF_OF_METRIC_0.saturating_sub(route.metric)),
        device: route.interface.clone(),
        service: route.service,
        ..RouteAttrs::local()
    }
}
