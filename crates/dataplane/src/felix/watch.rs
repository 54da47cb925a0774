//! Detects a Felix that is started beside us. Two policy engines then process each packet, and each drops the packets
//! that it denies.

use super::{FELIX_CHAIN_PREFIX, FELIX_TABLES, is_ip, legacy, strip_table};
use crate::error::{DataplaneError, DataplaneResult};
use crate::netns::Netns;
use std::time::Duration;

/// Minimum interval between two checks, however often other programs change their chains.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between reads of the legacy tables: the kernel does not report their changes, and reading them runs a
/// program that the dataplane waits for.
const LEGACY_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Checks for Felix's chains once its leftovers are removed.
pub struct FelixWatch {
    netns: Netns,
    in_nftables: bool,
    in_legacy: bool,
    /// Whether another program has changed nf_tables chains since the last check.
    stale: bool,
    not_before: Duration,
    legacy_due: Duration,
}

impl FelixWatch {
    pub fn new(netns: Netns) -> FelixWatch {
        FelixWatch {
            netns,
            in_nftables: false,
            in_legacy: false,
            stale: true,
            not_before: Duration::ZERO,
            legacy_due: Duration::ZERO,
        }
    }

    /// Requests a check, as another program may have changed nf_tables chains.
    pub fn invalidate(&mut self) {
        self.stale = true;
    }

    pub fn is_present(&self) -> bool {
        self.in_nftables || self.in_legacy
    }

    pub async fn look(&mut self, now: Duration) {
        let before = self.is_present();
        self.refresh(now).await;
        match (before, self.is_present()) {
            (false, true) => tracing::warn!(
                "Felix's chains appeared: two policy engines; stop calico-node, or stop this node and run `tortie node --leave`"
            ),
            (true, false) => tracing::info!("Felix's chains are gone"),
            _ => {}
        }
    }

    /// Checks both variants. A failed check keeps its last result, so that chains in nf_tables are reported even if the
    /// legacy tables cannot be read.
    async fn refresh(&mut self, now: Duration) {
        if self.stale && now >= self.not_before {
            self.not_before = now + MIN_CHECK_INTERVAL;
            match has_chains(&self.netns).await {
                Ok(present) => (self.in_nftables, self.stale) = (present, false),
                Err(error) => tracing::debug!(%error, "cannot look for chains of Felix in nf_tables"),
            }
        }
        if now >= self.legacy_due {
            self.legacy_due = now + LEGACY_CHECK_INTERVAL;
            match legacy::read_filter_programs(&self.netns).await {
                Ok(programs) => self.in_legacy = !programs.is_empty(),
                Err(error) => tracing::debug!(%error, "cannot look for chains of Felix in legacy tables"),
            }
        }
    }
}

async fn has_chains(netns: &Netns) -> DataplaneResult<bool> {
    let chains = netns.nftables()?.list_chains().await;
    let chains = chains.map_err(|error| DataplaneError::kernel("tables of Felix", &error))?;
    Ok(chains.iter().any(|chain| {
        FELIX_TABLES.contains(&(chain.family, chain.table.as_str()))
            || is_ip(chain.family) && strip_table(&chain.name).starts_with(FELIX_CHAIN_PREFIX)
    }))
}
