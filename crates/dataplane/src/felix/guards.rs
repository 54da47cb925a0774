//! Determines which endpoints that our table guards are also guarded by Felix's chains. Policy may be handed over to
//! Felix when all of them are.
//!
//! A chain of Felix counts only if it is reachable from a hook: Felix writes chains before the rules that jump to them,
//! and leaves chains behind that are no longer referenced.

use super::{FELIX_CHAIN_PREFIX, is_ip, legacy, strip_table};
use crate::error::{DataplaneError, DataplaneResult};
use crate::kernel::{KernelRoute, RtnetlinkClient};
use crate::netns::Netns;
use crate::policy::nft::foreign::observed::{ForeignRule, looked_up_sets};
use crate::policy::{GuardedEndpoint, guarded_endpoints};
use ipnet::IpNet;
use nlink::Connection;
use nlink::netlink::Nftables;
use nlink::netlink::nftables::{self as wire, ChainType, Family, SetElement, SetElementData, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use tortie_plan::RoutingTable;

/// Hook numbers of netfilter.
pub(super) const INPUT: u32 = 1;
pub(super) const FORWARD: u32 = 2;
/// Interface name that Felix uses for a host endpoint of all interfaces.
const ALL_INTERFACES: &str = "any-interface-at-all";

/// An endpoint that our table guards and Felix's chains do not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingGuard {
    pub interface: String,
    pub ipv6: bool,
}

impl fmt::Display for MissingGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.interface, if self.ipv6 { "IPv6" } else { "IPv4" })
    }
}

/// Returns the interface name that Felix uses for an endpoint.
fn find_interface(endpoint: &GuardedEndpoint) -> &str {
    match endpoint {
        GuardedEndpoint::Workload(interface) | GuardedEndpoint::Host(Some(interface)) => interface,
        GuardedEndpoint::Host(None) => ALL_INTERFACES,
    }
}

/// Returns Felix's chains that guard an endpoint, each with the hook from which it has to be reachable.
fn list_chains(endpoint: &GuardedEndpoint) -> Vec<(u32, String)> {
    let interface = find_interface(endpoint);
    match endpoint {
        GuardedEndpoint::Workload(_) => vec![
            (FORWARD, format!("{FELIX_CHAIN_PREFIX}fw-{interface}")),
            (FORWARD, format!("{FELIX_CHAIN_PREFIX}tw-{interface}")),
            (INPUT, format!("{FELIX_CHAIN_PREFIX}fw-{interface}")),
        ],
        GuardedEndpoint::Host(_) => vec![(INPUT, format!("{FELIX_CHAIN_PREFIX}fh-{interface}"))],
    }
}

/// Returns the endpoints that our table guards and Felix's chains do not, for each family in which they may receive
/// packets. IPv6 chains of host endpoints are not required if Felix writes no IPv6 chains at all.
pub async fn missing_guards(netns: &Netns) -> DataplaneResult<Vec<MissingGuard>> {
    let kernel = RtnetlinkClient::open(netns)?;
    let links: BTreeMap<String, u32> =
        kernel.links().await?.into_iter().map(|link| (link.name, link.index)).collect();
    let mut guarded = guarded_endpoints(netns).await?;
    // Interfaces that no longer exist receive no packets, and Felix creates no chains for them.
    guarded.retain(|endpoint| match endpoint {
        GuardedEndpoint::Workload(name) | GuardedEndpoint::Host(Some(name)) => links.contains_key(name),
        GuardedEndpoint::Host(None) => true,
    });
    if guarded.is_empty() {
        return Ok(Vec::new());
    }
    let routes = kernel.routes().await?;
    let host_has_ipv6 = kernel.addresses().await?.iter().any(|(_, net)| is_routed_ipv6(net));
    let mut needs = Vec::new();
    for endpoint in guarded {
        let index = links.get(find_interface(&endpoint)).copied();
        for ipv6 in [false, true] {
            let (has_packets, is_certain) = match endpoint {
                // A workload without routes may receive packets of either family.
                GuardedEndpoint::Workload(_) => {
                    has_routes(&routes, index, ipv6).map_or((true, !ipv6), |routed| (routed, true))
                }
                GuardedEndpoint::Host(_) => (!ipv6 || host_has_ipv6, !ipv6),
            };
            if has_packets {
                needs.push(GuardNeed { endpoint: endpoint.clone(), ipv6, is_certain });
            }
        }
    }
    let mut programs = list_nft_programs(netns).await?;
    let missing = list_unmet_needs(&needs, &programs);
    if missing.is_empty() {
        return Ok(missing);
    }
    // Only if needed: the program that reads the legacy tables may not be installed.
    programs.extend(legacy::read_filter_programs(netns).await?);
    Ok(list_unmet_needs(&needs, &programs))
}

