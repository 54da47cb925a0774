//! Prevents workloads from using links of the host.
//!
//! A stored endpoint can name any interface. If one of the interface prefixes covers the name, the link belongs to a
//! workload. Other names are checked against the kernel: a link that the host itself uses gets no policy, routes or
//! settings of a workload, and the endpoint is reported.

use super::ReconcileContext;
use super::routes::RouteReconciler;
use crate::failure::{KernelFailure, KernelObject};
use std::collections::BTreeMap;
use std::net::IpAddr;
use thiserror::Error;
use tortie_plan::{NodePlan, PlanUpdate, PlannedWorkload, WorkloadId, WorkloadPolicy};

/// The reason why a link cannot belong to a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum LinkRefusal {
    #[error("it is the loopback of the host")]
    Loopback,
    #[error("it is a tunnel of the host")]
    Tunnel,
    #[error("it is a physical device of the host")]
    Physical,
    #[error("the host has the address {0} there")]
    Address(IpAddr),
    #[error("the default route of the host leads there")]
    DefaultRoute,
    #[error("it is the interface of a HostEndpoint")]
    HostEndpoint,
}

/// A workload of the plan whose interface is not covered by a prefix, or was not until its policy has moved too.
#[derive(Debug, Default)]
struct LinkClaim {
    workload: Option<PlannedWorkload>,
    policy: Option<WorkloadPolicy>,
    refusal: Option<RefusedLink>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RefusedLink {
    interface: String,
    reason: LinkRefusal,
}

#[derive(Debug, Default)]
pub struct LinkGate {
    claims: BTreeMap<WorkloadId, LinkClaim>,
    /// Interfaces that host endpoints name, by endpoint.
    host_endpoints: BTreeMap<String, String>,
}

impl LinkClaim {
    /// Returns the interfaces of the workload and of its policy, which may still be the former one while an endpoint
    /// moves.
    fn interfaces(&self) -> impl Iterator<Item = &str> {
        let workload = self.workload.iter().map(|workload| workload.interface.as_str());
        workload.chain(self.policy.iter().map(|policy| policy.interface.as_str()))
    }

    fn updates(&self, id: &WorkloadId) -> [PlanUpdate; 2] {
        let granted = self.refusal.is_none();
        let policy = self.policy.clone().filter(|_| granted);
        let workload = self.workload.clone().filter(|_| granted);
        [PlanUpdate::WorkloadPolicy(id.clone(), policy), PlanUpdate::Workload(id.clone(), workload)]
    }
}

impl LinkGate {
    /// Removes the workloads on links of the host from a new plan.
    pub fn withhold(&mut self, plan: &mut NodePlan, context: &ReconcileContext, routes: &RouteReconciler) {
        *self = LinkGate::default();
        for (name, endpoint) in &plan.host_endpoints {
            self.host_endpoints.insert(name.clone(), endpoint.interface.clone());
        }
        for (id, workload) in &plan.workloads {
            if !context.has_workload_prefix(&workload.interface) {
                self.claims.entry(id.clone()).or_default().workload = Some(workload.clone());
            }
        }
        for (id, policy) in &plan.workload_policies {
            if !context.has_workload_prefix(&policy.interface) {
                self.claims.entry(id.clone()).or_default().policy = Some(policy.clone());
            }
        }
        self.review(context, routes);
        for (id, _) in self.claims.iter().filter(|(_, claim)| claim.refusal.is_some()) {
            plan.workloads.remove(id);
            plan.workload_policies.remove(id);
        }
    }

