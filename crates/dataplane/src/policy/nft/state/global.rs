//! The chains, sets and maps that belong to no single policy, set or workload: base chains, NAT, tunnels and host
//! endpoints. A change of any input renders all of them.

use super::super::render::entry::BaseChainRenderer;
use super::super::render::tunnels::{TunnelProperties, TunnelRenderer};
use super::super::render::{
    KnownSets, MarkedHook, TierRenderer, WorkloadInterfaces, arp, dscp, floating, flow, metadata, names, nat,
};
use super::super::rule::NftFamily;
use super::super::table::{NftSet, NftTable, SetType};
use super::hosts::HostEndpoints;
use super::workloads::WorkloadEndpoints;
use super::{PolicyTables, put};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{DataplaneSettings, SetId, TunnelDevice, TunnelKind};

pub struct GlobalChains {
    service_ranges: BTreeSet<IpNet>,
    tunnels: BTreeMap<TunnelKind, TunnelProperties>,
    /// Names of the rendered chains, sets and maps.
    names: BTreeSet<String>,
    /// Hooks and priorities at which allowed packets have a mark.
    pub allowed: Vec<MarkedHook>,
    /// Whether everything has to be rendered again.
    pub stale: bool,
}

impl Default for GlobalChains {
    fn default() -> GlobalChains {
        GlobalChains {
            service_ranges: BTreeSet::new(),
            tunnels: BTreeMap::new(),
            names: BTreeSet::new(),
            allowed: Vec::new(),
            stale: true,
        }
    }
}

/// The parts of the state that the chains depend on.
pub struct GlobalInputs<'s> {
    pub settings: &'s DataplaneSettings,
    pub sets: &'s KnownSets,
    pub tiers: TierRenderer<'s>,
    pub workloads: &'s WorkloadEndpoints,
    pub hosts: &'s HostEndpoints,
}

impl GlobalChains {
    pub fn tunnels(&self) -> &BTreeMap<TunnelKind, TunnelProperties> {
        &self.tunnels
    }

    pub fn put_tunnel(&mut self, kind: &TunnelKind, device: Option<&TunnelDevice>) {
        let tunnel = device.map(TunnelProperties::from);
        self.stale |= put(&mut self.tunnels, kind, tunnel.clone()) != tunnel;
    }

    pub fn set_service_ranges(&mut self, ranges: &BTreeSet<IpNet>) {
        self.service_ranges.clone_from(ranges);
        self.stale = true;
    }

    /// Returns whether one of the chains refers to a set.
    pub fn refers_to_set(&self, set: &SetId) -> bool {
        nat::refers_to(set)
            || dscp::refers_to(set)
            || self.tunnels.keys().any(|kind| kind.peers().as_ref() == Some(set))
    }

    pub fn render(&mut self, inputs: GlobalInputs<'_>, tables: &mut PolicyTables) {
        let GlobalInputs { settings, sets, tiers, workloads, hosts } = inputs;
        let interfaces = WorkloadInterfaces {
            prefixes: &settings.interface_prefixes,
            others: tables.policy.has_elements(names::UNCOVERED_WORKLOADS_SET),
        };
        let mut source_nets = NftFamily::BOTH.to_vec();
        source_nets.retain(|family| tables.policy.has_elements(&names::source_nets(*family)));
        let host_chains = hosts.render(tiers);
        let base = BaseChainRenderer {
            settings,
            workloads: interfaces,
            hooks: &host_chains.hooks,
            tunnels: TunnelRenderer { tunnels: &self.tunnels, sets },
        };
        let floating = floating::render(workloads.floating_addresses());
        let ambient = dscp::AmbientMarking { dscp: settings.policy.ambient_dscp, workloads: interfaces };
        let marked = workloads.marked_addresses().chain(hosts.marked_addresses());
        let marking = dscp::render(marked, ambient, sets);

        let mut table =
            NftTable { chains: base.chains(&self.service_ranges, &source_nets), ..Default::default() };
        self.allowed = base.allowed();
        let flows = flow::render(&settings.policy, interfaces);
        table.chains.extend(flows.chains);
        table.sets.extend(flows.sets);
        table.chains.extend(metadata::chains(settings.policy.metadata, interfaces));
        table.chains.extend(nat::chains(&settings.nat, sets, &self.tunnels, floating.outgoing));
        table.chains.extend(floating.chains.into_iter().chain(marking.chains).chain(host_chains.chains));
        table.sets.extend(floating.sets.into_iter().chain(marking.sets));
        for (name, elements) in host_chains.maps {
            table.sets.insert(name, NftSet { kind: SetType::Chains, elements });
        }
        for (name, elements) in host_chains.port_maps {
            table.sets.insert(name, NftSet { kind: SetType::PortChains, elements });
        }
        let covered = host_chains.hooks.covered.interfaces;
        if !covered.is_empty() {
            let set = NftSet { kind: SetType::Interfaces, elements: covered };
            table.sets.insert(names::HOST_INTERFACES.to_owned(), set);
        }
        self.replace(table, tables);
        for (name, chain) in arp::chains(&interfaces) {
            tables.arp.put_chain(name, chain);
        }
    }

    /// Replaces all previously rendered chains and sets.
    fn replace(&mut self, table: NftTable, tables: &mut PolicyTables) {
        let names: BTreeSet<String> = table.chains.keys().chain(table.sets.keys()).cloned().collect();
        for name in self.names.difference(&names) {
            tables.policy.drop_chain(name);
            tables.policy.drop_set(name);
        }
        self.names = names;
        for (name, set) in table.sets {
            tables.policy.put_set(name.clone(), set.kind);
            tables.policy.replace_elements(&name, set.elements);
        }
        for (name, chain) in table.chains {
            tables.policy.put_chain(name, chain);
        }
    }
}
