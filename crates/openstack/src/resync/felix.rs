//! Settings of the cluster that Neutron's endpoints need.

use crate::OpenStackError;
use tortie_model::kinds::{
    ClusterInformation, ClusterInformationSpec, FelixConfiguration, FelixConfigurationSpec,
};
use tortie_model::names::DEFAULT_OBJECT_NAME;
use tortie_model::{ObjectMeta, ResourceSpec, TypedObject};
use tortie_store::{ResourceClient, StoreClient, StoreError, StoreResult};
use uuid::Uuid;

const CLUSTER_TYPE: &str = "openstack";
const TAP_PREFIX: &str = "tap";

/// Declares the cluster as an OpenStack cluster and lets nodes serve tap interfaces and report endpoints. Returns how
/// many objects were changed.
pub async fn adjust_settings(client: &StoreClient) -> Result<u64, OpenStackError> {
    let resources = ResourceClient::new(client.clone());
    let information = resources
        .modify("", DEFAULT_OBJECT_NAME, |stored| -> StoreResult<Option<ClusterInformation>> {
            change_or_create(stored, adjust_information)
        })
        .await?;
    let settings = resources
        .modify("", DEFAULT_OBJECT_NAME, |stored| -> StoreResult<Option<FelixConfiguration>> {
            change_or_create(stored, adjust_felix)
        })
        .await?;
    Ok(u64::from(information.is_some()) + u64::from(settings.is_some()))
}

/// Applies a change to an object, or to a new one; `None` if it changes nothing.
fn change_or_create<S: ResourceSpec>(
    stored: StoreResult<TypedObject<S>>,
    change: fn(&mut S),
) -> StoreResult<Option<TypedObject<S>>> {
    let mut object = match stored {
        Ok(object) => object,
        Err(StoreError::DoesNotExist { .. }) => TypedObject::new(
            ObjectMeta { name: DEFAULT_OBJECT_NAME.to_owned(), ..ObjectMeta::default() },
            S::default(),
        ),
        Err(error) => return Err(error),
    };
    let before = object.spec.clone();
    change(&mut object.spec);
    Ok((object.spec != before).then_some(object))
}

fn adjust_information(spec: &mut ClusterInformationSpec) {
    if spec.cluster_guid.is_empty() {
        spec.cluster_guid = Uuid::new_v4().simple().to_string();
    }
    add_word(&mut spec.cluster_type, CLUSTER_TYPE);
    spec.datastore_ready.get_or_insert(true);
}

fn adjust_felix(spec: &mut FelixConfigurationSpec) {
    spec.endpoint_reporting_enabled = Some(true);
    add_word(&mut spec.interface_prefix, TAP_PREFIX);
}

/// Adds a word to a comma-separated list that lacks it.
fn add_word(list: &mut String, word: &str) {
    if list.split(',').any(|present| present.trim() == word) {
        return;
    }
    if !list.is_empty() {
        list.push(',');
    }
    list.push_str(word);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_added_once() {
        for (before, after) in [("", "tap"), ("cali", "cali,tap"), ("tap", "tap"), ("cali, tap", "cali, tap")]
        {
            let mut list = before.to_owned();
            add_word(&mut list, "tap");
            assert_eq!(list, after);
        }
    }

    #[test]
    fn datastore_ready_is_only_set_if_absent() {
        let mut spec = ClusterInformationSpec { datastore_ready: Some(false), ..Default::default() };
        adjust_information(&mut spec);
        assert_eq!((spec.datastore_ready, spec.cluster_type.as_str()), (Some(false), "openstack"));
        assert_eq!(spec.cluster_guid.len(), 32);
    }
}
