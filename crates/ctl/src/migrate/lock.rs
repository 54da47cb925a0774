//! Locks and unlocks the datastore: with `datastoreReady: false`, nodes do not write to the store.

use crate::cli::{ConnectionArgs, GlobalArgs};
use crate::failure::{CommandError, CommandResult};
use crate::session::{cluster_information, connect};
use crate::verbs::modify_managed;
use serde_json::{Value, json};
use std::io::Write;
use tortie_model::{Kind, Resource};
use tortie_store::ResourceClient;

/// Locks or unlocks the datastore.
pub async fn lock(
    connection: &ConnectionArgs,
    global: &GlobalArgs,
    locked: bool,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let store = connect(connection, global).await?;
    set_locked(&store, locked, out).await
}

pub async fn set_locked(store: &ResourceClient, locked: bool, out: &mut dyn Write) -> CommandResult<()> {
    store.ensure_initialized("", "").await?;
    change_cluster_information(store, &[("datastoreReady", json!(!locked))]).await?;
    writeln!(out, "Datastore {}.", if locked { "locked" } else { "unlocked" })?;
    Ok(())
}

pub async fn is_locked(store: &ResourceClient) -> CommandResult<bool> {
    let cluster = cluster_information(store).await.map_err(|error| {
        let context = "error while checking if datastore was locked: error retrieving ClusterInformation";
        CommandError::context(context, error)
    })?;
    Ok(cluster.pointer("/spec/datastoreReady") == Some(&Value::Bool(false)))
}

/// Sets fields of ClusterInformation's spec.
pub async fn change_cluster_information(
    store: &ResourceClient,
    fields: &[(&str, Value)],
) -> CommandResult<()> {
    modify_managed(store, (Kind::ClusterInformation, "", "default"), |current| {
        let mut object = current.to_value();
        for (field, value) in fields {
            object["spec"][*field] = value.clone();
        }
        Resource::from_store(Kind::ClusterInformation, object).map_err(CommandError::message)
    })
    .await?;
    Ok(())
}
