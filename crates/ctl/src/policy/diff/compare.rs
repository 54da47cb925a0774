//! Compares the verdicts for every pair of groups and every traffic class before and after the change.

use super::groups::{SubjectGroup, groups};
use super::subject::{PlanState, TrafficSubject, subjects};
use super::touched::PlanDifferences;
use super::traffic_class::{TrafficClass, classes};
use crate::policy::cluster::PolicyCluster;
use crate::policy::section::place;
use tortie_plan::PolicyDirection;
use tortie_plan::evaluate::{PolicyDecision, PolicyOutcome, VerdictCause};

/// Maximum number of verdicts to compute in one comparison.
pub const MAX_VERDICTS: usize = 4_000_000;

/// A changed verdict between two groups.
#[derive(Clone, Debug)]
pub struct VerdictChange {
    pub from: usize,
    pub to: usize,
    pub class: TrafficClass,
    pub v4: bool,
    pub allowed: bool,
    /// The rule or default that decides after the change.
    pub because: String,
}

#[derive(Debug)]
pub struct VerdictComparison {
    pub groups: Vec<SubjectGroup>,
    pub classes: Vec<TrafficClass>,
    pub changes: Vec<VerdictChange>,
    /// The number of pairs of groups that the change can affect, and how many of them were evaluated.
    pub concerned: usize,
    pub judged: usize,
    /// Host endpoints whose forward, untracked or pre-DNAT policies change as well.
    pub unseen: Vec<String>,
}

/// Compares the verdicts. Beyond `patience` verdicts, only an even sample of the pairs is evaluated.
pub fn compare(before: &PolicyCluster, after: &PolicyCluster, patience: usize) -> VerdictComparison {
    let (old, new) = (before.enforced_everywhere(), after.enforced_everywhere());
    let (old, new) = (PlanState::new(&old), PlanState::new(&new));
    let groups = groups(subjects(before, after, &[&old, &new]), &[&old, &new]);
    let (classes, spare) = classes(&[&old, &new]);
    let touched = PlanDifferences::new(&old, &new);
    let concerned = |direction| -> Vec<bool> {
        groups.iter().map(|group| touched.concerns(group.first(), direction)).collect()
    };
    let (senders, receivers) = (concerned(PolicyDirection::Egress), concerned(PolicyDirection::Ingress));
    let all = (0..groups.len()).flat_map(|from| (0..groups.len()).map(move |to| (from, to)));
    let pairs: Vec<(usize, usize)> = all.filter(|(from, to)| senders[*from] || receivers[*to]).collect();
    // Two families, before and after.
    let stride = stride((pairs.len() * classes.len() * 4).div_ceil(patience), groups.len());
    let chosen: Vec<(usize, usize)> = pairs.iter().copied().step_by(stride).collect();
    let mut changes = Vec::new();
    for &(from, to) in &chosen {
        let Some((sender, receiver)) = parties(&groups, from, to) else { continue };
        for v4 in [true, false] {
            let of = |subject: &TrafficSubject| subject.addresses.iter().copied().find(|a| a.is_ipv4() == v4);
            let Some((source, destination)) = of(sender).zip(of(receiver)) else { continue };
            for class in &classes {
                let Some(packet) = class.packet(source, destination, &spare) else { continue };
                let judge = |state: &PlanState<'_>| {
                    let egress = state.decide(sender, PolicyDirection::Egress, &packet);
                    let ingress = state.decide(receiver, PolicyDirection::Ingress, &packet);
                    PairVerdict { egress: said(egress), ingress: said(ingress) }
                };
                let (was, is) = (judge(&old), judge(&new));
                if was.allowed() != is.allowed() {
                    let because = is.because(&was);
                    changes.push(VerdictChange {
                        from,
                        to,
                        class: *class,
                        v4,
                        allowed: is.allowed(),
                        because,
                    });
                }
            }
        }
    }
    let unseen = touched.unseen();
    VerdictComparison { groups, classes, changes, concerned: pairs.len(), judged: chosen.len(), unseen }
}

/// Returns the smallest stride of at least `least` that is coprime with the number of groups, so that the
/// sample does not hit the same groups repeatedly.
fn stride(least: usize, groups: usize) -> usize {
    fn common(a: usize, b: usize) -> usize {
        if b == 0 { a } else { common(b, a % b) }
    }
    (least.max(1)..).find(|stride| common(*stride, groups.max(1)) == 1).unwrap_or(least)
}

/// Returns the representatives of two groups: the first two subjects to whose traffic policy applies.
fn parties(groups: &[SubjectGroup], from: usize, to: usize) -> Option<(&TrafficSubject, &TrafficSubject)> {
    let sender = groups[from].first();
    let other = |receiver: &&TrafficSubject| receiver.name != sender.name && sender.is_policed_with(receiver);
    if let Some(receiver) = groups[to].members.iter().find(other) {
        return Some((sender, receiver));
    }
    let receiver = groups[to].first();
    let other = |sender: &&TrafficSubject| receiver.name != sender.name && sender.is_policed_with(receiver);
    groups[from].members.iter().find(other).map(|sender| (sender, receiver))
}

/// The verdicts of both ends; an end without policies allows everything.
struct PairVerdict {
    egress: (bool, String),
    ingress: (bool, String),
}

impl PairVerdict {
    fn allowed(&self) -> bool {
        self.egress.0 && self.ingress.0
    }

    /// Returns the reason of the end that denies the traffic, or that no longer denies it.
    fn because(&self, before: &PairVerdict) -> String {
        let end = match self.allowed() {
            false if !self.egress.0 => &self.egress,
            false => &self.ingress,
            true if !before.egress.0 => &self.egress,
            true => &self.ingress,
        };
        end.1.clone()
    }
}

fn said(decision: Option<PolicyDecision<'_>>) -> (bool, String) {
    let Some(decision) = decision else { return (true, "no host endpoint".to_owned()) };
    let because = match decision.cause {
        VerdictCause::Rule(at) => place(&at),
        VerdictCause::TierEnd(tier) => format!("end of tier {tier}"),
        VerdictCause::Failsafe => "a failsafe port".to_owned(),
        VerdictCause::MissingProfile(name) => format!("profile {name}, which does not exist"),
        _ => "no policy and no profile with a rule for it".to_owned(),
    };
    (decision.outcome == PolicyOutcome::Allow, because)
}
