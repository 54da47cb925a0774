//! Identities of decisions: the numbers by which the kernel's labels, sets and messages refer to causes.
//!
//! An identity is a hash of the cause and, for a rule, of the rule's content, so a restarted daemon computes the same
//! numbers, and the label of a connection that a changed rule has allowed never refers to the rule's successor. Exactly
//! half of its bits are set: labels can only be written by adding bits, and the union of two different identities has
//! more, so it is recognised instead of being taken for a third one. A number that two causes share resolves to neither.

use super::label::FlowLabel;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tortie_plan::flow::{FlowCause, FlowDecision};
use tortie_plan::{EndpointTier, PlannedRule, PolicyDirection, RuleId, RuleIndex, RuleOwner};

const IDENTITY_BITS: usize = 32;
const SET_BITS: usize = IDENTITY_BITS / 2;
/// Number of identities of rules that no longer exist that are remembered, for connections which they have allowed.
const MAX_RETIRED_IDENTITIES: usize = 16_384;
/// Number of identities of missing profiles. An endpoint names profiles of its namespace and service account, so that
/// names accumulate; the oldest are forgotten.
const MAX_PROFILE_IDENTITIES: usize = 16_384;

const DIRECTIONS: [PolicyDirection; 2] = [PolicyDirection::Ingress, PolicyDirection::Egress];

/// Pascal's triangle.
const BINOMIALS: [[u64; SET_BITS + 1]; IDENTITY_BITS + 1] = {
    let mut table = [[0; SET_BITS + 1]; IDENTITY_BITS + 1];
    let mut n = 0;
    while n <= IDENTITY_BITS {
        table[n][0] = 1;
        let mut k = 1;
        while k <= SET_BITS && n > 0 {
            table[n][k] = table[n - 1][k - 1] + table[n - 1][k];
            k += 1;
        }
        n += 1;
    }
    table
};

/// The number of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowIdentity(u32);

impl FlowIdentity {
    pub fn of_rule(id: &RuleId, rule: &PlannedRule) -> FlowIdentity {
        FlowIdentity::of_hash(stable_hash(&(id, rule)))
    }

    /// Returns the identity of a cause other than a rule.
    pub fn of_cause(cause: &FlowCause) -> FlowIdentity {
        FlowIdentity::of_hash(stable_hash(cause))
    }

    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns the number with this rank among all numbers with half of their bits set.
    fn of_hash(hash: u64) -> FlowIdentity {
        let mut rank = hash % BINOMIALS[IDENTITY_BITS][SET_BITS];
        let mut left = SET_BITS;
        let mut number = 0;
        for bit in (0..IDENTITY_BITS).rev() {
            let without = BINOMIALS[bit][left];
            if left > 0 && rank >= without {
                rank -= without;
                left -= 1;
                number |= 1 << bit;
            }
        }
        FlowIdentity(number)
    }
}

/// Hashes a value in the same way in every run.
fn stable_hash(value: &impl Hash) -> u64 {
    let mut hasher = StableHasher(0xcbf2_9ce4_8422_2325);
    value.hash(&mut hasher);
    hasher.finish()
}

/// FNV-1a with a final mix, because only a part of the result is used.
struct StableHasher(u64);

