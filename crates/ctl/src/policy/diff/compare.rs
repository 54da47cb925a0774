//! Compares the verdicts for every pair of groups and every traffic class before and after the change.

use super::differences::PlanDifferences;
use super::groups::{SubjectGroup, groups};
use super::subject::{PlanState, TrafficSubject, subjects};
use super::traffic_class::{TrafficClass, classes};
use crate::policy::cluster::PolicyCluster;
use crate::policy::section::describe_position;
use tortie_plan::PolicyDirection;
use tortie_plan::evaluate::{Packet, PolicyDecision, PolicyOutcome, VerdictCause};

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

/// Compares the verdicts. Beyond `max_verdicts`, only an even sample of the pairs is evaluated.
pub fn compare(before: &PolicyCluster, after: &PolicyCluster, max_verdicts: usize) -> VerdictComparison {
    let old_plan = before.enforced_everywhere();
    let new_plan = after.enforced_everywhere();
    let old = PlanState::new(&old_plan);
    let new = PlanState::new(&new_plan);
    let groups = groups(subjects(before, after, &[&old, &new]), &[&old, &new]);
    let (classes, unused_icmp) = classes(&[&old, &new]);
    let differences = PlanDifferences::new(&old, &new);
    let [senders, receivers] = [PolicyDirection::Egress, PolicyDirection::Ingress].map(|direction| {
        groups.iter().map(|group| differences.concern(group.first(), direction)).collect::<Vec<bool>>()
    });
    let all = (0..groups.len()).flat_map(|from| (0..groups.len()).map(move |to| (from, to)));
    let pairs: Vec<(usize, usize)> = all.filter(|(from, to)| senders[*from] || receivers[*to]).collect();
    // Two families, before and after.
    let stride = choose_stride((pairs.len() * classes.len() * 4).div_ceil(max_verdicts), groups.len());
    let chosen: Vec<(usize, usize)> = pairs.iter().copied().step_by(stride).collect();
    let mut changes = Vec::new();
    for &(from, to) in &chosen {
        let Some((sender, receiver)) = choose_representatives(&groups[from], &groups[to]) else { continue };
        for v4 in [true, false] {
            let Some(source) = sender.address(v4) else { continue };
            let Some(destination) = receiver.address(v4) else { continue };
            for class in &classes {
                let Some(packet) = class.packet(source, destination, &unused_icmp) else { continue };
                let was = PairVerdict::new(&old, sender, receiver, &packet);
                let is = PairVerdict::new(&new, sender, receiver, &packet);
                let allowed = is.allowed();
                if was.allowed() != allowed {
                    changes.push(VerdictChange {
                        from,
                        to,
                        class: *class,
                        v4,
                        allowed,
                        because: is.because(&was),
                    });
                }
            }
        }
    }
    let unseen = differences.unseen();
    VerdictComparison { groups, classes, changes, concerned: pairs.len(), judged: chosen.len(), unseen }
}

/// Returns the smallest stride of at least `least` that is coprime with the number of groups, so that the
/// sample does not hit the same groups repeatedly.
fn choose_stride(least: usize, groups: usize) -> usize {
    fn common(a: usize, b: usize) -> usize {
        if b == 0 { a } else { common(b, a % b) }
    }
    (least.max(1)..).find(|stride| common(*stride, groups.max(1)) == 1).unwrap_or(least)
}

/// Returns the representatives of two groups: the first two subjects to whose traffic policy applies.
fn choose_representatives<'g>(
    senders: &'g SubjectGroup,
    receivers: &'g SubjectGroup,
) -> Option<(&'g TrafficSubject, &'g TrafficSubject)> {
    let sender = senders.first();
    if let Some(receiver) = receivers.members.iter().find(|receiver| sender.is_policed_with(receiver)) {
        return Some((sender, receiver));
    }
    let receiver = receivers.first();
    let sender = senders.members.iter().find(|sender| sender.is_policed_with(receiver))?;
    Some((sender, receiver))
}

/// The verdicts of both ends; an end without policies allows everything.
struct PairVerdict {
    egress: (bool, String),
    ingress: (bool, String),
}

impl PairVerdict {
    fn new(
        state: &PlanState<'_>,
        sender: &TrafficSubject,
        receiver: &TrafficSubject,
        packet: &Packet,
    ) -> PairVerdict {
        PairVerdict {
            egress: describe_decision(state.decide(sender, PolicyDirection::Egress, packet)),
            ingress: describe_decision(state.decide(receiver, PolicyDirection::Ingress, packet)),
        }
    }

    fn allowed(&self) -> bool {
        self.egress.0 && self.ingress.0
    }

    /// Returns the reason of the end that denies the traffic, or that no longer denies it.
    fn because(&self, before: &PairVerdict) -> String {
        let denied = if self.allowed() { before } else { self };
        let end = if denied.egress.0 { &self.ingress } else { &self.egress };
        end.1.clone()
    }
}

/// Returns whether traffic is allowed, and the rule or default that decides.
fn describe_decision(decision: Option<PolicyDecision<'_>>) -> (bool, String) {
    let Some(decision) = decision else { return (true, "no host endpoint".to_owned()) };
    let because = match decision.cause {
        VerdictCause::Rule(at) => describe_position(&at),
        VerdictCause::TierEnd(tier) => format!("end of tier {tier}"),
        VerdictCause::Failsafe => "a failsafe port".to_owned(),
        VerdictCause::MissingProfile(name) => format!("profile {name}, which does not exist"),
        _ => "no policy and no profile with a rule for it".to_owned(),
    };
    (decision.outcome == PolicyOutcome::Allow, because)
}
