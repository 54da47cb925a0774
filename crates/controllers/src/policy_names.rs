//! Renames policies whose custom resource has a different name than the policy.
//!
//! In `crd.projectcalico.org/v1` older versions stored the policy `web` of the default tier as `default.web`. A
//! client that looks it up by its name does not find it and could create a second one. The policy is therefore first
//! created under its name, and the old object is deleted afterwards, so that its rules are in force at all times.

use std::collections::BTreeMap;
use std::time::Duration;
use tortie_model::kinds::DEFAULT_TIER;
use tortie_model::kubernetes::is_derived_policy;
use tortie_model::{Kind, Resource, StoreKey};
use tortie_store::tier_of;

/// Kinds that have a tier.
pub const TIERED_KINDS: [Kind; 4] = [
    Kind::NetworkPolicy,
    Kind::GlobalNetworkPolicy,
    Kind::StagedNetworkPolicy,
    Kind::StagedGlobalNetworkPolicy,
];

/// Maximum number of policies that are renamed in one round of the leader loop.
const MAX_RENAMES_PER_ROUND: usize = 50;
/// Delay after a failed rename.
const RENAME_RETRY_DELAY: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub struct MisnamedPolicies {
    misnamed: BTreeMap<StoreKey, MisnamedPolicy>,
    /// Earliest time of the next rename; `None` if there is nothing to do.
    due: Option<Duration>,
}

#[derive(Debug)]
struct MisnamedPolicy {
    resource: Resource,
    attempted: bool,
}

/// A rename: creates the policy under `to`, then deletes `from` if it has not changed.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRename {
    pub from: StoreKey,
    pub to: StoreKey,
    pub resource: Resource,
}

impl MisnamedPolicies {
    pub fn put(&mut self, key: &StoreKey, resource: &Resource, now: Duration) {
        if !is_misnamed(key, resource) {
            return self.remove(key);
        }
        self.misnamed.insert(key.clone(), MisnamedPolicy { resource: resource.clone(), attempted: false });
        self.due = Some(now);
    }

    pub fn remove(&mut self, key: &StoreKey) {
        self.misnamed.remove(key);
    }

    pub fn count(&self) -> usize {
        self.misnamed.len()
    }

    /// Returns whether policies may be renamed now.
    pub fn is_due(&self, now: Duration) -> bool {
        !self.misnamed.is_empty() && self.due.is_some_and(|due| due <= now)
    }

    /// Postpones renaming, because some nodes are not ready for it.
    pub fn postpone(&mut self, until: Duration) {
        self.due = Some(until);
    }

    /// Returns the next policies to rename. Each rename is attempted once, and again after a delay if the old object
    /// still exists.
    pub fn take_renames(&mut self, now: Duration) -> Vec<PolicyRename> {
        if self.misnamed.values().all(|misnamed| misnamed.attempted) {
            self.misnamed.values_mut().for_each(|misnamed| misnamed.attempted = false);
        }
        let untried = self.misnamed.iter_mut().filter(|(_, misnamed)| !misnamed.attempted);
        let renames = untried.take(MAX_RENAMES_PER_ROUND).filter_map(|(from, misnamed)| {
            misnamed.attempted = true;
            let StoreKey::Resource { kind, namespace, .. } = from else { return None };
            let resource = misnamed.resource.clone();
            let to = StoreKey::resource(*kind, namespace, &resource.metadata().name);
            Some(PolicyRename { from: from.clone(), to, resource })
        });
        let renames = renames.collect();
        let more = self.misnamed.values().any(|misnamed| !misnamed.attempted);
        self.due = Some(if more { now } else { now + RENAME_RETRY_DELAY });
        renames
    }
}

/// Returns whether a policy must be renamed. Policies of other tiers were always stored under their names, and a
/// policy that is being deleted needs no rename.
fn is_misnamed(key: &StoreKey, resource: &Resource) -> bool {
    let StoreKey::Resource { kind, name, .. } = key else { return false };
    let meta = resource.metadata();
    meta.name != *name
        && meta.deletion_timestamp.is_none()
        && tier_of(resource).is_some_and(|tier| tier == DEFAULT_TIER)
        && !is_derived_policy(*kind, &meta.name)
}

