//! Checks against other objects before an object is written.

use super::{ResourceClient, profile, tier_of};
use crate::{StoreError, StoreResult};
use tortie_model::kinds::{BGPPeer, IPPoolSpec};
use tortie_model::{FieldError, Kind, Resource, ValidationError};

impl ResourceClient {
    pub(super) async fn before_create(&self, resource: &Resource) -> StoreResult<()> {
        match resource {
            Resource::NetworkPolicy(policy) => self.check_tier_exists(&policy.spec.tier).await,
            Resource::GlobalNetworkPolicy(policy) => self.check_tier_exists(&policy.spec.tier).await,
            Resource::StagedNetworkPolicy(policy) => self.check_tier_exists(&policy.spec.tier).await,
            Resource::StagedGlobalNetworkPolicy(policy) => self.check_tier_exists(&policy.spec.tier).await,
            Resource::IPPool(pool) => self.check_pool_fits(pool).await,
            Resource::BGPPeer(peer) => self.check_filters(peer).await,
            Resource::Node(_) => self.ensure_initialized("", "").await,
            Resource::Profile(object) if profile::is_synthetic(Kind::Profile, &object.metadata.name) => {
                Err(profile::exists())
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn before_update(&self, resource: &Resource) -> StoreResult<()> {
        if let Some(tier) = tier_of(resource) {
            return self.check_tier_change(resource, tier).await;
        }
        match resource {
            Resource::IPPool(pool) => {
                let stored = self.get_as::<IPPoolSpec>("", &pool.metadata.name).await?;
                Ok(stored.check_update(pool)?)
            }
            Resource::BGPPeer(peer) => self.check_filters(peer).await,
            Resource::Profile(object) if profile::is_synthetic(Kind::Profile, &object.metadata.name) => {
                Err(profile::refused("update"))
            }
            _ => Ok(()),
        }
    }

    async fn check_filters(&self, peer: &BGPPeer) -> StoreResult<()> {
        let mut errors = Vec::new();
        for (index, name) in peer.spec.filters.iter().enumerate() {
            match self.get(Kind::BGPFilter, "", name).await {
                Ok(_) => {}
                Err(StoreError::DoesNotExist { .. }) => errors.push(FieldError {
                    name: format!("BGPPeer.Spec.Filters[{index}]"),
                    value: name.clone(),
                    reason: "there is no BGPFilter of this name".into(),
                }),
                Err(error) => return Err(error),
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(ValidationError { errors }.into()) }
    }
}
