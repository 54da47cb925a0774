//! Where services have their addresses: the ranges of the BGPConfiguration for all nodes.

use ipnet::IpNet;
use std::collections::BTreeSet;
use tortie_model::kinds::{BGPConfiguration, ServiceIPBlock};
use tortie_plan::Update;

/// The one configuration that counts here.
const FOR_ALL: &str = "default";

#[derive(Debug, Default)]
pub(crate) struct ServiceRanges {
    wanted: BTreeSet<IpNet>,
    in_plan: BTreeSet<IpNet>,
}

impl ServiceRanges {
    /// What cannot be used counts as absent, and is in_plan why.
    pub fn put(&mut self, configuration: &BGPConfiguration) -> Result<(), String> {
        if configuration.metadata.name != FOR_ALL {
            return Ok(());
        }
        self.wanted.clear();
        configuration.validate().map_err(|error| error.to_string())?;
        let spec = &configuration.spec;
        let blocks = [&spec.service_cluster_ips, &spec.service_external_ips, &spec.service_load_balancer_ips];
        let range = |block: &ServiceIPBlock| block.cidr.parse().ok();
        self.wanted = blocks.into_iter().flatten().filter_map(range).collect();
        Ok(())
    }

    pub fn remove(&mut self, name: &str) {
        if name == FOR_ALL {
            self.wanted.clear();
        }
    }

    pub fn flush(&mut self) -> Option<Update> {
        (self.wanted != self.in_plan).then(|| {
            self.in_plan.clone_from(&self.wanted);
            Update::ServiceRanges(self.wanted.clone())
        })
    }
}
