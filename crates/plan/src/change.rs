//! The plan of a node and the updates that change it.

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

/// Everything a node must have in its kernel. Every object that a part of the plan references is in the plan too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub workloads: BTreeMap<WorkloadId, Workload>,
    pub routes: BTreeMap<RouteKey, Route>,
    pub tunnels: BTreeMap<TunnelKind, TunnelDevice>,
    /// Remote endpoints of the VXLAN tunnels.
    pub vteps: BTreeMap<VtepId, Vtep>,
    /// Peers of the WireGuard tunnels.
    pub wireguard_peers: BTreeMap<WireguardPeerId, WireguardPeer>,
    pub routing_rules: BTreeSet<RoutingRule>,
    /// Routes learned over BGP. `routes` and the routes of workloads take precedence.
    pub learnt: BTreeMap<IpNet, Learnt>,
    /// The BGP speaker has sent all its routes: other kernel routes with the route protocol of BGP are stale.
    pub learnt_complete: bool,
    pub sets: BTreeMap<SetId, Set>,
    pub policies: BTreeMap<PolicyId, Arc<Policy>>,
    pub profiles: BTreeMap<String, Arc<Profile>>,
    pub workload_policies: BTreeMap<WorkloadId, WorkloadPolicy>,
    pub host_endpoints: BTreeMap<String, HostEndpoint>,
    /// Service ranges. A packet that is still addressed to one of them when it is forwarded belongs to no service,
    /// and would loop between the node and its router.
    pub service_ranges: BTreeSet<IpNet>,
    /// Addresses for which the host answers ARP and ND requests on links whose subnet contains the address.
    pub proxied: BTreeSet<IpAddr>,
    /// `None` if the node does not run BGP.
    pub bgp: Option<Arc<Bgp>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub kind: SetKind,
    pub members: BTreeSet<Member>,
}

/// One change to a plan; `None` removes the object. The updates of one flush belong together: between two of them, a
/// policy may reference a set that a later update adds, or may be removed before the endpoint that references it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    Workload(WorkloadId, Option<Workload>),
    Route(RouteKey, Option<Route>),
    Tunnel(TunnelKind, Option<TunnelDevice>),
    Vtep(VtepId, Option<Vtep>),
    WireguardPeer(WireguardPeerId, Option<WireguardPeer>),
    /// Replaces all routing rules.
    RoutingRules(BTreeSet<RoutingRule>),
    Learnt(IpNet, Option<Learnt>),
    LearntComplete,
    /// Adds an empty set, or removes a set with all its members.
    Set(SetId, Option<SetKind>),
    /// Changes an existing set. No member is both added and removed.
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
    /// Replaces all proxied addresses.
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

    /// A plan holds many of these, so a size may only grow deliberately.
    #[test]
    fn hot_structures_keep_their_sizes() {
        assert_eq!(size_of::<Member>(), 22, "a member of a set");
        assert_eq!(size_of::<(RouteKey, Route)>(), 64, "a route");
        assert_eq!(size_of::<Rule>(), 504, "a rule");
        assert_eq!(size_of::<RuleIndex>(), 4);
    }
}
