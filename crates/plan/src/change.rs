//! The plan as a whole, and the changes it is made of.

use crate::bgp::Bgp;
use crate::endpoint::{HostEndpoint, WorkloadPolicy};
use crate::policy::{Policy, PolicyId, Profile};
use crate::route::{Learnt, Route, RouteKey, RoutingRule};
use crate::set::{Member, SetId, SetKind};
use crate::tunnel::{TunnelDevice, TunnelKind, Vtep, VtepId, WireguardPeer, WireguardPeerId};
use crate::workload::{Workload, WorkloadId};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Everything a node must have in its kernel. What it refers to is in it too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub workloads: BTreeMap<WorkloadId, Workload>,
    pub routes: BTreeMap<RouteKey, Route>,
    pub tunnels: BTreeMap<TunnelKind, TunnelDevice>,
    /// The other ends of the VXLANs among them.
    pub vteps: BTreeMap<VtepId, Vtep>,
    /// The other ends of the WireGuards among them.
    pub wireguard_peers: BTreeMap<WireguardPeerId, WireguardPeer>,
    pub routing_rules: BTreeSet<RoutingRule>,
    /// What BGP brought. `routes` and workloads go before it.
    pub learnt: BTreeMap<IpNet, Learnt>,
    /// BGP has sent all it knows: what else carries its mark in the kernel is old.
    pub learnt_complete: bool,
    pub sets: BTreeMap<SetId, Set>,
    pub policies: BTreeMap<PolicyId, Arc<Policy>>,
    pub profiles: BTreeMap<String, Arc<Profile>>,
    pub workload_policies: BTreeMap<WorkloadId, WorkloadPolicy>,
    pub host_endpoints: BTreeMap<String, HostEndpoint>,
    /// Where services have their addresses. What is still addressed to one when it is forwarded belongs to none, and
    /// would go round between the node and its router.
    pub service_ranges: BTreeSet<IpNet>,
    /// What is asked for on a link of the host is answered by the host, where the link's own subnet has the address.
    pub proxied: BTreeSet<IpAddr>,
    /// None where the node does not speak it.
    pub bgp: Option<Arc<Bgp>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub kind: SetKind,
    pub members: BTreeSet<Member>,
}

/// One change to a plan; `None` takes away. The updates of one flush belong together: in between, a policy may name a
/// set that a later one brings, or goes before the endpoint that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    Workload(WorkloadId, Option<Workload>),
    Route(RouteKey, Option<Route>),
    Tunnel(TunnelKind, Option<TunnelDevice>),
    Vtep(VtepId, Option<Vtep>),
    WireguardPeer(WireguardPeerId, Option<WireguardPeer>),
    /// All of them.
    RoutingRules(BTreeSet<RoutingRule>),
    Learnt(IpNet, Option<Learnt>),
    LearntComplete,
    /// A set comes, empty, or goes with all its members.
    Set(SetId, Option<SetKind>),
    /// Of a set that is there. Nothing is both added and removed.
    Members {
        set: SetId,
        added: Vec<Member>,
        removed: Vec<Member>,
    },
    Policy(PolicyId, Option<Arc<Policy>>),
    Profile(String, Option<Arc<Profile>>),
    WorkloadPolicy(WorkloadId, Option<WorkloadPolicy>),
    HostEndpoint(String, Option<HostEndpoint>),
    ServiceRanges(BTreeSet<IpNet>),
    /// All of them.
    Proxied(BTreeSet<IpAddr>),
    Bgp(Arc<Bgp>),
}

impl Plan {
    pub fn apply(&mut self, update: Update) {
        fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        match update {
            Update::Workload(id, workload) => put(&mut self.workloads, id, workload),
            Update::Route(key, route) => put(&mut self.routes, key, route),
            Update::Tunnel(kind, device) => put(&mut self.tunnels, kind, device),
            Update::Vtep(id, vtep) => put(&mut self.vteps, id, vtep),
            Update::WireguardPeer(id, peer) => put(&mut self.wireguard_peers, id, peer),
            Update::RoutingRules(rules) => self.routing_rules = rules,
            Update::Learnt(net, route) => put(&mut self.learnt, net, route),
            Update::LearntComplete => self.learnt_complete = true,
            Update::Set(id, kind) => {
                put(&mut self.sets, id, kind.map(|kind| Set { kind, members: BTreeSet::new() }));
            }
            Update::Members { set, added, removed } => {
                if let Some(set) = self.sets.get_mut(&set) {
                    removed.iter().for_each(|member| {
                        set.members.remove(member);
                    });
                    set.members.extend(added);
                }
            }
            Update::Policy(id, policy) => put(&mut self.policies, id, policy),
            Update::Profile(name, profile) => put(&mut self.profiles, name, profile),
            Update::WorkloadPolicy(id, workload_policy) => {
                put(&mut self.workload_policies, id, workload_policy)
            }
            Update::HostEndpoint(name, endpoint) => put(&mut self.host_endpoints, name, endpoint),
            Update::ServiceRanges(ranges) => self.service_ranges = ranges,
            Update::Proxied(addresses) => self.proxied = addresses,
            Update::Bgp(bgp) => self.bgp = Some(bgp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rule, RuleIndex};

    /// Plans hold many of these: a field more in one of them is a decision.
    #[test]
    fn hot_structures_keep_their_sizes() {
        assert_eq!(size_of::<Member>(), 22, "a member of a set");
        assert_eq!(size_of::<(RouteKey, Route)>(), 64, "a route");
        assert_eq!(size_of::<Rule>(), 504, "a rule");
        assert_eq!(size_of::<RuleIndex>(), 4);
    }
}
