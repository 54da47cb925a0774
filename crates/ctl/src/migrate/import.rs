//! `datastore migrate import`: loads an exported file into an empty datastore, which stays locked.

use super::export::is_from_kubernetes;
use super::ipam::{AddressRecordError, AddressRecords, NodeNames};
use super::lock::{change_cluster_information, set_locked};
use super::{EXPORTED_KINDS, PART_SEPARATOR};
use crate::cli::ImportArgs;
use crate::commands::write::apply_all;
use crate::failure::{CommandError, CommandResult};
use crate::input::{self, InputError};
use crate::outcome::APPLY_WORDING;
use crate::output::go;
use crate::progress::ProgressLine;
use crate::session::{connect_quietly, string_at};
use serde_json::{Value as Json, json};
use std::io::Write;
use std::path::Path;
use tortie_ipam::block::allocations;
use tortie_ipam::owner::{WINDOWS_RESERVED_HANDLE, attribute};
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_store::ResourceClient;

pub async fn import(args: &ImportArgs, out: &mut dyn Write) -> CommandResult<()> {
    // Parse the whole file before anything is written.
    let bytes = input::read_bytes(&args.filename)?;
    let contents = MigrationFile::parse(&bytes).map_err(|error| {
        let file = args.filename.display();
        CommandError::context(format!("error while reading migration file: {file}"), error)
    })?;
    let store = connect_quietly(&args.connection).await?;
    check_empty(&store).await?;
    store.ensure_initialized("", "").await?;
    set_locked(&store, true, out).await?;
    // The Calico fields of nodes are written even if Kubernetes creates the nodes.
    let capabilities = store.client().capabilities();
    let lacks_endpoints = contents.lacks_endpoints() && !capabilities.derives(Kind::WorkloadEndpoint);
    let mut resources = contents.resources;
    resources.retain(|resource| resource.kind() == Kind::Node || !capabilities.derives(resource.kind()));
    let outcome = apply_all(&store, resources).await;
    let report = outcome.report(APPLY_WORDING);
    out.write_all(report.out.as_bytes())?;
    if let Some(error) = report.error {
        return Err(CommandError::context("failed to import v3 resources", error));
    }
    change_cluster_information(&store, &contents.cluster).await?;
    if lacks_endpoints {
        // Ignore write errors: a closed standard error must not abort the import.
        let _ = writeln!(std::io::stderr(), "{}", missing_endpoints_warning(&args.filename));
    }
    writeln!(out, "Importing IPAM resources")?;
    let total = contents.addresses.len();
    let mut errors = Vec::new();
    let mut progress = ProgressLine::new("Importing addresses", total);
    for (key, value) in &contents.addresses {
        progress.step();
        if let Err(error) = store.client().create(key, value).await {
            errors.push(format!("error trying to create {key}: {error}"));
        }
    }
    drop(progress);
    if !errors.is_empty() {
        let done = total - errors.len();
        writeln!(out, "Partial success: applied {done} out of {total} IPAM resources:")?;
        return Err(CommandError::context("hit error(s)", go::list(errors)));
    }
    writeln!(out, "Successfully applied {total} IPAM resource(s)")?;
    writeln!(
        out,
        "Datastore information successfully imported. The datastore is locked; check it, then run `calicoctl \
         datastore migrate unlock`."
    )?;
    Ok(())
}

/// Returns the warning for a file with assigned addresses and without endpoints, such as an export of Calico's calicoctl.
fn missing_endpoints_warning(file: &Path) -> String {
    format!(
        "Warning: {} contains addresses of workloads but no workload endpoints. Running containers have no policy in this \
         datastore until their nodes write the endpoints again: nodes of Tortie do so when they start, those of Calico when \
         the containers are created again.",
        file.display()
    )
}

