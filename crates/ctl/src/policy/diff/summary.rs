//! Summarises changes by merging similar ones.

use super::change::{ChangeKind, ObjectChange};
use super::compare::VerdictComparison;
use super::traffic_class::TrafficClass;
use crate::policy::rule_text::list_up_to;
use crate::policy::traffic::protocol_name;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Maximum numbers of names, classes and blocks to print; the remainder is only counted.
const MAX_SHOWN_NAMES: usize = 6;
const MAX_SHOWN_CLASSES: usize = 12;
const MAX_SHOWN_BLOCKS: usize = 20;

#[derive(Debug, Serialize)]
pub struct DiffSummary {
    pub objects: Vec<ObjectChange>,
    pub changes: Vec<ChangeBlock>,
    /// Pairs of endpoints with a changed verdict for any traffic; an external address counts as one.
    pub pairs: usize,
    /// Note on the sample, if not all affected pairs were evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<String>,
    /// Note on policies that change but were not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unseen: Option<String>,
}

/// Similar changes: from all of `from` to all of `to`.
#[derive(Debug, Serialize)]
pub struct ChangeBlock {
    pub allowed: bool,
    pub from: Vec<String>,
    pub to: Vec<String>,
    pub traffic: String,
    pub because: String,
}

impl DiffSummary {
    pub fn changes(&self) -> bool {
        !self.changes.is_empty() || self.unseen.is_some()
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for object in &self.objects {
            let fate = match object.fate {
                ChangeKind::Created => "would be created",
                ChangeKind::Changed => "would be changed",
                ChangeKind::Same => "is there already",
                ChangeKind::Deleted => "would be deleted",
            };
            let _ = writeln!(text, "{} {fate}.", object.name);
        }
        for (allowed, title) in [(false, "No longer allowed"), (true, "Newly allowed")] {
            let blocks: Vec<&ChangeBlock> =
                self.changes.iter().filter(|block| block.allowed == allowed).collect();
            if blocks.is_empty() {
                continue;
            }
            let _ = writeln!(text, "\n{title}:");
            for block in blocks.iter().take(MAX_SHOWN_BLOCKS) {
                let _ = writeln!(text, "  {}", block.traffic);
                let _ = writeln!(text, "    from  {}", list_up_to(MAX_SHOWN_NAMES, &block.from));
                let _ = writeln!(text, "    to    {}", list_up_to(MAX_SHOWN_NAMES, &block.to));
                let _ = writeln!(text, "    by    {}", block.because);
            }
            if blocks.len() > MAX_SHOWN_BLOCKS {
                let _ = writeln!(
                    text,
                    "  and {} more like these; -o json has all.",
                    blocks.len() - MAX_SHOWN_BLOCKS
                );
            }
        }
        match (self.pairs, &self.sampled) {
            (0, None) => text.push_str("\nNo verdict changes.\n"),
            (0, Some(_)) => text.push_str("\nNo change of a verdict was found.\n"),
            (1, None) => text.push_str("\n1 pair of endpoints changes.\n"),
            (pairs, None) => {
                let _ = writeln!(text, "\n{pairs} pairs of endpoints change.");
            }
            (pairs, Some(_)) => {
                let _ = writeln!(text, "\nAt least {pairs} pairs of endpoints change.");
            }
        }
        for note in self.sampled.iter().chain(&self.unseen) {
            let _ = writeln!(text, "{note}");
        }
        text
    }
}

/// The properties that similar changes share, apart from the endpoints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChangeTraits<'c> {
    allowed: bool,
    because: &'c str,
    traffic: String,
}

/// Indexes of groups.
type GroupIndexes = BTreeSet<usize>;
/// Traffic classes by family (`true` for IPv4).
type FamilyClasses = BTreeSet<(TrafficClass, bool)>;