impl Hasher for StableHasher {
    fn finish(&self) -> u64 {
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^ (mixed >> 33)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// The causes of all present and recently removed identities. Clones share the registry: the owner of the policy writes
/// it, the reader of the kernel's messages resolves numbers.
#[derive(Clone, Debug, Default)]
pub struct FlowIdentities {
    table: Arc<RwLock<IdentityTable>>,
}

#[derive(Debug, Default)]
struct IdentityTable {
    entries: HashMap<u32, IdentityEntry>,
    /// The identities of the present rules of each owner.
    owners: HashMap<RuleOwner, HashSet<u32>>,
    /// Identities of removed rules, oldest first.
    retired: VecDeque<u32>,
    /// Identities of missing profiles, oldest first.
    profiles: VecDeque<u32>,
}

#[derive(Debug)]
struct IdentityEntry {
    cause: FlowCause,
    /// Whether a different cause has the same number.
    is_ambiguous: bool,
    is_current: bool,
}

impl FlowIdentities {
    /// Registers the rules of a policy or profile, in both directions, instead of its previous ones.
    pub fn put_rules<'r>(
        &self,
        owner: &RuleOwner,
        rules: impl IntoIterator<Item = (PolicyDirection, &'r [PlannedRule])>,
    ) {
        let mut table = self.write();
        let mut current = HashSet::new();
        for (direction, rules) in rules {
            for (position, rule) in rules.iter().enumerate() {
                let id = RuleId { owner: owner.clone(), direction, index: RuleIndex::at(position) };
                let identity = FlowIdentity::of_rule(&id, rule);
                current.insert(identity.number());
                table.add(identity, FlowCause::Rule(id));
            }
        }
        let previous = match current.is_empty() {
            true => table.owners.remove(owner),
            false => table.owners.insert(owner.clone(), current.clone()),
        };
        let gone: Vec<u32> = previous.unwrap_or_default().difference(&current).copied().collect();
        gone.into_iter().for_each(|number| table.retire(number));
    }

    /// Registers the ends of tiers, and missing profiles.
    pub fn add_endpoint<'t>(&self, tiers: impl IntoIterator<Item = &'t EndpointTier>, profiles: &[String]) {
        let mut table = self.write();
        for tier in tiers {
            for direction in DIRECTIONS {
                table.add_cause(FlowCause::TierEnd { tier: tier.name.clone(), direction });
            }
        }
        for profile in profiles {
            for direction in DIRECTIONS {
                table.add_profile(FlowCause::MissingProfile { profile: profile.clone(), direction });
            }
        }
    }

    /// Registers the causes that do not depend on the plan.
    pub fn add_constants(&self) {
        let mut table = self.write();
        DIRECTIONS.map(FlowCause::NoProfile).into_iter().for_each(|cause| table.add_cause(cause));
        let constants = [
            FlowCause::InvalidConnection,
            FlowCause::ClosedEndpoint,
            FlowCause::UnknownWorkload,
            FlowCause::Spoofed,
            FlowCause::Loopback,
            FlowCause::LinkLocal,
            FlowCause::Encapsulation,
            FlowCause::UnknownTunnel,
            FlowCause::ClosedHost,
            FlowCause::Failsafe,
            FlowCause::HostToWorkload,
            FlowCause::ServiceLoop,
        ];
        constants.into_iter().for_each(|cause| table.add_cause(cause));
    }

    /// Returns the decisions that a label contains.
    pub fn resolve(&self, label: FlowLabel, allowed: bool) -> FlowDecision {
        let table = self.read();
        let [_, egress, ingress, passage] = label.words().map(|word| table.cause(word));
        let (host_ingress, host_egress) = match passage {
            Some(leaving) if is_egress(&leaving) => (None, Some(leaving)),
            arriving => (arriving, None),
        };
        FlowDecision { allowed, egress, ingress, host_ingress, host_egress }
    }

    fn read(&self) -> RwLockReadGuard<'_, IdentityTable> {
        self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, IdentityTable> {
        self.table.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Returns whether a decision about a forwarded packet was made where the packet leaves the node.
fn is_egress(cause: &FlowCause) -> bool {
    match cause {
        FlowCause::Rule(id) => id.direction == PolicyDirection::Egress,
        FlowCause::TierEnd { direction, .. } => *direction == PolicyDirection::Egress,
        FlowCause::ServiceLoop => true,
        _ => false,
    }
}

impl IdentityTable {
    fn add_cause(&mut self, cause: FlowCause) {
        self.add(FlowIdentity::of_cause(&cause), cause);
    }

    fn add_profile(&mut self, cause: FlowCause) {
        let identity = FlowIdentity::of_cause(&cause);
        if !self.entries.contains_key(&identity.number()) {
            self.profiles.push_back(identity.number());
        }
        self.add(identity, cause);
        if self.profiles.len() > MAX_PROFILE_IDENTITIES
            && let Some(oldest) = self.profiles.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }

    fn add(&mut self, identity: FlowIdentity, cause: FlowCause) {
        if let Some(entry) = self.entries.get_mut(&identity.number()) {
            entry.is_current = true;
            if entry.cause != cause && !entry.is_ambiguous {
                entry.is_ambiguous = true;
                tracing::warn!(first = %entry.cause, second = %cause, "two rules have the same identity in flow records; neither is shown");
            }
            return;
        }
        let entry = IdentityEntry { cause, is_ambiguous: false, is_current: true };
        self.entries.insert(identity.number(), entry);
    }

    fn retire(&mut self, number: u32) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.is_current = false;
            self.retired.push_back(number);
        }
        while self.retired.len() > MAX_RETIRED_IDENTITIES {
            let Some(oldest) = self.retired.pop_front() else { return };
            if self.entries.get(&oldest).is_some_and(|entry| !entry.is_current) {
                self.entries.remove(&oldest);
            }
        }
    }

    fn cause(&self, number: u32) -> Option<FlowCause> {
        if number == 0 {
            return None;
        }
        if number.count_ones() as usize > SET_BITS {
            return Some(FlowCause::Mixed(number));
        }
        match self.entries.get(&number) {
            Some(entry) if !entry.is_ambiguous => Some(entry.cause.clone()),
            _ => Some(FlowCause::Unknown(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::label::FlowSlot;
    use super::*;
    use tortie_plan::RuleAction;

    fn owner(name: &str) -> RuleOwner {
        RuleOwner::Profile(name.to_owned())
    }

    fn rule_id(name: &str, position: usize) -> RuleId {
        RuleId { owner: owner(name), direction: PolicyDirection::Ingress, index: RuleIndex::at(position) }
    }

    fn label(identity: FlowIdentity) -> FlowLabel {
        FlowLabel::new(FlowSlot::Ingress, identity)
    }

    #[test]
    fn identities_have_half_their_bits_set() {
        let last = BINOMIALS[IDENTITY_BITS][SET_BITS] - 1;
        assert_eq!(last, 601_080_389);
        assert_eq!(FlowIdentity::of_hash(0).number(), 0x0000_ffff);
        assert_eq!(FlowIdentity::of_hash(last).number(), 0xffff_0000);
        let mut seen = HashSet::new();
        for hash in 0..10_000 {
            let number = FlowIdentity::of_hash(hash * 59_999).number();
            assert_eq!(number.count_ones(), 16);
            assert!(seen.insert(number), "{hash}");
        }
    }

    #[test]
    fn identities_do_not_depend_on_the_run() {
        let identity = FlowIdentity::of_rule(&rule_id("a", 0), &PlannedRule::new(RuleAction::Allow));
        let again = FlowIdentity::of_rule(&rule_id("a", 0), &PlannedRule::new(RuleAction::Allow));
        assert_eq!(identity, again);
        let spoofed = FlowIdentity::of_cause(&FlowCause::Spoofed);
        assert_eq!(spoofed, FlowIdentity::of_hash(stable_hash(&FlowCause::Spoofed)));
        assert_ne!(spoofed, FlowIdentity::of_cause(&FlowCause::Loopback));
    }

    #[test]
    fn a_changed_rule_has_another_identity() {
        let identities = FlowIdentities::default();
        let (allow, deny) = (PlannedRule::new(RuleAction::Allow), PlannedRule::new(RuleAction::Deny));
        let rules = |rule: &PlannedRule| vec![rule.clone()];
        identities.put_rules(&owner("a"), [(PolicyDirection::Ingress, rules(&allow).as_slice())]);
        identities.put_rules(&owner("a"), [(PolicyDirection::Ingress, rules(&deny).as_slice())]);
        let id = rule_id("a", 0);
        let (before, after) = (FlowIdentity::of_rule(&id, &allow), FlowIdentity::of_rule(&id, &deny));
        assert_ne!(before, after);
        for identity in [before, after] {
            let decision = identities.resolve(label(identity), true);
            assert_eq!(decision.ingress, Some(FlowCause::Rule(id.clone())), "also the removed one");
        }
        let union = before.number() | after.number();
        let mixed = identities.resolve(FlowLabel::of_words([0, 0, union, 0]), true);
        assert_eq!(mixed.ingress, Some(FlowCause::Mixed(union)));
        let unknown = FlowIdentity::of_rule(&rule_id("b", 0), &allow);
        let decision = identities.resolve(label(unknown), true);
        assert_eq!(decision.ingress, Some(FlowCause::Unknown(unknown.number())));
    }

    #[test]
    fn a_shared_number_resolves_to_no_cause() {
        let identities = FlowIdentities::default();
        let identity = FlowIdentity::of_hash(7);
        identities.write().add(identity, FlowCause::Spoofed);
        identities.write().add(identity, FlowCause::Spoofed);
        assert_eq!(identities.resolve(label(identity), true).ingress, Some(FlowCause::Spoofed));
        identities.write().add(identity, FlowCause::Loopback);
        let decision = identities.resolve(label(identity), true);
        assert_eq!(decision.ingress, Some(FlowCause::Unknown(identity.number())));
    }

    #[test]
    fn removed_identities_are_bounded() {
        let identities = FlowIdentities::default();
        for number in 0..MAX_RETIRED_IDENTITIES + 10 {
            let rule = [PlannedRule::new(RuleAction::Allow)];
            let owner = owner(&number.to_string());
            identities.put_rules(&owner, [(PolicyDirection::Ingress, rule.as_slice())]);
            identities.put_rules(&owner, []);
        }
        let table = identities.read();
        assert_eq!(table.retired.len(), MAX_RETIRED_IDENTITIES);
        assert!(table.entries.len() <= MAX_RETIRED_IDENTITIES, "{}", table.entries.len());
        assert!(table.owners.is_empty());
    }

    #[test]
    fn identities_of_missing_profiles_are_bounded() {
        let identities = FlowIdentities::default();
        let names: Vec<String> = (0..MAX_PROFILE_IDENTITIES).map(|number| format!("kns.{number}")).collect();
        // Each name has an identity per direction.
        for name in &names {
            identities.add_endpoint([], std::slice::from_ref(name));
        }
        identities.add_endpoint([], &names[names.len() - 1..]);
        let cause = |name: &String| {
            let direction = PolicyDirection::Ingress;
            let cause = FlowCause::MissingProfile { profile: name.clone(), direction };
            let decision = identities.resolve(label(FlowIdentity::of_cause(&cause)), false);
            decision.ingress == Some(cause)
        };
        assert!(cause(&names[names.len() - 1]));
        assert!(!cause(&names[0]), "the oldest is forgotten");
        assert!(identities.read().entries.len() <= MAX_PROFILE_IDENTITIES);
    }
}
