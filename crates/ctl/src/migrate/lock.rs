//! Locks and unlocks the datastore: with `datastoreReady: false`, nodes do not write to the store.

use crate::cli::{Connection, Global};
use crate::failure::{Failure, Result};
use crate::session::{cluster_information, connect};
use crate::verbs::modify_managed;
use serde_json::{Value, json};
use std::io::Write;
use tortie_model::{Kind, Resource};
use tortie_store::Resources;

pub async fn lock(connection: &Connection, global: &Global, out: &mut dyn Write) -> Result<()> {
    let store = connect(connection, global).await?;
    set_locked(&store, true, out).await
}

pub async fn unlock(connection: &Connection, global: &Global, out: &mut dyn Write) -> Result<()> {
    let store = connect(connection, global).await?;
    set_locked(&store, false, out).await
}

pub async fn set_locked(store: &Resources, locked: bool, out: &mut dyn Write) -> Result<()> {
    store.ensure_initialized("", "").await?;
    change_cluster_information(store, &[("datastoreReady", json!(!locked))]).await?;
    writeln!(out, "Datastore {}.", if locked { "locked" } else { "unlocked" })?;
    Ok(())
}

pub async fn is_locked(store: &Resources) -> Result<bool> {
    let cluster = cluster_information(store).await.map_err(|error| {
        Failure::message(format!(
            "error while checking if datastore was locked: error retrieving ClusterInformation: {error}"
        ))
    })?;
    Ok(cluster.pointer("/spec/datastoreReady") == Some(&Value::Bool(false)))
}

/// Sets fields of ClusterInformation's spec.
pub async fn change_cluster_information(store: &Resources, fields: &[(&str, Value)]) -> Result<()> {
    let change = |current: Resource| {
        let mut object = current.to_value();
        for (field, value) in fields {
            object["spec"][*field] = value.clone();
        }
        Resource::from_store(Kind::ClusterInformation, object).map_err(|error| error.to_string())
    };
    modify_managed(store, (Kind::ClusterInformation, "", "default"), change)
        .await
        .map_err(|error| Failure::message(error.to_string()))?;
    Ok(())
}
