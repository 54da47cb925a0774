//! The plan of a node and the updates that change it.

use crate::bgp::BgpConfig;
use crate::endpoint::{HostEndpointPolicy, WorkloadPolicy};
use crate::policy::{PlannedPolicy, PolicyId, ProfileRules};
use crate::route::{LearntRouteEntry, Route, RouteKey, RoutingRule};
use crate::set::{SetId, SetKind, SetMember};
use crate::tunnel::{TunnelDevice, TunnelKind, Vtep, VtepId, WireguardPeer, WireguardPeerId};
use crate::workload::{PlannedWorkload, WorkloadId};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Everything a node must have in its kernel. Every object that a part of the plan references is in the plan too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodePlan {
    pub workloads: BTreeMap<WorkloadId, PlannedWorkload>,
    pub routes: BTreeMap<RouteKey, Route>,
    pub tunnels: BTreeMap<TunnelKind, TunnelDevice>,
    /// Remote endpoints of the VXLAN tunnels.
    pub vteps: BTreeMap<VtepId, Vtep>,
    /// Peers of the WireGuard tunnels.
    pub wireguard_peers: BTreeMap<WireguardPeerId, WireguardPeer>,
    pub routing_rules: BTreeSet<RoutingRule>,
    /// Routes learned over BGP. `routes` and the routes of workloads take precedence.
    pub learnt: BTreeMap<IpNet, LearntRouteEntry>,
    /// The BGP speaker has sent all its routes: other kernel routes with the route protocol of BGP are stale.
    pub learnt_complete: bool,
    pub sets: BTreeMap<SetId, AddressSet>,
    pub policies: BTreeMap<PolicyId, Arc<PlannedPolicy>>,
    pub profiles: BTreeMap<String, Arc<ProfileRules>>,
    pub workload_policies: BTreeMap<WorkloadId, WorkloadPolicy>,
    pub host_endpoints: BTreeMap<String, HostEndpointPolicy>,
    /// Service ranges. A packet that is still addressed to one of them when it is forwarded belongs to no service,
    /// and would loop between the node and its router.
    pub service_ranges: BTreeSet<IpNet>,
    /// Addresses for which the host answers ARP and ND requests on links whose subnet contains the address.
    pub proxied: BTreeSet<IpAddr>,
    /// `None` if the node does not run BGP.
    pub bgp: Option<Arc<BgpConfig>>,
    /// Labels of all namespaces. Proxies compare them with authenticated peers; without proxies the plan has none.
    pub namespaces: BTreeMap<String, PeerLabels>,
    /// Labels of all service accounts, as for namespaces.
    pub service_accounts: BTreeMap<ServiceAccountId, PeerLabels>,
}

/// Labels of a namespace or of a service account.
pub type PeerLabels = Arc<BTreeMap<String, String>>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceAccountId {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AddressSet {
    pub kind: SetKind,
    pub members: BTreeSet<SetMember>,
}

/// One change to a plan; `None` removes the object. The updates of one flush belong together: between two of them, a
/// policy may reference a set that a later update adds, or may be removed before the endpoint that references it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PlanUpdate {
    Workload(WorkloadId, Option<PlannedWorkload>),
    Route(RouteKey, Option<Route>),
    Tunnel(TunnelKind, Option<TunnelDevice>),
    Vtep(VtepId, Option<Vtep>),
    WireguardPeer(WireguardPeerId, Option<WireguardPeer>),
    /// Replaces all routing rules.
    RoutingRules(BTreeSet<RoutingRule>),
    Learnt(IpNet, Option<LearntRouteEntry>),
    LearntComplete,
    /// Adds an empty set, or removes a set with all its members.
    Set(SetId, Option<SetKind>),
    /// Changes an existing set. No member is both added and removed.
    Members {
        set: SetId,
        added: Vec<SetMember>,
        removed: Vec<SetMember>,
    },
    Policy(PolicyId, Option<Arc<PlannedPolicy>>),
    Profile(String, Option<Arc<ProfileRules>>),
    WorkloadPolicy(WorkloadId, Option<WorkloadPolicy>),
    HostEndpoint(String, Option<HostEndpointPolicy>),
    ServiceRanges(BTreeSet<IpNet>),
    /// Replaces all proxied addresses.
    Proxied(BTreeSet<IpAddr>),
    Bgp(Arc<BgpConfig>),
    Namespace(String, Option<PeerLabels>),
    ServiceAccount(ServiceAccountId, Option<PeerLabels>),
}

impl NodePlan {
    pub fn apply(&mut self, update: PlanUpdate) {
        fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        match update {
            PlanUpdate::Workload(id, workload) => put(&mut self.workloads, id, workload),
            PlanUpdate::Route(key, route) => put(&mut self.routes, key, route),
            PlanUpdate::Tunnel(kind, device) => put(&mut self.tunnels, kind, device),
            PlanUpdate::Vtep(id, vtep) => put(&mut self.vteps, id, vtep),
            PlanUpdate::WireguardPeer(id, peer) => put(&mut self.wireguard_peers, id, peer),
            PlanUpdate::RoutingRules(rules) => self.routing_rules = rules,
            PlanUpdate::Learnt(net, route) => put(&mut self.learnt, net, route),
            PlanUpdate::LearntComplete => self.learnt_complete = true,
            PlanUpdate::Set(id, kind) => {
                put(&mut self.sets, id, kind.map(|kind| AddressSet { kind, members: BTreeSet::new() }));
            }
            PlanUpdate::Members { set, added, removed } => {
                if let Some(set) = self.sets.get_mut(&set) {
                    removed.iter().for_each(|member| {
                        set.members.remove(member);
                    });
                    set.members.extend(added);
                }
            }
            PlanUpdate::Policy(id, policy) => put(&mut self.policies, id, policy),
            PlanUpdate::Profile(name, profile) => put(&mut self.profiles, name, profile),
            PlanUpdate::WorkloadPolicy(id, workload_policy) => {
                put(&mut self.workload_policies, id, workload_policy)
            }
            PlanUpdate::HostEndpoint(name, endpoint) => put(&mut self.host_endpoints, name, endpoint),
            PlanUpdate::ServiceRanges(ranges) => self.service_ranges = ranges,
            PlanUpdate::Proxied(addresses) => self.proxied = addresses,
            PlanUpdate::Bgp(bgp) => self.bgp = Some(bgp),
            PlanUpdate::Namespace(name, labels) => put(&mut self.namespaces, name, labels),
            PlanUpdate::ServiceAccount(id, labels) => put(&mut self.service_accounts, id, labels),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PlannedRule, RuleIndex};

    /// A plan holds many of these, so a size may only grow deliberately.
    #[test]
    fn hot_structures_keep_their_sizes() {
        assert_eq!(size_of::<SetMember>(), 22, "a member of a set");
        assert_eq!(size_of::<(RouteKey, Route)>(), 64, "a route");
        assert_eq!(size_of::<PlannedRule>(), 480, "a rule");
        assert_eq!(size_of::<RuleIndex>(), 4);
    }
}