    /// Returns the updates to apply: for a workload on a link of the host, updates that remove its previous state.
    pub fn sift(
        &mut self,
        update: PlanUpdate,
        context: &ReconcileContext,
        routes: &RouteReconciler,
    ) -> Vec<PlanUpdate> {
        let (id, interface) = match &update {
            PlanUpdate::Workload(id, new) => (id, new.as_ref().map(|new| &new.interface)),
            PlanUpdate::WorkloadPolicy(id, new) => (id, new.as_ref().map(|new| &new.interface)),
            PlanUpdate::HostEndpoint(name, new) => {
                self.host_endpoints.remove(name);
                let interface = new.as_ref().map(|endpoint| (name.clone(), endpoint.interface.clone()));
                self.host_endpoints.extend(interface);
                return vec![update];
            }
            _ => return vec![update],
        };
        let id = id.clone();
        let is_known = interface.is_none_or(|interface| context.has_workload_prefix(interface));
        if is_known && !self.claims.contains_key(&id) {
            return vec![update];
        }
        let claim = self.claims.entry(id.clone()).or_default();
        match &update {
            PlanUpdate::Workload(_, new) => claim.workload.clone_from(new),
            PlanUpdate::WorkloadPolicy(_, new) => claim.policy.clone_from(new),
            _ => {}
        }
        let changed = self.review_claim(&id, context, routes);
        let Some(claim) = self.claims.get(&id) else { return vec![update] };
        if claim.refusal.is_some() {
            return claim.updates(&id).into();
        }
        if claim.interfaces().all(|interface| context.has_workload_prefix(interface)) {
            self.claims.remove(&id);
        }
        changed.map_or_else(|| vec![update], Vec::from)
    }

    /// Checks all claims again, and returns the resulting updates.
    pub fn review(&mut self, context: &ReconcileContext, routes: &RouteReconciler) -> Vec<PlanUpdate> {
        let ids: Vec<WorkloadId> = self.claims.keys().cloned().collect();
        ids.iter().filter_map(|id| self.review_claim(id, context, routes)).flatten().collect()
    }

    fn review_claim(
        &mut self,
        id: &WorkloadId,
        context: &ReconcileContext,
        routes: &RouteReconciler,
    ) -> Option<[PlanUpdate; 2]> {
        let refusal = self.find_refusal(self.claims.get(id)?, context, routes);
        let claim = self.claims.get_mut(id)?;
        if claim.refusal == refusal {
            return None;
        }
        if let Some(RefusedLink { interface, reason }) = &refusal {
            tracing::warn!(
                interface,
                %reason,
                "an endpoint names an interface of the host; correct the WorkloadEndpoint"
            );
        }
        claim.refusal = refusal;
        Some(claim.updates(id))
    }

    /// Returns a failure for each workload that is kept off its link.
    pub fn failures(&self) -> impl Iterator<Item = KernelFailure> {
        self.claims.iter().filter_map(|(id, claim)| {
            let RefusedLink { interface, reason } = claim.refusal.as_ref()?;
            let reason = format!("it cannot be the interface of a workload: {reason}").into();
            let concerns = [id.clone()].into_iter().collect();
            Some(KernelFailure { object: KernelObject::interface(interface), concerns, reason })
        })
    }

    fn find_refusal(
        &self,
        claim: &LinkClaim,
        context: &ReconcileContext,
        routes: &RouteReconciler,
    ) -> Option<RefusedLink> {
        claim.interfaces().find_map(|interface| {
            let reason = self.judge_link(claim, interface, context, routes)?;
            Some(RefusedLink { interface: interface.to_owned(), reason })
        })
    }

    fn judge_link(
        &self,
        claim: &LinkClaim,
        interface: &str,
        context: &ReconcileContext,
        routes: &RouteReconciler,
    ) -> Option<LinkRefusal> {
        if context.has_workload_prefix(interface) {
            return None;
        }
        if interface == "lo" {
            return Some(LinkRefusal::Loopback);
        }
        if self.host_endpoints.values().any(|name| name == interface) {
            return Some(LinkRefusal::HostEndpoint);
        }
        if context.tunnel_called(interface).is_some() {
            return Some(LinkRefusal::Tunnel);
        }
        let link = context.links.named(interface)?;
        if link.is_tunnel() {
            return Some(LinkRefusal::Tunnel);
        }
        if link.kind.is_none() {
            return Some(LinkRefusal::Physical);
        }
        // For a BGP session with the workload, the host has an address on its link.
        let peer = claim.workload.as_ref().and_then(|workload| workload.bgp_peer.as_ref());
        let own: &[IpAddr] = peer.map_or(&[], |peer| &peer.addresses);
        let mut addresses = context.links.addresses_of(link.index);
        if let Some(address) = addresses.find(|address| !is_link_local(*address) && !own.contains(address)) {
            return Some(LinkRefusal::Address(address));
        }
        routes.has_default_through(link.index).then_some(LinkRefusal::DefaultRoute)
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
