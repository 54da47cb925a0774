//! Service ranges in the plan: those of the BGPConfiguration for all nodes, and the service addresses for which this
//! node answers ARP and ND requests.

use crate::conversion_error::parse_cidr;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use tortie_model::kinds::{BGPConfiguration, ServiceIPBlock};
use tortie_plan::PlanUpdate;

/// The only BGPConfiguration that is used here.
const GLOBAL_CONFIGURATION: &str = "default";

#[derive(Debug, Default)]
pub(crate) struct ServiceRanges {
    configured: BTreeSet<IpNet>,
    answered: BTreeSet<IpNet>,
    in_plan: BTreeSet<IpNet>,
}

impl ServiceRanges {
    /// Adds or replaces a configuration. Returns a description of the invalid ranges; the valid ones are used.
    pub fn put(&mut self, configuration: &BGPConfiguration) -> Option<String> {
        if configuration.metadata.name != GLOBAL_CONFIGURATION {
            return None;
        }
        self.configured.clear();
        let spec = &configuration.spec;
        let blocks = [&spec.service_cluster_ips, &spec.service_external_ips, &spec.service_load_balancer_ips];
        let mut invalid = Vec::new();
        for ServiceIPBlock { cidr } in blocks.into_iter().flatten() {
            match parse_cidr("cidr", cidr) {
                Ok(range) => {
                    self.configured.insert(range.trunc());
                }
                Err(error) => invalid.push(error.to_string()),
            }
        }
        (!invalid.is_empty()).then(|| invalid.join(", ") + "; the other service ranges are used")
    }

    pub fn remove(&mut self, name: &str) {
        if name == GLOBAL_CONFIGURATION {
            self.configured.clear();
        }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.configured.iter().any(|range| range.contains(&address))
    }

    /// Sets the service addresses for which this node answers ARP and ND requests.
    pub fn set_answered(&mut self, addresses: &BTreeSet<IpAddr>) {
        if !addresses.iter().copied().map(IpNet::from).eq(self.answered.iter().copied()) {
            self.answered = addresses.iter().copied().map(IpNet::from).collect();
        }
    }

    pub fn flush(&mut self) -> Option<PlanUpdate> {
        if self.configured.union(&self.answered).eq(&self.in_plan) {
            return None;
        }
        self.in_plan = self.configured.union(&self.answered).copied().collect();
        Some(PlanUpdate::ServiceRanges(self.in_plan.clone()))
    }
}
