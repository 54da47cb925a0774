//! Finds workloads on this host that are not in the node's journal: attached by another program and not adopted yet.
//! Reads the kernel and the datastore; a read error is returned and not treated as absence.

use super::block_on;
use std::collections::BTreeMap;
use tortie_ctl::CommandError;
use tortie_dataplane::Netns;
use tortie_model::kinds::WorkloadEndpointSpec;
use tortie_node::{AttachmentRecord, NodeArgs};
use tortie_store::{ResourceClient, StoreClient, StoreConfig};

/// Returns the names of this host's interfaces, and whether each is one end of a veth pair.
pub fn list_interfaces() -> Result<BTreeMap<String, bool>, CommandError> {
    let names = async { tortie_dataplane::interface_names(&Netns::current()?).await };
    block_on(names)?.map_err(CommandError::message)
}

/// Returns the workload interfaces that are not in the journal, each with its endpoint if the datastore has one.
pub fn find_unknown(
    node: &NodeArgs,
    interfaces: &BTreeMap<String, bool>,
    attached: &[AttachmentRecord],
    member: Option<(&StoreConfig, &str)>,
) -> Result<Vec<String>, CommandError> {
    let mut unknown = interfaces.clone();
    for attachment in attached {
        unknown.remove(&attachment.host_interface);
    }
    let prefixes = tortie_node::read_interface_prefixes(node);
    let mut found = BTreeMap::new();
    for (name, is_veth) in &unknown {
        if *is_veth && prefixes.iter().any(|prefix| name.starts_with(prefix.as_str())) {
            found.insert(name.clone(), format!("interface {name}"));
        }
    }
    let Some((config, name)) = member else { return Ok(found.into_values().collect()) };
    let endpoints = block_on(async {
        let resources = ResourceClient::new(StoreClient::connect(config).await?);
        resources.list_as::<WorkloadEndpointSpec>(None).await
    })??;
    for endpoint in endpoints.into_iter().filter(|endpoint| endpoint.spec.node == name) {
        let interface = endpoint.spec.interface_name;
        if unknown.contains_key(&interface) {
            let meta = endpoint.metadata;
            let line = format!("interface {interface} (endpoint {}/{})", meta.namespace, meta.name);
            found.insert(interface, line);
        }
    }
    Ok(found.into_values().collect())
}
