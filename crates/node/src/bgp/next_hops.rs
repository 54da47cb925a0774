//! Tracks unreachable next hops. The dataplane reports those that routes use. Once the speaker does not use any path
//! with such a next hop, no route refers to it any more, and this module looks up itself whether it has become
//! reachable.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use tokio::sync::watch;
use tortie_dataplane::{Netns, RouteLookup};

pub struct UnreachableNextHops {
    host: Netns,
    reported: watch::Receiver<BTreeSet<IpAddr>>,
    unreachable: BTreeSet<IpAddr>,
}

impl UnreachableNextHops {
    pub fn new(host: Netns, reported: watch::Receiver<BTreeSet<IpAddr>>) -> UnreachableNextHops {
        UnreachableNextHops { host, reported, unreachable: BTreeSet::new() }
    }

    /// Waits until the dataplane reports other next hops than before.
    pub async fn changed(&mut self) {
        if self.reported.changed().await.is_err() {
            // The sender is dropped only when the node stops.
            std::future::pending::<()>().await;
        }
    }

    /// Updates the set of unreachable next hops. Returns whether it changed.
    pub async fn refresh(&mut self) -> bool {
        let mut now = self.reported.borrow_and_update().clone();
        let unknown: Vec<IpAddr> = self.unreachable.difference(&now).copied().collect();
        if !unknown.is_empty() {
            match RouteLookup::open(&self.host) {
                Ok(lookup) => {
                    for hop in unknown {
                        if lookup.next_hop(hop).await.is_err() {
                            now.insert(hop);
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot look up next hops");
                    now.extend(unknown);
                }
            }
        }
        let changed = now != self.unreachable;
        self.unreachable = now;
        changed
    }

    pub fn unreachable(&self) -> HashSet<IpAddr> {
        self.unreachable.iter().copied().collect()
    }
}