pub fn summarise(objects: Vec<ObjectChange>, comparison: &VerdictComparison) -> DiffSummary {
    // Collect the changes between two groups for one reason, then merge senders with the same changes, then
    // receivers with the same senders.
    let mut between: BTreeMap<(usize, usize, bool, &str), FamilyClasses> = BTreeMap::new();
    for change in &comparison.changes {
        let key = (change.from, change.to, change.allowed, change.because.as_str());
        between.entry(key).or_default().insert((change.class, change.v4));
    }
    let mut to: BTreeMap<(ChangeTraits<'_>, usize), GroupIndexes> = BTreeMap::new();
    for ((sender, receiver, allowed, because), classes) in between {
        let traffic = describe_traffic(&comparison.classes, &classes, families(comparison, sender, receiver));
        to.entry((ChangeTraits { allowed, because, traffic }, receiver)).or_default().insert(sender);
    }
    let mut blocks: BTreeMap<(ChangeTraits<'_>, GroupIndexes), GroupIndexes> = BTreeMap::new();
    for ((what, receiver), senders) in to {
        blocks.entry((what, senders)).or_default().insert(receiver);
    }
    let blocks = merge_self_exclusions(blocks, |group| comparison.groups[group].members.len() == 1);
    let changes = blocks
        .into_iter()
        .map(|((what, senders), receivers)| ChangeBlock {
            allowed: what.allowed,
            from: list_member_names(comparison, &senders),
            to: list_member_names(comparison, &receivers),
            traffic: what.traffic,
            because: what.because.to_owned(),
        })
        .collect();
    let sampled = (comparison.judged < comparison.concerned).then(|| {
        format!(
            "Only {} of {} pairs of groups of endpoints were looked at: there may be more changes.",
            comparison.judged, comparison.concerned
        )
    });
    let unseen = (!comparison.unseen.is_empty()).then(|| {
        format!(
            "Not compared, though it changes: policy for forwarded, untracked or pre-DNAT traffic of host endpoint {}.",
            list_up_to(MAX_SHOWN_NAMES, &comparison.unseen)
        )
    });
    DiffSummary { objects, changes, pairs: count_pairs(comparison), sampled, unseen }
}

/// Returns the names of the groups' members, each once.
fn list_member_names(comparison: &VerdictComparison, groups: &GroupIndexes) -> Vec<String> {
    let subjects = groups.iter().flat_map(|group| &comparison.groups[*group].members);
    let mut seen = BTreeSet::new();
    subjects.map(|subject| subject.name.clone()).filter(|name| seen.insert(name.clone())).collect()
}

/// Merges blocks that differ only because a subject is never evaluated against itself: the result is one
/// block from all of these subjects to all of them. `alone` returns whether a group has a single member.
fn merge_self_exclusions<'c>(
    blocks: BTreeMap<(ChangeTraits<'c>, GroupIndexes), GroupIndexes>,
    alone: impl Fn(usize) -> bool,
) -> BTreeMap<(ChangeTraits<'c>, GroupIndexes), GroupIndexes> {
    let mut joined: BTreeMap<(ChangeTraits<'c>, GroupIndexes), GroupIndexes> = BTreeMap::new();
    let mut selfless: BTreeMap<(ChangeTraits<'c>, GroupIndexes), GroupIndexes> = BTreeMap::new();
    for ((what, senders), receivers) in blocks {
        match (receivers.first(), receivers.len()) {
            (Some(receiver), 1) if alone(*receiver) && !senders.contains(receiver) => {
                let everybody = senders.iter().copied().chain([*receiver]).collect();
                selfless.entry((what, everybody)).or_default().extend(receivers);
            }
            _ => {
                joined.insert((what, senders), receivers);
            }
        }
    }
    for ((what, mut senders), receivers) in selfless {
        if receivers.len() == 1 {
            senders.retain(|group| !receivers.contains(group));
        }
        joined.entry((what, senders)).or_default().extend(receivers);
    }
    joined
}

fn count_pairs(comparison: &VerdictComparison) -> usize {
    let changed: BTreeSet<(usize, usize)> =
        comparison.changes.iter().map(|change| (change.from, change.to)).collect();
    let mut pairs = 0;
    for (from, to) in changed {
        let senders = comparison.groups[from].members.len();
        // No subject is its own peer.
        let receivers = comparison.groups[to].members.len() - usize::from(from == to);
        pairs += senders * receivers;
    }
    pairs
}

/// Returns which families two groups have in common.
fn families(comparison: &VerdictComparison, from: usize, to: usize) -> [bool; 2] {
    [true, false]
        .map(|v4| [from, to].iter().all(|group| comparison.groups[*group].first().address(v4).is_some()))
}

/// Describes the changed traffic, by family only if the families differ.
fn describe_traffic(all: &[TrafficClass], changed: &FamilyClasses, families: [bool; 2]) -> String {
    let [v4, v6] = [true, false].map(|v4| -> Vec<TrafficClass> {
        all.iter().copied().filter(|class| changed.contains(&(*class, v4))).collect()
    });
    match families {
        [true, true] if v4 != v6 => {
            let parts = [("IPv4", v4), ("IPv6", v6)];
            let texts = parts.iter().filter(|(_, classes)| !classes.is_empty());
            texts
                .map(|(name, classes)| format!("{name}: {}", describe_classes(all, classes)))
                .collect::<Vec<_>>()
                .join("; ")
        }
        [true, _] => describe_classes(all, &v4),
        _ => describe_classes(all, &v6),
    }
}

/// Describes the traffic by listing either the classes or the exceptions, whichever is shorter.
fn describe_classes(all: &[TrafficClass], classes: &[TrafficClass]) -> String {
    let others: Vec<TrafficClass> = all.iter().copied().filter(|class| !classes.contains(class)).collect();
    let these = spans(classes);
    let those = spans(&others);
    match (these.len(), those.len()) {
        (_, 0) => "everything".to_owned(),
        (few, many) if few <= many + 1 => list_up_to(MAX_SHOWN_CLASSES, &these),
        _ => format!("everything but {}", list_up_to(MAX_SHOWN_CLASSES, &those)),
    }
}

/// Formats the classes, merging adjacent port ranges.
fn spans(classes: &[TrafficClass]) -> Vec<String> {
    let mut merged: Vec<TrafficClass> = Vec::new();
    for class in classes {
        if let (
            Some(TrafficClass::Ports { protocol, last, .. }),
            TrafficClass::Ports { protocol: own, first, last: end },
        ) = (merged.last_mut(), class)
            && protocol == own
            && last.checked_add(1) == Some(*first)
        {
            *last = *end;
            continue;
        }
        merged.push(*class);
    }
    merged.iter().map(span).collect()
}

fn span(class: &TrafficClass) -> String {
    match *class {
        TrafficClass::Ports { protocol, first: 1, last: u16::MAX } => protocol_name(protocol),
        TrafficClass::Ports { protocol, first, last } if first == last => {
            format!("{}/{first}", protocol_name(protocol))
        }
        TrafficClass::Ports { protocol, first, last } => {
            format!("{}/{first}-{last}", protocol_name(protocol))
        }
        TrafficClass::Icmp(None) => "other icmp".to_owned(),
        TrafficClass::Icmp(Some((kind, None))) => format!("icmp/{kind}"),
        TrafficClass::Icmp(Some((kind, Some(code)))) => format!("icmp/{kind}/{code}"),
        TrafficClass::Protocol(protocol) => protocol_name(protocol),
        TrafficClass::OtherProtocols => "other protocols".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_plan::evaluate::Packet;

    fn ports(first: u16, last: u16) -> TrafficClass {
        TrafficClass::Ports { protocol: Packet::TCP, first, last }
    }

    #[test]
    fn classes_are_listed_the_shorter_way() {
        let all = [
            ports(1, 79),
            ports(80, 80),
            ports(81, 442),
            ports(443, 443),
            ports(444, 65535),
            TrafficClass::Icmp(None),
        ];
        assert_eq!(describe_classes(&all, &all), "everything");
        assert_eq!(describe_classes(&all, &[all[1]]), "tcp/80");
        assert_eq!(describe_classes(&all, &all[1..3]), "tcp/80-442");
        assert_eq!(describe_classes(&all, &all[..5]), "tcp");
        assert_eq!(
            describe_classes(&all, &[all[0], all[2], all[4], all[5]]),
            "everything but tcp/80, tcp/443"
        );
    }
}