/// An endpoint that may receive packets of a family.
#[derive(Debug)]
struct GuardNeed {
    endpoint: GuardedEndpoint,
    ipv6: bool,
    /// Whether the guard is required even if Felix has no chains of the family at all.
    is_certain: bool,
}

fn list_unmet_needs(needs: &[GuardNeed], programs: &[FilterProgram]) -> Vec<MissingGuard> {
    let mut missing = Vec::new();
    for need in needs {
        let mut of_family = programs.iter().filter(|program| program.ipv6 == need.ipv6).peekable();
        let is_needed = need.is_certain || of_family.peek().is_some();
        if is_needed && !of_family.any(|program| program.guards(&need.endpoint)) {
            let interface = find_interface(&need.endpoint).to_owned();
            missing.push(MissingGuard { interface, ipv6: need.ipv6 });
        }
    }
    missing
}

/// Returns whether routes of a family lead to an interface; `None` if no route of any family does.
fn has_routes(routes: &[KernelRoute], interface: Option<u32>, ipv6: bool) -> Option<bool> {
    let index = interface?;
    let mut found = None;
    for entry in routes {
        let net = entry.destination();
        let is_routed = net.addr().is_ipv4() || is_routed_ipv6(&net);
        if entry.key.table == RoutingTable::MAIN && entry.target.uses(index) && is_routed {
            found = Some(found.unwrap_or(false) || net.addr().is_ipv6() == ipv6);
        }
    }
    found
}

fn is_routed_ipv6(net: &IpNet) -> bool {
    match net.addr() {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => {
            !address.is_unicast_link_local() && !address.is_multicast() && !address.is_loopback()
        }
    }
}

/// The filter chains of one family that one variant of Felix writes, and the jumps between them.
#[derive(Debug, Default)]
pub(super) struct FilterProgram {
    pub ipv6: bool,
    /// The base chains, by hook number.
    pub entries: Vec<(u32, String)>,
    /// Chains that have rules, each with the chains that its rules jump to.
    pub targets: BTreeMap<String, BTreeSet<String>>,
}

impl FilterProgram {
    fn guards(&self, endpoint: &GuardedEndpoint) -> bool {
        list_chains(endpoint).iter().all(|(hook, chain)| self.reaches(*hook, chain))
    }

    /// Returns whether packets at a hook can reach a chain that has rules.
    fn reaches(&self, hook: u32, wanted: &str) -> bool {
        let entries = self.entries.iter().filter(|(number, _)| *number == hook);
        let mut waiting: Vec<&str> = entries.map(|(_, chain)| chain.as_str()).collect();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        while let Some(chain) = waiting.pop() {
            let Some(targets) = self.targets.get(chain) else { continue };
            if strip_table(chain) == wanted {
                return true;
            }
            if seen.insert(chain) {
                waiting.extend(targets.iter().map(String::as_str));
            }
        }
        false
    }
}

async fn list_nft_programs(netns: &Netns) -> DataplaneResult<Vec<FilterProgram>> {
    let programs = read_programs(&netns.nftables()?).await;
    programs.map_err(|error| DataplaneError::kernel("tables of Felix", &error))
}

