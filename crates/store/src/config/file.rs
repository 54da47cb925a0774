//! Strict parser of the CalicoAPIConfig file, in YAML or JSON.

use super::StoreConfig;
use crate::{StoreError, StoreResult};
use serde::Deserialize;
use std::path::Path;
use tortie_model::API_VERSION;

const CONFIG_KIND: &str = "CalicoAPIConfig";

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct CalicoConfigFile {
    api_version: String,
    kind: String,
    /// Allowed because Kubernetes-style documents have it; ignored.
    metadata: serde_json::Value,
    spec: StoreConfig,
}

pub(super) fn parse(text: &str, path: &Path) -> StoreResult<StoreConfig> {
    let invalid =
        |reason: String| StoreError::Config(format!("invalid config file {}: {reason}", path.display()));
    let file: Option<CalicoConfigFile> =
        serde_saphyr::from_str(text).map_err(|error| invalid(error.to_string()))?;
    let file = file.unwrap_or_default();
    if file.api_version != API_VERSION {
        return Err(invalid(format!("expected APIVersion '{API_VERSION}', got '{}'", file.api_version)));
    }
    if file.kind != CONFIG_KIND {
        return Err(invalid(format!("expected kind '{CONFIG_KIND}', got '{}'", file.kind)));
    }
    let _ = file.metadata;
    Ok(file.spec)
}
