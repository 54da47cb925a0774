//! Collects the users of addresses: tunnels of nodes, workloads, services, and the attachments of this host.

use super::journal::AttachmentJournals;
use crate::failure::CommandResult;
use crate::session::string_at;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::IpAddr;
use tortie_ipam::IpamRecords;
use tortie_ipam::block;
use tortie_ipam::owner::{WINDOWS_RESERVED_HANDLE, attribute};
use tortie_model::Kind;
use tortie_model::ipam::AddressBlock;
use tortie_store::ResourceClient;

/// Maximum number of nodes listed in a warning.
const MAX_NAMED_NODES: usize = 8;
/// The fields of a Node with its tunnel addresses.
const TUNNEL_FIELDS: [&str; 5] = [
    "/spec/bgp/ipv4IPIPTunnelAddr",
    "/spec/ipv4VXLANTunnelAddr",
    "/spec/ipv6VXLANTunnelAddr",
    "/spec/wireguard/interfaceIPv4Address",
    "/spec/wireguard/interfaceIPv6Address",
];

/// The users of each address.
#[derive(Debug, Default)]
pub struct AddressUsers {
    pub by_address: BTreeMap<IpAddr, Vec<String>>,
    /// Addresses with more than one live holder, and the holders.
    pub conflicts: BTreeMap<IpAddr, BTreeSet<String>>,
    /// Namespace and name of the endpoints of each address.
    endpoints: BTreeMap<IpAddr, Vec<(String, String)>>,
    nodes: BTreeSet<String>,
}

impl AddressUsers {
    /// Loads all users that are visible from this host.
    pub async fn load(
        store: &ResourceClient,
        blocks: &[AddressBlock],
        journals: &AttachmentJournals,
        show_all: bool,
        out: &mut dyn Write,
    ) -> CommandResult<AddressUsers> {
        let records = IpamRecords::new(store.client().clone());
        let mut users = AddressUsers::default();
        users.add_tunnels(&records, show_all, out).await?;
        users.add_services(&records, blocks, out).await?;
        users.add_workloads(store, show_all, out).await?;
        users.add_attachments(journals, blocks, show_all, out)?;
        for allocation in blocks.iter().flat_map(block::allocations) {
            if allocation.handle() == Some(WINDOWS_RESERVED_HANDLE) {
                users.add(allocation.address, "Windows reserved".to_owned());
            }
        }
        Ok(users)
    }

    /// Returns the users of an address as text.
    pub fn list(&self, address: &IpAddr) -> String {
        self.by_address.get(address).map(|users| users.join(", ")).unwrap_or_default()
    }

    fn add(&mut self, address: IpAddr, user: String) {
        self.by_address.entry(address).or_default().push(user);
    }

    fn add_conflict(&mut self, address: IpAddr, holders: impl IntoIterator<Item = String>) {
        self.conflicts.entry(address).or_default().extend(holders);
    }

    async fn add_tunnels(
        &mut self,
        records: &IpamRecords,
        show_all: bool,
        out: &mut dyn Write,
    ) -> CommandResult<()> {
        writeln!(out, "Loading all nodes.")?;
        let mut count = 0;
        for node in records.resources(Kind::Node).await? {
            let object = node.to_value();
            self.nodes.insert(node.metadata().name.clone());
            for field in TUNNEL_FIELDS {
                if let Ok(address) = string_at(&object, field).parse::<IpAddr>() {
                    count += 1;
                    self.show(address, format!("Node({})", node.metadata().name), show_all, out)?;
                }
            }
        }
        writeln!(out, "Found {count} node tunnel IPs.\n")?;
        Ok(())
    }

    /// Adds the addresses recorded for services. Services are Kubernetes objects that this command does not
    /// read, so their recorded addresses count as in use.
    async fn add_services(
        &mut self,
        records: &IpamRecords,
        blocks: &[AddressBlock],
        out: &mut dyn Write,
    ) -> CommandResult<()> {
        writeln!(out, "Loading all service load balancer IPs.")?;
        let settings = records.resource(Kind::KubeControllersConfiguration, "default").await?;
        let settings = settings.map(|settings| settings.to_value());
        let managed = settings.as_ref().and_then(|object| object.pointer("/spec/controllers/loadBalancer"));
        if managed.is_none_or(Value::is_null) {
            writeln!(
                out,
                "No configuration for LoadBalancer kubecontroller found, skipping service check\n"
            )?;
            return Ok(());
        }
        for allocation in blocks.iter().flat_map(block::allocations) {
            if allocation.attribute(attribute::TYPE_ATTRIBUTE) == Some("LoadBalancer") {
                let namespace = allocation.attribute(attribute::NAMESPACE_ATTRIBUTE).unwrap_or_default();
                let name = allocation.attribute("service").unwrap_or_default();
                self.add(allocation.address, format!("Service({namespace}/{name})"));
            }
        }
        writeln!(out, "Services of Kubernetes cannot be read, taking their addresses as in use\n")?;
        Ok(())
    }

