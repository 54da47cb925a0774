//! Information about the whole cluster. There is one object, `default`, which the software maintains.

use super::cel_settings;
use crate::object::{NoStatus, StatusForm};
use crate::scalar::is_default;
use crate::{Kind, ResourceSpec, TypedObject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub type ClusterInformation = TypedObject<ClusterInformationSpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterInformationSpec {
    #[serde(rename = "clusterGUID", skip_serializing_if = "is_default")]
    pub cluster_guid: String,
    /// Comma-separated words.
    #[serde(skip_serializing_if = "is_default")]
    pub cluster_type: String,
    #[serde(skip_serializing_if = "is_default")]
    pub calico_version: String,
    /// While false, components must not rely on the datastore.
    #[serde(skip_serializing_if = "is_default")]
    pub datastore_ready: Option<bool>,
    #[serde(skip_serializing_if = "is_default")]
    pub variant: String,
}

impl ResourceSpec for ClusterInformationSpec {
    const KIND: Kind = Kind::ClusterInformation;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn object_rules() -> Vec<serde_json::Value> {
        cel_settings::singleton()
    }
}
