//! The map of traffic: which boxes there are, and where. Pure: the same flows give the same picture, boxes that the last
//! picture had keep their places, and at most 200 boxes are drawn.

mod layout;

pub use layout::{BoxPlace, MapLayout};

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of boxes. Those with the least traffic are folded into one.
pub const MAX_BOXES: usize = 200;
/// Name of the box into which others are folded. It is not a valid name of a namespace or workload.
pub const FOLDED_BOX: &str = "(others)";
/// Box of addresses outside the cluster.
pub const OUTSIDE_BOX: &str = "(outside)";
/// Namespace of endpoints that have none, in records of flows.
const NO_NAMESPACE: &str = "-";

/// The objects that are drawn as boxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapLevel {
    Namespaces,
    /// The workloads of one namespace, and the other namespaces that they talk to.
    Workloads(String),
}

/// One flow record: namespaces and names of both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficRecord {
    pub from: (String, String),
    pub to: (String, String),
    pub denied: bool,
    pub connections: u64,
    pub bytes: u64,
}

/// Traffic between two boxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrafficLine {
    pub from: String,
    pub to: String,
    pub allowed: u64,
    pub denied: u64,
    pub bytes: u64,
}

/// The boxes and lines of one map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficMap {
    boxes: BTreeSet<String>,
    lines: Vec<TrafficLine>,
    folded: usize,
}

#[derive(Clone, Copy, Default)]
struct LineCounts {
    allowed: u64,
    denied: u64,
    bytes: u64,
}

impl TrafficMap {
    /// Builds the map of a level. Each flow that one end denied and the other reported counts once per report.
    pub fn new(level: &MapLevel, records: &[TrafficRecord]) -> TrafficMap {
        let mut counts: BTreeMap<(String, String), LineCounts> = BTreeMap::new();
        for record in records {
            let Some(ends) = level.ends(record) else { continue };
            let line = counts.entry(ends).or_default();
            // A record without connections is still traffic.
            let connections = record.connections.max(1);
            let count = if record.denied { &mut line.denied } else { &mut line.allowed };
            *count = count.saturating_add(connections);
            line.bytes = line.bytes.saturating_add(record.bytes);
        }
        let mut weights: BTreeMap<&str, u64> = BTreeMap::new();
        for ((from, to), line) in &counts {
            for name in [from, to] {
                let weight = weights.entry(name).or_default();
                *weight = weight.saturating_add(line.allowed).saturating_add(line.denied);
            }
        }
        let mut by_weight: Vec<(&str, u64)> = weights.into_iter().collect();
        by_weight.sort_by(|(name, weight), (other, less)| less.cmp(weight).then_with(|| name.cmp(other)));
        // The box of all others is one of the maximum number.
        let drawn = if by_weight.len() > MAX_BOXES { MAX_BOXES - 1 } else { by_weight.len() };
        let folded: BTreeSet<String> =
            by_weight.iter().skip(drawn).map(|(name, _)| (*name).to_owned()).collect();
        let mut boxes: BTreeSet<String> = by_weight.iter().map(|(name, _)| (*name).to_owned()).collect();
        boxes.retain(|name| !folded.contains(name));
        if !folded.is_empty() {
            boxes.insert(FOLDED_BOX.to_owned());
        }
        let show = |name: String| if folded.contains(&name) { FOLDED_BOX.to_owned() } else { name };
        let mut shown: BTreeMap<(String, String), LineCounts> = BTreeMap::new();
        for ((from, to), line) in counts {
            let sum = shown.entry((show(from), show(to))).or_default();
            sum.allowed = sum.allowed.saturating_add(line.allowed);
            sum.denied = sum.denied.saturating_add(line.denied);
            sum.bytes = sum.bytes.saturating_add(line.bytes);
        }
        let lines = shown.into_iter().map(|((from, to), LineCounts { allowed, denied, bytes })| {
            TrafficLine { from, to, allowed, denied, bytes }
        });
        TrafficMap { boxes, lines: lines.collect(), folded: folded.len() }
    }

    pub fn lines(&self) -> &[TrafficLine] {
        &self.lines
    }

    /// Returns the number of boxes that were folded into [`FOLDED_BOX`].
    pub fn folded(&self) -> usize {
        self.folded
    }

    /// Gives each box a place. Boxes of the last picture keep theirs.
    pub fn arrange(&self, last: Option<&MapLayout>) -> MapLayout {
        MapLayout::arrange(&self.boxes, &self.lines, last)
    }
}

impl MapLevel {
    /// Returns the boxes of both ends; none if the level does not show the flow.
    fn ends(&self, record: &TrafficRecord) -> Option<(String, String)> {
        let namespace_of = |namespace: &str| match namespace {
            "" | NO_NAMESPACE => OUTSIDE_BOX.to_owned(),
            namespace => namespace.to_owned(),
        };
        let [(from_namespace, from), (to_namespace, to)] = [&record.from, &record.to];
        match self {
            MapLevel::Namespaces => Some((namespace_of(from_namespace), namespace_of(to_namespace))),
            MapLevel::Workloads(own) => {
                if own != from_namespace && own != to_namespace {
                    return None;
                }
                let show = |namespace: &String, name: &String| {
                    if namespace == own { format!("{own}/{name}") } else { namespace_of(namespace) }
                };
                Some((show(from_namespace, from), show(to_namespace, to)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
