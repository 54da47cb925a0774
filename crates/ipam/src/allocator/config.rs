//! Reading and changing the IPAM configuration, and the check that its settings are consistent.

use super::Allocator;
use crate::{IpamError, IpamResult};
use tortie_model::ipam::IpamConfig;

/// The settings to change; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigChange {
    pub strict_affinity: Option<bool>,
    pub auto_allocate_blocks: Option<bool>,
    pub max_blocks_per_host: Option<u32>,
    /// `Enabled` or `Disabled`.
    pub kubevirt_vm_address_persistence: Option<String>,
    pub ip_cooldown_seconds: Option<u32>,
}

impl ConfigChange {
    /// Returns the configuration after the change, or an error if its settings are inconsistent.
    pub fn apply(&self, config: &IpamConfig) -> IpamResult<IpamConfig> {
        let mut next = config.clone();
        next.strict_affinity = self.strict_affinity.unwrap_or(next.strict_affinity);
        next.auto_allocate_blocks = self.auto_allocate_blocks.unwrap_or(next.auto_allocate_blocks);
        next.max_blocks_per_host = self.max_blocks_per_host.unwrap_or(next.max_blocks_per_host);
        next.ip_cooldown_seconds = self.ip_cooldown_seconds.unwrap_or(next.ip_cooldown_seconds);
        if let Some(persistence) = &self.kubevirt_vm_address_persistence {
            next.kubevirt_vm_address_persistence = Some(persistence.clone());
        }
        if !next.strict_affinity && !next.auto_allocate_blocks {
            let text = "cannot disable 'StrictAffinity' and 'AutoAllocateBlocks' at the same time";
            return Err(IpamError::BadConfig(text.to_owned()));
        }
        if next.max_blocks_per_host > 0 && !next.strict_affinity {
            let text = "'MaxBlocksPerHost' can only be set when 'StrictAffinity' is true";
            return Err(IpamError::BadConfig(text.to_owned()));
        }
        Ok(next)
    }
}

impl Allocator {
    /// Returns the stored configuration or the defaults. Never writes.
    pub async fn config(&self) -> IpamResult<IpamConfig> {
        Ok(self.records.config().await?.unwrap_or_default())
    }

    /// Changes the configuration. Writes nothing if nothing changes; otherwise the value of every setting, as Calico does.
    pub async fn configure(&self, change: &ConfigChange) -> IpamResult<IpamConfig> {
        let mut current = self.config().await?;
        current.kubevirt_vm_address_persistence.get_or_insert_with(|| "Enabled".to_owned());
        let next = change.apply(&current)?;
        if next != current {
            self.records.write_config(next.clone()).await?;
        }
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_must_go_together() {
        let default = IpamConfig::default();
        let strict = ConfigChange { strict_affinity: Some(true), ..ConfigChange::default() };
        let limit = ConfigChange { max_blocks_per_host: Some(4), ..ConfigChange::default() };
        assert!(limit.apply(&default).is_err());
        let after = strict.apply(&default).unwrap();
        assert_eq!(limit.apply(&after).unwrap().max_blocks_per_host, 4);
        let manual = ConfigChange { auto_allocate_blocks: Some(false), ..ConfigChange::default() };
        assert!(manual.apply(&default).is_err());
        assert!(manual.apply(&after).is_ok());
        assert_eq!(ConfigChange::default().apply(&default).unwrap(), default);
    }
}
