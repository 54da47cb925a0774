//! What Calico's Felix has left on a host. It removes nothing when it stops, so that policy stays in force until somebody
//! takes over; once ours is in force, its own goes: chains, rules, tables, sets and XDP programs, by the names that only Felix gives them.
//! Routes and tunnel devices have the same names with us: `reconcile` adopts or removes them.

mod chains;
mod guards;
mod ipsets;
mod legacy;
mod watch;
mod xdp;

pub use guards::{MissingGuard, missing_guards};
pub(crate) use watch::FelixWatch;

use crate::error::Result;
use crate::netns::Netns;
use nlink::netlink::nftables::Family;
use std::time::Duration;

/// Before what could not be removed is tried again: at first, and at most. The kernel gives sets free some time after the
/// rules that named them.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Its tables in the mode that needs no iptables.
const TABLES: [(Family, &str); 3] =
    [(Family::Ip, "calico"), (Family::Ip6, "calico"), (Family::Arp, "calico-arp")];
/// The beginning of the names of its chains.
const CHAIN: &str = "cali-";
/// The beginning of the comments of its rules.
const COMMENT: &str = "cali:";

/// The name of a chain without the table of iptables by which Felix's own table begins it.
fn strip_table(chain: &str) -> &str {
    chain.strip_prefix("filter-").unwrap_or(chain)
}

/// Whether a rule is Felix's, by its comment and by where it leads.
fn is_felix(comment: Option<&str>, target: Option<&str>) -> bool {
    comment.is_some_and(|comment| comment.starts_with(COMMENT))
        || target.is_some_and(|target| target.starts_with(CHAIN))
}

/// Removes what Felix left, once.
pub(crate) struct Leftovers {
    netns: Netns,
    done: bool,
    pause: Duration,
    not_before: Duration,
    said: String,
}

impl Leftovers {
    pub fn new(netns: Netns) -> Leftovers {
        Leftovers { netns, done: false, pause: FIRST_PAUSE, not_before: Duration::ZERO, said: String::new() }
    }

    /// Whether nothing is left: chains that are found from now on have been written since.
    pub fn are_removed(&self) -> bool {
        self.done
    }

    /// Called as soon as policy is in force, and not before.
    pub async fn remove(&mut self, now: Duration) {
        if self.done || now < self.not_before {
            return;
        }
        let mut reasons = Vec::new();
        let mut removed = 0;
        // Sets last: the rules name them.
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
            tracing::warn!(reasons, "not all that Calico's Felix has left could be removed; will try again");
        }
        self.said = reasons;
        self.not_before = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

/// How many objects went, and why others did not.
#[derive(Debug, Default)]
struct Outcome {
    removed: usize,
    failures: Vec<String>,
}

impl Outcome {
    fn of(result: Result<Outcome>) -> Outcome {
        result.unwrap_or_else(|error| Outcome { removed: 0, failures: vec![error.to_string()] })
    }
}
