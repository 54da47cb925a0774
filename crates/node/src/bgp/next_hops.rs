//! Next hops that cannot be reached. The dataplane tells of those that routes lead to. Once the speaker uses no path with
//! such a one, no route leads to it any more, and we look ourselves whether there is a way again.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use tokio::sync::watch;
use tortie_dataplane::{Netns, RouteLookup};

pub struct NextHops {
    host: Netns,
    reported: watch::Receiver<BTreeSet<IpAddr>>,
    unreachable: BTreeSet<IpAddr>,
}

impl NextHops {
    pub fn new(host: Netns, reported: watch::Receiver<BTreeSet<IpAddr>>) -> NextHops {
        NextHops { host, reported, unreachable: BTreeSet::new() }
    }

    /// Returns when the dataplane tells of others than before.
    pub async fn changed(&mut self) {
        if self.reported.changed().await.is_err() {
            // Whoever would tell is gone, and so are we soon.
            std::future::pending::<()>().await;
        }
    }

    /// Looks again. Returns whether the set of unreachable next hops changed.
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
                    tracing::warn!(%error, "next hops cannot be looked up");
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
