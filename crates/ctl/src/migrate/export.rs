//! `datastore migrate export`: writes everything that a cluster needs to one file.

use super::ipam::{AddressRecords, NodeNames};
use super::lock::is_locked;
use super::{EXPORTED_KINDS, PART_SEPARATOR};
use crate::cli::{ConnectionArgs, GlobalArgs};
use crate::failure::{CommandError, CommandResult};
use crate::progress::ProgressLine;
use crate::session::{cluster_information, connect};
use serde_json::Value;
use std::io::Write;
use tortie_model::kubernetes::is_derived_policy;
use tortie_model::{Kind, Resource, codec};

pub async fn export(
    connection: &ConnectionArgs,
    global: &GlobalArgs,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let store = connect(connection, global).await?;
    if !is_locked(&store).await? {
        return Err(CommandError::message(
            "datastore is not locked. Run the `calicoctl datastore migrate lock` command in order to begin migration",
        ));
    }
    let mut names = NodeNames::new();
    let mut progress = ProgressLine::always("Exporting kinds", EXPORTED_KINDS.len());
    for kind in EXPORTED_KINDS.iter().copied() {
        progress.step();
        let mut list = store.list(kind, None).await?;
        list.items.retain(|resource| !is_from_kubernetes(resource) && !is_synthetic(resource));
        for resource in &mut list.items {
            clear_generated_metadata(resource);
            rename_node(resource, &mut names);
        }
        writeln!(out, "{}---", codec::to_yaml(&list.to_value()))?;
    }
    writeln!(out, "{PART_SEPARATOR}{}", codec::to_json(&cluster_information(&store).await?))?;
    let addresses = AddressRecords::load(store.client(), &names).await?;
    let addresses = serde_json::to_value(&addresses).unwrap_or_default();
    writeln!(out, "{PART_SEPARATOR}{}", codec::to_json(&addresses))?;
    out.flush()?;
    Ok(())
}

/// Returns whether a policy is derived from a Kubernetes object.
pub fn is_from_kubernetes(resource: &Resource) -> bool {
    is_derived_policy(resource.kind(), &resource.metadata().name)
}

/// Returns whether the object is a built-in profile that stores provide without storing it.
fn is_synthetic(resource: &Resource) -> bool {
    resource.kind() == Kind::Profile && resource.metadata().name == "projectcalico-default-allow"
}

/// Removes the metadata that the target store generates.
fn clear_generated_metadata(resource: &mut Resource) {
    let meta = resource.metadata_mut();
    meta.uid.clear();
    meta.resource_version.clear();
    meta.generation = 0;
    meta.creation_timestamp = None;
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
}

/// Renames nodes to their Kubernetes names, together with their own configuration and their endpoints.
fn rename_node(resource: &mut Resource, names: &mut NodeNames) {
    let name = resource.metadata().name.clone();
    let new = match resource.kind() {
        Kind::Node => kubernetes_name(resource).inspect(|new| {
            names.insert(name, new.clone());
        }),
        Kind::FelixConfiguration | Kind::BGPConfiguration => {
            name.strip_prefix("node.").and_then(|node| names.get(node)).map(|new| format!("node.{new}"))
        }
        _ => None,
    };
    if let Some(new) = new {
        resource.metadata_mut().name = new;
    }
    if let Resource::WorkloadEndpoint(endpoint) = resource
        && let Some(new) = names.get(&endpoint.spec.node)
    {
        // The endpoint's name begins with that of the node, with dashes doubled.
        let prefix = format!("{}-", endpoint.spec.node.replace('-', "--"));
        if let Some(rest) = endpoint.metadata.name.strip_prefix(&prefix) {
            endpoint.metadata.name = format!("{}-{rest}", new.replace('-', "--"));
        }
        endpoint.spec.node = new.clone();
    }
}

fn kubernetes_name(node: &Resource) -> Option<String> {
    let node = node.to_value();
    let references = node.pointer("/spec/orchRefs").and_then(Value::as_array)?;
    let reference = references.iter().rfind(|r| r.get("orchestrator").is_some_and(|o| o == "k8s"))?;
    reference.get("nodeName").and_then(Value::as_str).filter(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(kind: Kind, name: &str, spec: Value) -> Resource {
        let object = json!({"kind": kind.name(), "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": name, "uid": "u", "resourceVersion": "7"}, "spec": spec});
        Resource::from_store(kind, object).unwrap()
    }

    #[test]
    fn nodes_and_their_configuration_are_renamed_together() {
        let mut names = NodeNames::new();
        let mut name = |mut resource: Resource| {
            rename_node(&mut resource, &mut names);
            resource.metadata().name.clone()
        };
        let references = json!({"orchRefs": [{"orchestrator": "k8s", "nodeName": "new"}]});
        assert_eq!(name(object(Kind::Node, "old", references)), "new");
        assert_eq!(name(object(Kind::Node, "plain", json!({}))), "plain");
        assert_eq!(name(object(Kind::FelixConfiguration, "node.old", json!({}))), "node.new");
        assert_eq!(name(object(Kind::BGPConfiguration, "node.plain", json!({}))), "node.plain");
        assert_eq!(name(object(Kind::FelixConfiguration, "default", json!({}))), "default");
        let spec = json!({"node": "old", "orchestrator": "k8s", "pod": "a-b", "endpoint": "eth0"});
        assert_eq!(name(object(Kind::WorkloadEndpoint, "old-k8s-a--b-eth0", spec)), "new-k8s-a--b-eth0");
    }

    #[test]
    fn exported_objects_carry_nothing_of_their_cluster() {
        let mut resource = object(Kind::Tier, "t", json!({}));
        clear_generated_metadata(&mut resource);
        assert_eq!(resource.to_value()["metadata"], json!({"name": "t"}));
    }
}