async fn read_programs(connection: &Connection<Nftables>) -> nlink::Result<Vec<FilterProgram>> {
    let chains = connection.list_chains().await?;
    let mut tables: Vec<(Family, &str)> = Vec::new();
    for chain in &chains {
        let table = (chain.family, chain.table.as_str());
        let is_felix = is_ip(chain.family) && strip_table(&chain.name).starts_with(FELIX_CHAIN_PREFIX);
        if is_felix && !tables.contains(&table) {
            tables.push(table);
        }
    }
    let mut programs = Vec::new();
    for (family, table) in tables {
        let own = chains.iter().filter(|chain| chain.family == family && chain.table == table);
        let entries = own
            .filter(|chain| chain.chain_type == Some(ChainType::Filter))
            .filter_map(|chain| Some((chain.hook?, chain.name.clone())))
            .collect();
        let mut program = FilterProgram { ipv6: family == Family::Ip6, entries, ..FilterProgram::default() };
        let mut maps: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for set in connection.list_sets_in(table, family).await? {
            if set.data_type == Some(wire::NFT_DATA_VERDICT) {
                let elements = connection.list_set_elements(table, &set.name, family).await?;
                maps.insert(set.name, elements.iter().filter_map(find_chain).collect());
            }
        }
        for rule in connection.list_rules(table, family).await? {
            let lookups = looked_up_sets(&rule);
            let by_map = lookups.iter().filter_map(|name| maps.get(name)).flatten().cloned();
            let targets = program.targets.entry(rule.chain.clone()).or_default();
            targets.extend(ForeignRule::new(&rule).target);
            targets.extend(by_map);
        }
        programs.push(program);
    }
    Ok(programs)
}

/// Returns the chain that an element of a verdict map jumps to.
fn find_chain(element: &SetElement) -> Option<String> {
    match element.data()? {
        SetElementData::Verdict(Verdict::JumpTo(chain) | Verdict::GotoTo(chain)) => Some(chain.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(rules: &[(&str, &[&str])]) -> FilterProgram {
        let targets = rules.iter().map(|(chain, targets)| {
            ((*chain).to_owned(), targets.iter().map(|target| (*target).to_owned()).collect())
        });
        let entries = vec![(INPUT, "INPUT".to_owned()), (FORWARD, "FORWARD".to_owned())];
        FilterProgram { ipv6: false, entries, targets: targets.collect() }
    }

    #[test]
    fn felix_guards_what_the_kernel_comes_to() {
        let workload = GuardedEndpoint::Workload("cali1".into());
        let mut rules: Vec<(&str, &[&str])> = vec![
            ("INPUT", &["cali-INPUT"]),
            ("FORWARD", &["cali-FORWARD"]),
            ("cali-INPUT", &["cali-wl-to-host"]),
            ("cali-wl-to-host", &["cali-from-wl-dispatch"]),
            ("cali-FORWARD", &["cali-from-wl-dispatch", "cali-to-wl-dispatch"]),
            // A loop between chains must not make the search endless.
            ("cali-from-wl-dispatch", &["cali-fw-cali1", "cali-FORWARD"]),
            ("cali-to-wl-dispatch", &["cali-tw-cali1"]),
            ("cali-fw-cali1", &[]),
            ("cali-tw-cali1", &[]),
        ];
        assert!(program(&rules).guards(&workload));
        assert!(!program(&rules).guards(&GuardedEndpoint::Workload("cali2".into())));
        for missing in 0..rules.len() {
            let mut some = rules.clone();
            let (chain, _) = some.remove(missing);
            assert!(!program(&some).guards(&workload), "without rules in {chain}");
        }
        rules[1] = ("FORWARD", &[]);
        assert!(!program(&rules).guards(&workload), "nothing leads there");
    }

    #[test]
    fn a_felix_without_ipv6_guards_host_endpoints() {
        let host = GuardedEndpoint::Host(Some("eth0".into()));
        let need = |ipv6, is_certain| GuardNeed { endpoint: host.clone(), ipv6, is_certain };
        let needs = [need(false, true), need(true, false)];
        let guard = || program(&[("INPUT", &["cali-fh-eth0"]), ("cali-fh-eth0", &[])]);
        let shown = |needs: &[GuardNeed], programs: &[FilterProgram]| -> Vec<String> {
            list_unmet_needs(needs, programs).iter().map(ToString::to_string).collect()
        };
        assert_eq!(shown(&needs, &[]), ["eth0 (IPv4)"]);
        assert_eq!(shown(&needs, &[guard()]), [""; 0]);
        let of_ipv6 = |program| FilterProgram { ipv6: true, ..program };
        assert_eq!(shown(&needs, &[guard(), of_ipv6(program(&[]))]), ["eth0 (IPv6)"]);
        assert_eq!(shown(&needs, &[guard(), of_ipv6(guard())]), [""; 0]);
        // For a workload with routes of the family, the guard is required whatever Felix writes.
        assert_eq!(shown(&[need(true, true)], &[guard()]), ["eth0 (IPv6)"]);
    }
}