    async fn add_workloads(
        &mut self,
        store: &ResourceClient,
        show_all: bool,
        out: &mut dyn Write,
    ) -> CommandResult<()> {
        writeln!(out, "Loading all workload endpoints.")?;
        let mut count = 0;
        for endpoint in store.list(Kind::WorkloadEndpoint, None).await?.items {
            let object = endpoint.to_value();
            let networks = object.pointer("/spec/ipNetworks").and_then(Value::as_array);
            for network in networks.into_iter().flatten().filter_map(Value::as_str) {
                let bare = network.split('/').next().unwrap_or_default();
                if let Ok(address) = bare.parse::<IpAddr>() {
                    count += 1;
                    let meta = endpoint.metadata();
                    let name = (meta.namespace.clone(), meta.name.clone());
                    self.show(address, workload(&name), show_all, out)?;
                    self.endpoints.entry(address).or_default().push(name);
                }
            }
        }
        writeln!(out, "Found {count} workload IPs.")?;
        writeln!(out, "Workloads and nodes are using {} IPs.\n", self.by_address.len())?;
        let shared = self.endpoints.iter().filter(|(_, endpoints)| endpoints.len() > 1);
        let shared: Vec<(IpAddr, Vec<String>)> =
            shared.map(|(address, endpoints)| (*address, endpoints.iter().map(workload).collect())).collect();
        for (address, holders) in shared {
            self.add_conflict(address, holders);
        }
        Ok(())
    }

    /// Adds the live attachments of this host, even if the datastore does not know them.
    fn add_attachments(
        &mut self,
        journals: &AttachmentJournals,
        blocks: &[AddressBlock],
        show_all: bool,
        out: &mut dyn Write,
    ) -> CommandResult<()> {
        writeln!(out, "Loading the attachments of this host.")?;
        for attachment in &journals.attachments {
            let user = format!("Attachment({})", attachment.container_id);
            for address in attachment.addresses.iter().copied() {
                self.show(address, user.clone(), show_all, out)?;
                let others = self.endpoints.get(&address).into_iter().flatten();
                let others = others.filter(|name| Some(*name) != attachment.endpoint.as_ref()).map(workload);
                let mut holders: Vec<String> = others.collect();
                let record = blocks.iter().find_map(|block| block::record(block, address));
                let recorded = record.filter(|record| record.released_at.is_none()).and_then(|r| r.handle());
                if let (Some(own), Some(other)) = (attachment.handle.as_deref(), recorded)
                    && own != other
                {
                    holders.push(format!("Handle({other})"));
                }
                if !holders.is_empty() {
                    self.add_conflict(address, holders.into_iter().chain([user.clone()]));
                }
            }
        }
        writeln!(out, "Found {} live attachments on this host.", journals.attachments.len())?;
        for failure in &journals.unreadable {
            writeln!(out, "WARNING: cannot read {failure}")?;
        }
        let unseen: Vec<&str> =
            self.nodes.iter().filter(|node| !journals.nodes.contains(*node)).map(String::as_str).collect();
        if !unseen.is_empty() {
            let more = if unseen.len() > MAX_NAMED_NODES { ", ..." } else { "" };
            let names = unseen.iter().take(MAX_NAMED_NODES).copied().collect::<Vec<_>>().join(", ");
            writeln!(
                out,
                "WARNING: the attachments of {} nodes cannot be seen from here ({names}{more}); run this there, or give their state directories with --state-dir.",
                unseen.len()
            )?;
        }
        writeln!(out)?;
        Ok(())
    }

    fn show(
        &mut self,
        address: IpAddr,
        user: String,
        show_all: bool,
        out: &mut dyn Write,
    ) -> CommandResult<()> {
        if show_all {
            writeln!(out, "  {address} belongs to {user}")?;
        }
        self.add(address, user);
        Ok(())
    }
}

fn workload((namespace, name): &(String, String)) -> String {
    format!("Workload({namespace}/{name})")
}
