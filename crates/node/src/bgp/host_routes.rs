//! Routes of the host that an export filter may announce: connected networks and routes that other programs wrote to
//! the table, as in BIRD's `direct` and `learn`. They are read only if a session has a filter, because otherwise none
//! of them is announced.

use ipnet::IpNet;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tortie_bgp::filter::glob;
use tortie_dataplane::{HostRoute, Netns, host_routes};
use tortie_plan::bgp::BgpConfig;

/// Interfaces whose routes are never announced, as in Calico.
const NEVER_ANNOUNCED_INTERFACES: [&str; 2] = ["cali*", "kube-ipvs*"];
/// Maximum number of routes. A node is not meant to announce a full Internet table; further routes are left out.
const MAX_HOST_ROUTES: usize = 10_000;
/// Reading takes at most 1/50 of the time.
const READ_TIME_DIVISOR: u32 = 50;

#[derive(Default)]
pub struct HostRouteCache {
    routes: BTreeMap<IpNet, HostRoute>,
    not_before: Option<Instant>,
    left_out: bool,
}

impl HostRouteCache {
    pub fn get(&self) -> impl Iterator<Item = &HostRoute> {
        self.routes.values()
    }

    /// Reads the routes again. Returns whether they changed.
    pub async fn refresh(&mut self, host: &Netns, bgp: &BgpConfig) -> bool {
        let began = Instant::now();
        if self.not_before.is_some_and(|time| began < time) {
            return false;
        }
        let mut routes = BTreeMap::new();
        if bgp.sessions.values().any(|session| !session.filters.is_empty()) {
            match host_routes(host).await {
                Ok(found) => routes = self.select(found, &bgp.ignored_interfaces),
                Err(error) => {
                    tracing::warn!(%error, "cannot read the routes of the host; keeping the known ones");
                    return false;
                }
            }
            self.not_before =
                Some(Instant::now() + began.elapsed().max(Duration::from_micros(1)) * READ_TIME_DIVISOR);
        }
        let changed = routes != self.routes;
        self.routes = routes;
        changed
    }

    /// Selects one route per network: the connected one, else the one with the lowest metric.
    fn select(&mut self, found: Vec<HostRoute>, ignored: &[String]) -> BTreeMap<IpNet, HostRoute> {
        let mut chosen: BTreeMap<IpNet, HostRoute> = BTreeMap::new();
        let mut left_out = 0;
        for route in found {
            let name = route.interface.as_deref().unwrap_or_default();
            let is_ignored = route.connected && ignored.iter().any(|pattern| matches(pattern, name));
            if is_ignored || NEVER_ANNOUNCED_INTERFACES.iter().any(|pattern| matches(pattern, name)) {
                continue;
            }
            match chosen.get(&route.net) {
                Some(other) if (!route.connected, route.metric) >= (!other.connected, other.metric) => {}
                None if chosen.len() >= MAX_HOST_ROUTES => left_out += 1,
                _ => _ = chosen.insert(route.net, route),
            }
        }
        if left_out > 0 && !self.left_out {
            tracing::warn!(
                left_out,
                limit = MAX_HOST_ROUTES,
                "the host has more routes than the limit; further routes are not announced"
            );
        }
        self.left_out = left_out > 0;
        chosen
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    glob(pattern.as_bytes(), name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(net: &str, interface: &str, metric: u32, connected: bool) -> HostRoute {
        HostRoute { net: net.parse().unwrap(), interface: Some(interface.into()), metric, connected }
    }

    #[test]
    fn interfaces_are_ignored_by_pattern() {
        let cases = [
            ("docker0", "docker0", true),
            ("docker0", "docker01", false),
            ("br-*", "br-12", true),
            ("br-*", "bridge", false),
            ("*.1", "eth0.1", true),
            ("*.1", "eth0.11", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn one_route_per_network_and_no_workload() {
        let found = vec![
            route("10.0.0.0/24", "eth0", 0, true),
            route("10.0.0.0/24", "eth1", 5, false),
            route("10.1.0.0/24", "eth1", 20, false),
            route("10.1.0.0/24", "eth0", 10, false),
            route("172.17.0.0/16", "docker0", 0, true),
            route("10.2.0.5/32", "cali123", 0, false),
        ];
        let chosen = HostRouteCache::default().select(found, &["docker*".to_owned()]);
        let names: Vec<(&str, u32)> =
            chosen.values().map(|route| (route.interface.as_deref().unwrap(), route.metric)).collect();
        assert_eq!(names, [("eth0", 0), ("eth0", 10)]);
    }

    #[test]
    fn there_is_a_bound() {
        let found = (0..MAX_HOST_ROUTES + 7).map(|number| {
            let [_, a, b, c] = u32::try_from(number).unwrap().to_be_bytes();
            route(&format!("{}.{a}.{b}.{c}/32", 11), "eth0", 0, false)
        });
        let mut routes = HostRouteCache::default();
        assert_eq!(routes.select(found.collect(), &[]).len(), MAX_HOST_ROUTES);
        assert!(routes.left_out);
    }
}
