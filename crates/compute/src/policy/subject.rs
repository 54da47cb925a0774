//! Reads labels, addresses and named ports from a resource.

use super::convert;
use super::ids::{ClassId, Symbol};
use super::labelled::NamedPort;
use super::symbols::SymbolTable;
use crate::workloads::addresses;
use ipnet::IpNet;
use std::borrow::Cow;
use std::collections::BTreeMap;
use tortie_model::kinds::{GlobalNetworkSet, HostEndpoint, NetworkSet, WorkloadEndpoint};
use tortie_model::scalar::Protocol;

const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
const ORCHESTRATOR_LABEL: &str = "projectcalico.org/orchestrator";
const SERVICE_ACCOUNT_LABEL: &str = "projectcalico.org/serviceaccount";

pub(super) struct LabelledSource<'a> {
    labels: Vec<(&'a str, &'a str)>,
    profiles: Vec<Cow<'a, str>>,
    nets: Vec<IpNet>,
    ports: Vec<(&'a str, u8, u16)>,
    node: &'a str,
    name_prefix: &'a str,
}

impl<'a> LabelledSource<'a> {
    pub fn of_workload(endpoint: &'a WorkloadEndpoint) -> LabelledSource<'a> {
        let meta = &endpoint.metadata;
        let spec = &endpoint.spec;
        let mut labels = Vec::with_capacity(meta.labels.len() + 3);
        // These labels come from profiles alone: an endpoint cannot claim to be in another namespace.
        let own = pairs(&meta.labels);
        labels.extend(own.filter(|(key, _)| !key.starts_with("pcns.") && !key.starts_with("pcsa.")));
        set_label(&mut labels, NAMESPACE_LABEL, &meta.namespace);
        set_label(&mut labels, ORCHESTRATOR_LABEL, &spec.orchestrator);
        set_label(&mut labels, SERVICE_ACCOUNT_LABEL, &spec.service_account_name);
        let ports = spec.ports.iter().map(|port| (port.name.as_str(), &port.protocol, port.port));
        let nets = addresses(endpoint).map(IpNet::from).collect();
        let name_prefix = meta.generate_name.as_str();
        let rest = LabelledSource::new(&spec.profiles, nets, ports);
        LabelledSource { labels, node: &spec.node, name_prefix, ..rest }
    }

    /// Reads a host endpoint. Its addresses are the expected ones: those of its interface are unknown to other nodes.
    pub fn of_host_endpoint(endpoint: &'a HostEndpoint) -> LabelledSource<'a> {
        let spec = &endpoint.spec;
        let ports = spec.ports.iter().map(|port| (port.name.as_str(), &port.protocol, port.port));
        let nets = spec.expected_ips.iter().filter_map(|ip| convert::parse_net(ip)).collect();
        let labels = pairs(&endpoint.metadata.labels).collect();
        LabelledSource { labels, ..LabelledSource::new(&spec.profiles, nets, ports) }
    }

    /// Reads a network set. It inherits the labels of its namespace.
    pub fn of_network_set(network_set: &'a NetworkSet, nets: Vec<IpNet>) -> LabelledSource<'a> {
        let meta = &network_set.metadata;
        let mut labels = pairs(&meta.labels).collect();
        set_label(&mut labels, NAMESPACE_LABEL, &meta.namespace);
        let profiles = vec![Cow::Owned(format!("kns.{}", meta.namespace))];
        LabelledSource { labels, profiles, ..LabelledSource::new(&[], nets, std::iter::empty()) }
    }

    pub fn of_global_network_set(set: &'a GlobalNetworkSet, nets: Vec<IpNet>) -> LabelledSource<'a> {
        let labels = pairs(&set.metadata.labels).collect();
        LabelledSource { labels, ..LabelledSource::new(&[], nets, std::iter::empty()) }
    }

    fn new(
        profiles: &'a [String],
        mut nets: Vec<IpNet>,
        ports: impl Iterator<Item = (&'a str, &'a Protocol, u16)>,
    ) -> LabelledSource<'a> {
        nets.sort_unstable();
        nets.dedup();
        let ports = ports.filter(|(name, ..)| !name.is_empty()).filter_map(|(name, protocol, port)| {
            // Workload endpoints have protocols in lower case.
            let number = Protocol::from_any_case(&protocol.to_string()).number()?;
            Some((name, number, port))
        });
        let names = profiles.iter().enumerate();
        let unique = names.filter(|(index, name)| !profiles[..*index].contains(name));
        let profiles = unique.map(|(_, name)| Cow::Borrowed(name.as_str())).collect();
        LabelledSource {
            labels: Vec::new(),
            profiles,
            nets,
            ports: ports.collect(),
            node: "",
            name_prefix: "",
        }
    }

    /// Returns the class and adds a reference to it.
    pub fn hold_class(&self, symbols: &mut SymbolTable) -> ClassId {
        symbols.class(self.labels.iter().copied(), self.profiles.iter().map(AsRef::as_ref))
    }

    /// Returns the ports and adds a reference to their names.
    pub fn hold_ports(&self, symbols: &mut SymbolTable) -> Vec<NamedPort> {
        let ports = self.ports.iter();
        let mut ports: Vec<NamedPort> = ports
            .map(|&(name, protocol, port)| NamedPort { name: symbols.hold(name), protocol, port })
            .collect();
        ports.sort_unstable();
        ports
    }

    /// Returns the node of a workload endpoint and adds a reference to its name.
    pub fn hold_node(&self, symbols: &mut SymbolTable) -> Symbol {
        symbols.hold(self.node)
    }

    /// Returns the prefix of a generated name and adds a reference to it.
    pub fn hold_name_prefix(&self, symbols: &mut SymbolTable) -> Symbol {
        symbols.hold(self.name_prefix)
    }

    pub fn nets(&self) -> &[IpNet] {
        &self.nets
    }
}

/// Returns each name once, in the order of first occurrence.
pub(super) fn deduplicate(names: &[String]) -> Vec<String> {
    let mut unique: Vec<String> = Vec::with_capacity(names.len());
    for name in names {
        if !unique.contains(name) {
            unique.push(name.clone());
        }
    }
    unique
}

fn pairs(labels: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    labels.iter().map(|(key, value)| (key.as_str(), value.as_str()))
}

/// Sets a label to the value of a field of the object, which takes precedence over the object's labels.
fn set_label<'a>(labels: &mut Vec<(&'a str, &'a str)>, key: &'static str, value: &'a str) {
    labels.retain(|(other, _)| *other != key);
    if !value.is_empty() {
        labels.push((key, value));
    }
}
