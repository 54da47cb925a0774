//! The connection of a command to the store.

use crate::cli::{ConnectionArgs, GlobalArgs};
use crate::failure::{CommandError, CommandResult};
use crate::release;
use serde_json::Value;
use std::io::Write;
use tortie_model::{Kind, Resource};
use tortie_store::{ResourceClient, StoreClient, StoreConfig};

/// Connects to the store, and warns on standard error if the cluster runs another version. If the store does
/// not respond, the command fails here once instead of once per request.
pub async fn connect(connection: &ConnectionArgs, global: &GlobalArgs) -> CommandResult<ResourceClient> {
    let store = connect_quietly(connection).await?;
    match cluster_information(&store).await {
        Ok(cluster) if !global.allow_version_mismatch => {
            let version = string_at(&cluster, "/spec/calicoVersion");
            if let Some(warning) = mismatch_warning(release::CLIENT_VERSION, version) {
                // Ignore write errors: a closed standard error must not abort the command.
                let _ = writeln!(std::io::stderr(), "{warning}");
            }
        }
        Err(error) if error.is_outage() => return Err(CommandError::NoClient(error)),
        // ClusterInformation is missing, forbidden or unreadable: the command itself may still succeed.
        _ => {}
    }
    Ok(store)
}

/// Connects without checking the cluster's version.
pub async fn connect_quietly(connection: &ConnectionArgs) -> CommandResult<ResourceClient> {
    let config = StoreConfig::load(&connection.config).map_err(CommandError::Store)?;
    let client = StoreClient::connect(&config).await.map_err(CommandError::NoClient)?;
    Ok(ResourceClient::new(client))
}

/// Returns ClusterInformation as JSON.
pub async fn cluster_information(store: &ResourceClient) -> tortie_store::StoreResult<Value> {
    store.get(Kind::ClusterInformation, "", "default").await.map(|resource: Resource| resource.to_value())
}

/// Returns the string at a JSON pointer, or an empty string.
pub fn string_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn mismatch_warning(client: &str, cluster: &str) -> Option<String> {
    (!cluster.is_empty() && !release::same(client, cluster)).then(|| {
        format!(
            "Warning: version mismatch.\nClient Version:   {client}\nCluster Version:  {cluster}\n\
             Use --allow-version-mismatch to silence this warning"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_different_release_is_a_mismatch() {
        assert_eq!(mismatch_warning("v3.32.0-tortie.0.1.0", "3.32.0"), None);
        assert_eq!(mismatch_warning("v3.32.0", ""), None);
        let warning = mismatch_warning("v3.32.0", "v3.29.1").unwrap();
        assert!(
            warning.contains("version mismatch.\nClient Version:   v3.32.0\nCluster Version:  v3.29.1\n")
        );
    }
}
