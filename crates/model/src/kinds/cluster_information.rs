//! Information about the whole cluster. There is one object, `default`, which the software maintains.

use super::cel_settings;
use crate::object::NoStatus;
use crate::{Kind, ResourceSpec, TypedObject};

pub type ClusterInformation = TypedObject<ClusterInformationSpec>;

api_types! {
    pub struct ClusterInformationSpec {
        #[serde(rename = "clusterGUID")]
        pub cluster_guid: String,
        /// Comma-separated words.
        pub cluster_type: String,
        pub calico_version: String,
        /// While false, components must not rely on the datastore.
        pub datastore_ready: Option<bool>,
        pub variant: String,
    }
}

impl ResourceSpec for ClusterInformationSpec {
    const KIND: Kind = Kind::ClusterInformation;
    type Status = NoStatus;

    fn object_rules() -> Vec<serde_json::Value> {
        cel_settings::singleton()
    }
}
