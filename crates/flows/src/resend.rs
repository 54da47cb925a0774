//! Recognises flows that a node sends again after it has reconnected. Pure: the caller passes the time.

use crate::proto::Flow;
use hashbrown::{DefaultHashBuilder, HashMap};
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::net::IpAddr;

/// Nodes send the flows of the last five minutes again, so that many generations always cover this time.
const GENERATION_SECONDS: i64 = 150;
const GENERATIONS: usize = 3;

/// Identity of a connection of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeConnection {
    pub peer: IpAddr,
    pub number: u32,
}

/// Hashes of the received flows with the connection on which each arrived. The same flow on another connection of the same
/// peer was sent again; on the same connection it is new traffic.
#[derive(Debug)]
pub struct ResendFilter {
    generations: VecDeque<ResendGeneration>,
    hasher: DefaultHashBuilder,
    max_entries: usize,
    forgotten: u64,
}

#[derive(Debug, Default)]
struct ResendGeneration {
    started: i64,
    seen: HashMap<u64, u32>,
}

impl ResendFilter {
    pub fn new(max_entries: usize) -> ResendFilter {
        let generations = VecDeque::from([ResendGeneration::default()]);
        ResendFilter { generations, hasher: DefaultHashBuilder::default(), max_entries, forgotten: 0 }
    }

    /// Returns how many flows were forgotten early because there were too many.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Returns whether an earlier connection of the same peer has delivered this flow, and remembers it otherwise.
    pub fn is_resent(&mut self, from: NodeConnection, flow: &Flow, now: i64) -> bool {
        let hash = self.hasher.hash_one((from.peer, flow));
        let known = self.generations.iter().rev().find_map(|generation| generation.seen.get(&hash));
        if let Some(number) = known {
            return *number != from.number;
        }
        self.rotate(now);
        if let Some(newest) = self.generations.back_mut() {
            newest.seen.insert(hash, from.number);
        }
        false
    }

    fn rotate(&mut self, now: i64) {
        let Some(newest) = self.generations.back_mut() else { return };
        if newest.seen.is_empty() {
            newest.started = now;
        }
        let is_full = newest.seen.len() >= self.max_entries / GENERATIONS;
        if !is_full && now - newest.started < GENERATION_SECONDS {
            return;
        }
        self.generations.push_back(ResendGeneration { started: now, seen: HashMap::new() });
        while self.generations.len() > GENERATIONS {
            let dropped = self.generations.pop_front().unwrap_or_default();
            if now - dropped.started < GENERATION_SECONDS * GENERATIONS as i64 {
                self.forgotten += dropped.seen.len() as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const FROM: NodeConnection = NodeConnection { peer: IpAddr::V4(Ipv4Addr::LOCALHOST), number: 1 };

    fn flow(packets_in: i64) -> Flow {
        Flow { packets_in, ..Flow::default() }
    }

    #[test]
    fn only_other_connections_of_a_peer_resend() {
        let mut filter = ResendFilter::new(1000);
        assert!(!filter.is_resent(FROM, &flow(1), 0));
        assert!(!filter.is_resent(FROM, &flow(1), 0), "new traffic");
        let again = NodeConnection { number: 2, ..FROM };
        assert!(filter.is_resent(again, &flow(1), 299));
        assert!(!filter.is_resent(again, &flow(2), 299));
        let other = NodeConnection { peer: Ipv4Addr::new(10, 0, 0, 1).into(), number: 3 };
        assert!(!filter.is_resent(other, &flow(1), 299));
        // Old flows leave the filter as new ones arrive.
        for (position, now) in [450, 600, 900].into_iter().enumerate() {
            filter.is_resent(FROM, &flow(10 + position as i64), now);
        }
        assert!(!filter.is_resent(again, &flow(1), 900));
        assert_eq!(filter.forgotten(), 0);
    }

    #[test]
    fn memory_is_bounded_and_losses_counted() {
        let mut filter = ResendFilter::new(30);
        for number in 0..1000 {
            filter.is_resent(FROM, &flow(number), 0);
        }
        let entries: usize = filter.generations.iter().map(|generation| generation.seen.len()).sum();
        assert!(entries <= 30);
        assert_eq!(filter.forgotten() as usize, 1000 - entries);
    }
}
