//! Computes the cluster as it would be after the change.

use crate::cli::NamespaceArgs;
use crate::policy::cluster::PolicyCluster;
use crate::verbs::{self, VerbError};
use serde::Serialize;
use tortie_model::kinds::DEFAULT_TIER;
use tortie_model::{Kind, Resource, ValidationError};

/// The reason why the store would reject a change.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error("{0} does not exist")]
    Missing(String),
    #[error("{object}: {source}")]
    Invalid { object: String, source: ValidationError },
    #[error("{object}: there is no tier {tier:?}")]
    UnknownTier { object: String, tier: String },
    #[error(transparent)]
    Verb(#[from] VerbError),
}

/// The effect of the change on one object.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectChange {
    pub name: String,
    pub fate: ChangeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    Created,
    Changed,
    Same,
    Deleted,
}

/// Sets the namespace that each resource would be written to.
pub fn resolve_namespaces(
    mut resources: Vec<Resource>,
    args: &NamespaceArgs,
) -> verbs::VerbResult<Vec<Resource>> {
    for resource in &mut resources {
        verbs::set_namespace(resource, args.into())?;
    }
    Ok(resources)
}

/// Applies or deletes the resources in a copy of the cluster. Rejects changes that the store would reject.
pub fn apply_changes(
    before: &PolicyCluster,
    resources: Vec<Resource>,
    delete: bool,
) -> Result<(PolicyCluster, Vec<ObjectChange>), ChangeError> {
    let mut after = before.clone();
    let mut objects = Vec::new();
    for mut resource in resources {
        resource.set_defaults();
        let name = resource.identify();
        let meta = resource.metadata();
        let verb = if delete { "delete" } else { "create or apply" };
        verbs::check_managed_here(resource.kind(), &meta.namespace, &meta.name, verb)?;
        let fate = if !delete {
            resource.validate().map_err(|source| ChangeError::Invalid { object: name.clone(), source })?;
            apply(&mut after, resource)
        } else if after.remove(&resource) {
            ChangeKind::Deleted
        } else {
            return Err(ChangeError::Missing(name));
        };
        objects.push(ObjectChange { name, fate });
    }
    check_tiers(&after)?;
    Ok((after, objects))
}

fn apply(cluster: &mut PolicyCluster, mut resource: Resource) -> ChangeKind {
    let fate = match cluster.get(&resource) {
        None => ChangeKind::Created,
        Some(current) => {
            // Compare only the metadata that users can set.
            *resource.metadata_mut() = verbs::metadata_for_update(current.metadata(), resource.metadata());
            if remove_status(&resource) == remove_status(current) {
                ChangeKind::Same
            } else {
                ChangeKind::Changed
            }
        }
    };
    cluster.put(resource);
    fate
}

/// Returns the object without its status, which users do not write.
fn remove_status(resource: &Resource) -> serde_json::Value {
    let mut value = resource.to_value();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    value
}

/// Checks that the tier of every policy exists, as the store does.
fn check_tiers(cluster: &PolicyCluster) -> Result<(), ChangeError> {
    for resource in cluster.resources() {
        let tier = match resource {
            Resource::GlobalNetworkPolicy(policy) => &policy.spec.tier,
            Resource::NetworkPolicy(policy) => &policy.spec.tier,
            Resource::StagedGlobalNetworkPolicy(policy) => &policy.spec.tier,
            Resource::StagedNetworkPolicy(policy) => &policy.spec.tier,
            _ => continue,
        };
        if !tier.is_empty() && tier != DEFAULT_TIER && !cluster.has(Kind::Tier, tier) {
            return Err(ChangeError::UnknownTier { object: resource.identify(), tier: tier.clone() });
        }
    }
    Ok(())
}