/// Returns whether the object under the new name has the same content as the one to be stored.
pub fn has_same_content(old: &Resource, new: &Resource) -> bool {
    let meta = old.metadata();
    if meta.labels != new.metadata().labels || meta.annotations != new.metadata().annotations {
        return false;
    }
    let mut copy = new.clone();
    *copy.metadata_mut() = meta.clone();
    copy == *old
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tortie_model::StoreValue;

    const NOW: Duration = Duration::from_secs(100);

    /// Returns a policy as read from the datastore: under the name of its custom resource.
    fn policy(stored: &str, name: &str, tier: &str) -> (StoreKey, Resource) {
        let key = StoreKey::resource(Kind::GlobalNetworkPolicy, "", stored);
        let annotations = json!({"projectcalico.org/metadata": json!({ "name": name }).to_string()});
        let text = json!({"metadata": {"name": stored, "annotations": annotations}, "spec": {"tier": tier}});
        match StoreValue::decode(&key, text.to_string().as_bytes()).unwrap() {
            StoreValue::Resource(resource) => (key, resource),
            other => panic!("{other:?}"),
        }
    }

    fn put_policy(policies: &mut MisnamedPolicies, (key, resource): &(StoreKey, Resource)) {
        policies.put(key, resource, NOW);
    }

    #[test]
    fn misnamed_policies_of_the_default_tier_are_renamed() {
        let mut policies = MisnamedPolicies::default();
        for (stored, name, tier) in [
            ("web", "web", "default"),
            ("default.web", "default.web", "default"),
            ("security.web", "web", "security"),
            ("default.kcnp.web", "kcnp.web", ""),
        ] {
            put_policy(&mut policies, &policy(stored, name, tier));
            assert!(!policies.is_due(NOW), "{stored} {name} {tier}");
        }
        let misnamed = policy("default.db", "db", "");
        put_policy(&mut policies, &misnamed);
        assert!(policies.is_due(NOW) && policies.count() == 1);
        let to = StoreKey::resource(Kind::GlobalNetworkPolicy, "", "db");
        assert_eq!(
            policies.take_renames(NOW),
            [PolicyRename { from: misnamed.0.clone(), to, resource: misnamed.1.clone() }]
        );
        assert!(!policies.is_due(NOW), "the rename is retried later");
        assert!(policies.is_due(NOW + RENAME_RETRY_DELAY));
        put_policy(&mut policies, &misnamed);
        assert!(policies.is_due(NOW), "the policy was changed");
        policies.remove(&misnamed.0);
        assert!(!policies.is_due(NOW + RENAME_RETRY_DELAY), "the policy was deleted");
    }

    #[test]
    fn failed_renames_do_not_block_others() {
        let mut policies = MisnamedPolicies::default();
        for number in 0..2 * MAX_RENAMES_PER_ROUND + 1 {
            put_policy(
                &mut policies,
                &policy(&format!("default.p{number}"), &format!("p{number}"), "default"),
            );
        }
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..3 {
            assert!(policies.is_due(NOW), "round {round}");
            seen.extend(policies.take_renames(NOW).into_iter().map(|rename| rename.from));
        }
        assert_eq!(seen.len(), 2 * MAX_RENAMES_PER_ROUND + 1);
        assert!(!policies.is_due(NOW));
        policies.postpone(NOW);
        assert_eq!(policies.take_renames(NOW).len(), MAX_RENAMES_PER_ROUND, "all policies are tried again");
    }

    #[test]
    fn only_content_decides_whether_policies_are_equal() {
        let (_, old) = policy("default.db", "db", "default");
        let (_, mut new) = policy("db", "db", "default");
        new.metadata_mut().uid = "other".to_owned();
        new.metadata_mut().resource_version = "7".to_owned();
        assert!(has_same_content(&old, &new));
        new.metadata_mut().labels.insert("a".to_owned(), "b".to_owned());
        assert!(!has_same_content(&old, &new));
        let (_, other) = policy("db", "db", "security");
        assert!(!has_same_content(&old, &other));
    }
}
