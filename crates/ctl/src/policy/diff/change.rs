//! Computes the cluster as it would be after the change.

use crate::namespace::RequestedNamespace;
use crate::policy::cluster::PolicyCluster;
use crate::verbs;
use serde::Serialize;
use tortie_model::kinds::DEFAULT_TIER;
use tortie_model::{Kind, Resource};

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
pub fn placed(mut resources: Vec<Resource>, namespace: Option<&str>) -> Result<Vec<Resource>, String> {
    for resource in &mut resources {
        verbs::place(resource, RequestedNamespace { namespace, all: false })
            .map_err(|error| error.to_string())?;
    }
    Ok(resources)
}

/// Applies or deletes the resources in a copy of the cluster. Rejects changes that the store would reject.
pub fn changed(
    before: &PolicyCluster,
    resources: Vec<Resource>,
    delete: bool,
) -> Result<(PolicyCluster, Vec<ObjectChange>), String> {
    let mut after = before.clone();
    let mut objects = Vec::new();
    for mut resource in resources {
        resource.set_defaults();
        let (name, meta) = (resource.identify(), resource.metadata());
        let verb = if delete { "delete" } else { "create or apply" };
        verbs::check_managed_here(resource.kind(), &meta.namespace, &meta.name, verb)
            .map_err(|error| error.to_string())?;
        let fate = match delete {
            true => after
                .remove(&resource)
                .then_some(ChangeKind::Deleted)
                .ok_or(format!("{name} does not exist"))?,
            false => {
                resource.validate().map_err(|error| format!("{name}: {error}"))?;
                apply(&mut after, resource)
            }
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
            let (given, meta) = (resource.metadata().clone(), resource.metadata_mut());
            *meta = current.metadata().clone();
            meta.labels = given.labels;
            meta.annotations = given.annotations;
            if written(&resource) == written(current) { ChangeKind::Same } else { ChangeKind::Changed }
        }
    };
    cluster.put(resource);
    fate
}

/// Returns the object without its status, which users do not write.
fn written(resource: &Resource) -> serde_json::Value {
    let mut value = resource.to_value();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    value
}

/// Checks that the tier of every policy exists, as the store does.
fn check_tiers(cluster: &PolicyCluster) -> Result<(), String> {
    for resource in cluster.resources() {
        let tier = match resource {
            Resource::GlobalNetworkPolicy(policy) => &policy.spec.tier,
            Resource::NetworkPolicy(policy) => &policy.spec.tier,
            Resource::StagedGlobalNetworkPolicy(policy) => &policy.spec.tier,
            Resource::StagedNetworkPolicy(policy) => &policy.spec.tier,
            _ => continue,
        };
        if !tier.is_empty() && tier != DEFAULT_TIER && !cluster.has(Kind::Tier, tier) {
            return Err(format!("{}: there is no tier {tier:?}", resource.identify()));
        }
    }
    Ok(())
}
