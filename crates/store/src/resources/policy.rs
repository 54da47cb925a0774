//! Checks of policies against their tiers, and of tiers before they are deleted.

use super::ResourceClient;
use crate::{StoreError, StoreResult};
use tortie_model::kinds::{BUILT_IN_TIERS, DEFAULT_TIER};
use tortie_model::{Kind, Resource};

const TIERED_KINDS: [Kind; 4] = [
    Kind::NetworkPolicy,
    Kind::GlobalNetworkPolicy,
    Kind::StagedNetworkPolicy,
    Kind::StagedGlobalNetworkPolicy,
];

impl ResourceClient {
    pub(super) async fn check_tier_exists(&self, tier: &str) -> StoreResult<()> {
        let tier = if tier.is_empty() { DEFAULT_TIER } else { tier };
        self.get(Kind::Tier, "", tier).await.map(|_| ())
    }

    /// Checks that an update does not move a policy to a tier that does not exist: nodes would enforce it, and clients that
    /// list policies by tier would not show it. A policy whose tier is missing already can be changed otherwise.
    pub(super) async fn check_tier_change(&self, policy: &Resource, tier: &str) -> StoreResult<()> {
        let missing = match self.check_tier_exists(tier).await {
            Err(missing @ StoreError::DoesNotExist { .. }) => missing,
            checked => return checked,
        };
        let meta = policy.metadata();
        let stored = self.get(policy.kind(), &meta.namespace, &meta.name).await?;
        if tier_of(&stored) == Some(tier) { Ok(()) } else { Err(missing) }
    }

    pub(super) async fn check_tier_unused(&self, name: &str) -> StoreResult<()> {
        if BUILT_IN_TIERS.iter().any(|tier| tier.name == name) {
            return Err(refuse_tier_deletion(name, "it is built in".into()));
        }
        for kind in TIERED_KINDS {
            let policies = self.list(kind, None).await?.items;
            if let Some(policy) = policies.iter().find(|policy| tier_of(policy) == Some(name)) {
                let reason = format!("cannot delete a non-empty tier: {} is in it", policy.identify());
                return Err(refuse_tier_deletion(name, reason));
            }
        }
        Ok(())
    }
}

fn refuse_tier_deletion(name: &str, reason: String) -> StoreError {
    StoreError::NotSupported { operation: "delete", id: Kind::Tier.identify("", name), reason }
}

/// Returns the tier of a policy; `None` if the resource is not a policy or its kind has no tier.
pub fn tier_of(policy: &Resource) -> Option<&str> {
    let tier = match policy {
        Resource::NetworkPolicy(policy) => &policy.spec.tier,
        Resource::GlobalNetworkPolicy(policy) => &policy.spec.tier,
        Resource::StagedNetworkPolicy(policy) => &policy.spec.tier,
        Resource::StagedGlobalNetworkPolicy(policy) => &policy.spec.tier,
        _ => return None,
    };
    Some(if tier.is_empty() { DEFAULT_TIER } else { tier })
}
