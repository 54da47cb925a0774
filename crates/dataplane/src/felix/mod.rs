//! Removes the state that Calico's Felix leaves on a host. Felix removes nothing when it stops, so that its policy
//! stays in force until another engine takes over. Once our policy is in force, this module removes Felix's chains,
//! rules, tables, sets and XDP programs, recognised by names that only Felix uses. Routes and tunnel devices have the
//! same names in both products: `reconcile` adopts or removes them.

mod chains;
mod guards;
mod ipsets;
mod legacy;
mod watch;
mod xdp;

pub use guards::{MissingGuard, missing_guards};
pub use watch::FelixWatch;

use crate::error::DataplaneResult;
use crate::netns::Netns;
use nlink::netlink::nftables::Family;
use std::time::Duration;

/// First and longest delay before a failed removal is retried. The kernel releases sets some time after the rules that
/// refer to them.
const FIRST_REMOVAL_DELAY: Duration = Duration::from_millis(500);
const MAX_REMOVAL_DELAY: Duration = Duration::from_secs(60);

/// Felix's tables in its nftables mode, which needs no iptables.
const FELIX_TABLES: [(Family, &str); 3] =
    [(Family::Ip, "calico"), (Family::Ip6, "calico"), (Family::Arp, "calico-arp")];
/// Name prefix of Felix's chains.
const FELIX_CHAIN_PREFIX: &str = "cali-";
/// Comment prefix of Felix's rules.
const FELIX_COMMENT_PREFIX: &str = "cali:";

/// Strips the name of the iptables table that Felix prepends to chains in its own nf_tables table.
fn strip_table(chain: &str) -> &str {
    chain.strip_prefix("filter-").unwrap_or(chain)
}

/// Returns whether a rule belongs to Felix, by its comment or its jump target.
fn is_felix(comment: Option<&str>, target: Option<&str>) -> bool {
    comment.is_some_and(|comment| comment.starts_with(FELIX_COMMENT_PREFIX))
        || target.is_some_and(|target| target.starts_with(FELIX_CHAIN_PREFIX))
}

/// Removes Felix's leftovers once.
pub struct FelixLeftovers {
    netns: Netns,
    done: bool,
    pause: Duration,
    not_before: Duration,
    said: String,
}

impl FelixLeftovers {
    pub fn new(netns: Netns) -> FelixLeftovers {
        FelixLeftovers {
            netns,
            done: false,
            pause: FIRST_REMOVAL_DELAY,
            not_before: Duration::ZERO,
            said: String::new(),
        }
    }

    /// Returns whether the removal is complete: chains found from now on were written after it.
    pub fn are_removed(&self) -> bool {
        self.done
    }

    /// Removes the leftovers, or retries after a failure. Must not be called before our policy is in force.
    pub async fn remove(&mut self, now: Duration) {
        if self.done || now < self.not_before {
            return;
        }
        let mut reasons = Vec::new();
        let mut removed = 0;
        // Sets last, as the rules refer to them.
        for outcome in [
            chains::remove(&self.netns).await,
            legacy::remove(&self.netns).await,
            xdp::remove(&self.netns).await,
            ipsets::remove(&self.netns).await,
        ] {
            removed += outcome.removed;
            reasons.extend(outcome.failures);
        }
        if removed > 0 {
            tracing::info!(
                removed,
                "removed chains, tables, sets and XDP programs that Calico's Felix has left"
            );
        }
        self.done = reasons.is_empty();
        let reasons = reasons.join("; ");
        if !self.done && reasons != self.said {
            tracing::warn!(reasons, "cannot remove everything that Calico's Felix has left; will retry");
        }
        self.said = reasons;
        self.not_before = now + self.pause;
        self.pause = (self.pause * 2).min(MAX_REMOVAL_DELAY);
    }
}

/// Number of removed objects, and the reasons why others could not be removed.
#[derive(Debug, Default)]
struct FelixRemoval {
    removed: usize,
    failures: Vec<String>,
}

impl FelixRemoval {
    fn from_result(result: DataplaneResult<FelixRemoval>) -> FelixRemoval {
        result.unwrap_or_else(|error| FelixRemoval { removed: 0, failures: vec![error.to_string()] })
    }
}

/// Returns whether tables of a family belong to iptables-nft.
fn is_ip(family: Family) -> bool {
    [Family::Ip, Family::Ip6].contains(&family)
}
