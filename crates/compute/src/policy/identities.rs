//! Finds the object of the cluster that has an address, for flow records.

use super::PolicyCompute;
use super::labelled::{LabelledItem, LabelledKind};
use ipnet::IpNet;
use std::net::IpAddr;
use tortie_model::names::split_workload_endpoint_name;
use tortie_plan::{AddressIdentity, IdentityKind};

impl PolicyCompute {
    /// Returns the object that an address belongs to: a workload, else a host endpoint that expects it, else the network
    /// set with the longest matching prefix. Among several the one with the smallest name counts.
    pub fn identify(&self, address: IpAddr) -> Option<AddressIdentity> {
        let exact = IpNet::from(address);
        self.find_identity(exact, |item| item.kind() == LabelledKind::Workload)
            .or_else(|| self.find_identity(exact, |item| item.kind() == LabelledKind::Host))
            .or_else(|| {
                (0..=exact.max_prefix_len()).rev().find_map(|length| {
                    let net = IpNet::new(address, length).ok()?.trunc();
                    self.find_identity(net, |item| !item.is_endpoint())
                })
            })
    }

    fn find_identity(&self, net: IpNet, wanted: impl Fn(&LabelledItem) -> bool) -> Option<AddressIdentity> {
        let found = self.labelled.having(net).map(|(_, item)| item).filter(|item| wanted(item));
        let item =
            found.min_by_key(|item| (self.symbols.text(item.namespace), self.labelled.name_of(item)))?;
        Some(self.describe_item(item))
    }

    fn describe_item(&self, item: &LabelledItem) -> AddressIdentity {
        let mut labels: Vec<String> = Vec::new();
        let mut known: Vec<&str> = Vec::new();
        for (key, value) in self.symbols.all_labels(item.class) {
            let key = self.symbols.text(key);
            if !known.contains(&key) {
                known.push(key);
                labels.push(format!("{key}={}", self.symbols.text(value)));
            }
        }
        labels.sort_unstable();
        let name = self.labelled.name_of(item);
        let (kind, name) = match item.kind() {
            LabelledKind::Workload => (IdentityKind::Workload, self.name_workload(item, name)),
            LabelledKind::Host => (IdentityKind::HostEndpoint, name.to_owned()),
            LabelledKind::NetworkSet | LabelledKind::GlobalNetworkSet => {
                (IdentityKind::NetworkSet, name.to_owned())
            }
        };
        AddressIdentity { kind, namespace: self.symbols.text(item.namespace).to_owned(), name, labels }
    }

    /// Returns the name under which Calico records flows of a workload: that of all pods of the same owner, if the name of
    /// the pod was generated, else the name of the workload without its node and interface.
    fn name_workload(&self, item: &LabelledItem, endpoint: &str) -> String {
        match self.symbols.text(item.name_prefix) {
            "" => match split_workload_endpoint_name(endpoint) {
                Some([_, _, workload, _]) => workload,
                None => endpoint.to_owned(),
            },
            prefix => format!("{prefix}*"),
        }
    }
}