/// The parsed parts of an exported file.
struct MigrationFile {
    resources: Vec<Resource>,
    cluster: Vec<(&'static str, Json)>,
    addresses: Vec<(StoreKey, StoreValue)>,
}

#[derive(Debug, thiserror::Error)]
enum MigrationFileError {
    #[error(transparent)]
    Text(#[from] std::str::Utf8Error),
    #[error("improperly formatted. Try recreating with 'calicoctl datastore migrate export'")]
    Parts,
    #[error(transparent)]
    Resources(#[from] InputError),
    #[error("cluster information: {0}")]
    Cluster(serde_json::Error),
    #[error("IPAM resources: {0}")]
    Addresses(serde_json::Error),
    #[error(transparent)]
    AddressRecord(#[from] AddressRecordError),
}

impl MigrationFile {
    /// Returns whether addresses are assigned to workloads of which the file contains no endpoint.
    fn lacks_endpoints(&self) -> bool {
        let blocks = self.addresses.iter().filter_map(|(_, value)| match value {
            StoreValue::Block(block) => Some(block),
            _ => None,
        });
        let mut allocations = blocks.flat_map(allocations);
        allocations.any(|allocation| {
            allocation.handle().is_some_and(|handle| handle != WINDOWS_RESERVED_HANDLE)
                && allocation.attribute(attribute::TYPE_ATTRIBUTE).is_none()
        }) && !self.resources.iter().any(|resource| resource.kind() == Kind::WorkloadEndpoint)
    }

    fn parse(bytes: &[u8]) -> Result<MigrationFile, MigrationFileError> {
        let parts: Vec<&str> = std::str::from_utf8(bytes)?.split(PART_SEPARATOR).collect();
        let [resources, cluster, addresses] = parts.as_slice() else { return Err(MigrationFileError::Parts) };
        let mut resources = input::parse(resources.as_bytes())?;
        // Peers refer to filters, which must be created first; otherwise the order of the file is correct.
        resources.sort_by_key(|resource| resource.kind() != Kind::BGPFilter);
        let cluster: Json = serde_json::from_str(cluster).map_err(MigrationFileError::Cluster)?;
        let addresses: AddressRecords =
            serde_json::from_str(addresses).map_err(MigrationFileError::Addresses)?;
        let cluster = ["clusterGUID", "clusterType", "calicoVersion"]
            .map(|name| (name, json!(string_at(&cluster, &format!("/spec/{name}")))))
            .to_vec();
        Ok(MigrationFile { resources, cluster, addresses: addresses.entries()? })
    }
}

/// Rejects a store that is already in use.
async fn check_empty(store: &ResourceClient) -> CommandResult<()> {
    for kind in EXPORTED_KINDS.iter().copied() {
        if store.client().capabilities().derives(kind) {
            continue;
        }
        let list = store.list(kind, None).await?;
        if list.items.iter().any(|resource| !is_default(resource)) {
            return Err(CommandError::message(format!(
                "datastore already has Calico resources: found existing Calico {kind} resource"
            )));
        }
    }
    if AddressRecords::load(store.client(), &NodeNames::new()).await?.is_empty() {
        return Ok(());
    }
    Err(CommandError::message("datastore already has Calico resources: found existing IPAM resources"))
}

/// Returns whether the resource exists without a user having created it.
fn is_default(resource: &Resource) -> bool {
    let name = resource.metadata().name.as_str();
    match resource.kind() {
        Kind::Tier => matches!(name, "default" | "kube-admin" | "kube-baseline"),
        Kind::Profile => name == "projectcalico-default-allow",
        _ => is_from_kubernetes(resource),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
apiVersion: projectcalico.org/v3
items:
- apiVersion: projectcalico.org/v3
  kind: Tier
  metadata: {name: platform}
  spec: {order: 10}
kind: TierList
metadata: {resourceVersion: "4"}
---
apiVersion: projectcalico.org/v3
items: []
kind: BGPPeerList
metadata: {}
---
===
{"kind": "ClusterInformation", "spec": {"clusterGUID": "f00", "calicoVersion": "v3.31.0", "datastoreReady": false}}
===
{"config": {"Key": "/calico/ipam/v2/config", "Value": {"strict_affinity": true}, "TTL": 0}}
"#;

    #[test]
    fn a_file_has_three_parts() {
        let contents = MigrationFile::parse(FILE.as_bytes()).unwrap();
        assert_eq!(contents.resources.len(), 1);
        assert_eq!(
            contents.cluster,
            [("clusterGUID", json!("f00")), ("clusterType", json!("")), ("calicoVersion", json!("v3.31.0"))]
        );
        assert_eq!(contents.addresses[0].0, StoreKey::IpamConfig);
    }

    #[test]
    fn a_file_without_endpoints_is_recognised() {
        let block = |attributes: &str| {
            let value = format!(
                r#"{{"cidr": "10.65.3.0/30", "affinity": "host:a", "allocations": [0, null, null, null], "unallocated": [1, 2, 3],
                "attributes": [{{"handle_id": "h", "secondary": {attributes}}}], "sequenceNumber": 1}}"#
            );
            let entry = format!(
                r#"{{"blocks": [{{"Key": "/calico/ipam/v2/assignment/ipv4/block/10.65.3.0-30", "Value": {value}, "TTL": 0}}]}}"#
            );
            let text = format!("{}===\n{{\"spec\": {{}}}}\n===\n{entry}", FILE.split("===").next().unwrap());
            MigrationFile::parse(text.as_bytes()).unwrap()
        };
        assert!(block(r#"{"node": "a", "pod": "web", "namespace": "shop"}"#).lacks_endpoints());
        assert!(!block(r#"{"node": "a", "type": "vxlanTunnelAddress"}"#).lacks_endpoints());
        assert!(!MigrationFile::parse(FILE.as_bytes()).unwrap().lacks_endpoints());
    }

    #[test]
    fn another_file_is_refused() {
        let error = |text: &str| MigrationFile::parse(text.as_bytes()).err().unwrap().to_string();
        assert!(error("kind: Tier").starts_with("improperly formatted."));
        assert!(error("===\nnonsense\n===\n{}").starts_with("cluster information: "));
        assert!(error("===\n{}\n===\nnonsense").starts_with("IPAM resources: "));
    }
}
