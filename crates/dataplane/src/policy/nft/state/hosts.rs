//! Host endpoints and the interfaces that they are assigned to.

use super::super::render::hosts::HostChains;
use super::super::render::{PolicyStage, TierRenderer, hosts};
use super::put;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{EndpointTier, HostEndpointAssignment, HostEndpointPolicy, PolicyId};

#[derive(Default)]
pub struct HostEndpoints {
    endpoints: BTreeMap<String, HostEndpointPolicy>,
    /// Interfaces that do not belong to workloads, and their addresses.
    interfaces: BTreeMap<String, Vec<IpAddr>>,
    assignment: HostEndpointAssignment,
}

impl HostEndpoints {
    pub fn endpoints(&self) -> &BTreeMap<String, HostEndpointPolicy> {
        &self.endpoints
    }

    /// Sets or removes an endpoint. Returns the policies that the old or the new one lists.
    pub fn put(&mut self, name: &String, endpoint: Option<&HostEndpointPolicy>) -> Vec<PolicyId> {
        let old = put(&mut self.endpoints, name, endpoint.cloned());
        old.iter().chain(endpoint).flat_map(listed_policies).cloned().collect()
    }

    /// Sets the interfaces that do not belong to workloads. Returns whether they have changed.
    pub fn set_interfaces(&mut self, interfaces: BTreeMap<String, Vec<IpAddr>>) -> bool {
        let changed = self.interfaces != interfaces;
        self.interfaces = interfaces;
        changed
    }

    /// Assigns endpoints to interfaces. Returns whether the assignment has changed.
    pub fn assign(&mut self, leads_to_workload: impl Fn(&str) -> bool) -> bool {
        // An interface that an endpoint names is guarded before it exists.
        let mut interfaces = self.interfaces.clone();
        for endpoint in self.endpoints.values() {
            let name = endpoint.interface.as_str();
            if !name.is_empty() && name != "*" && !leads_to_workload(name) {
                interfaces.entry(name.to_owned()).or_default();
            }
        }
        let assignment = tortie_plan::assign(&self.endpoints, &interfaces);
        let changed = assignment != self.assignment;
        self.assignment = assignment;
        changed
    }

    /// Returns the endpoints by name with their interfaces; `None` means all interfaces.
    pub fn interfaces_by_endpoint(&self) -> BTreeMap<String, Option<Vec<String>>> {
        let mut interfaces: BTreeMap<String, Option<Vec<String>>> =
            self.endpoints.keys().map(|name| (name.clone(), Some(Vec::new()))).collect();
        for (interface, name) in &self.assignment.specific {
            if let Some(Some(interfaces)) = interfaces.get_mut(name) {
                interfaces.push(interface.clone());
            }
        }
        if let Some(interfaces) =
            self.assignment.everywhere.as_ref().and_then(|name| interfaces.get_mut(name))
        {
            *interfaces = None;
        }
        interfaces
    }

    pub fn list_policy(&self, id: &PolicyId) -> bool {
        self.endpoints.values().flat_map(listed_policies).any(|listed| listed == id)
    }

    pub fn list_profile(&self, name: &String) -> bool {
        self.endpoints.values().any(|endpoint| endpoint.profiles.contains(name))
    }

    /// Returns the stages, besides the normal one, that a policy needs a chain for: those in which an endpoint lists
    /// it.
    pub fn stages_of_policy(&self, id: &PolicyId) -> BTreeSet<PolicyStage> {
        let lists = self.endpoints.values().flat_map(policy_lists);
        let listing = lists.filter(|(stage, tiers)| {
            *stage != PolicyStage::Normal && policies_of(tiers).any(|listed| listed == id)
        });
        listing.map(|(stage, _)| stage).collect()
    }

    /// Returns the addresses of hosts that have a DSCP value, with that value.
    pub fn marked_addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        self.endpoints
            .values()
            .filter_map(|endpoint| Some((&endpoint.expected, endpoint.dscp?)))
            .flat_map(|(addresses, dscp)| addresses.iter().map(move |address| (*address, dscp)))
    }

    pub fn render(&self, tiers: TierRenderer<'_>) -> HostChains {
        hosts::render(&self.endpoints, &self.assignment, tiers)
    }
}

fn policy_lists(endpoint: &HostEndpointPolicy) -> [(PolicyStage, &[EndpointTier]); 4] {
    [
        (PolicyStage::Normal, &endpoint.tiers),
        (PolicyStage::Forward, &endpoint.forward),
        (PolicyStage::PreDnat, &endpoint.pre_dnat),
        (PolicyStage::Untracked, &endpoint.untracked),
    ]
}

fn listed_policies(endpoint: &HostEndpointPolicy) -> impl Iterator<Item = &PolicyId> {
    policy_lists(endpoint).into_iter().flat_map(|(_, tiers)| policies_of(tiers))
}

/// Returns the policies of all tiers.
pub fn policies_of(tiers: &[EndpointTier]) -> impl Iterator<Item = &PolicyId> {
    tiers.iter().flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter()))
}
