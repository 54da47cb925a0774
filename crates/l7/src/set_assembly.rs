//! Joins the messages of a set that is too large for one message: a set, then additions to it. Applied one by one, a set
//! that replaces an existing one would be incomplete for a moment, in which rules that deny its members would not.

use tortie_plan::{PlanUpdate, SetId, SetMember};
use tortie_policysync::MAX_MEMBERS_PER_MESSAGE;

/// Maximum number of members that are held back. A larger set takes effect in parts of this size.
const MAX_HELD_MEMBERS: usize = 1 << 20;

#[derive(Debug, Default)]
pub struct SetAssembly {
    held: Option<HeldSet>,
}

#[derive(Debug)]
struct HeldSet {
    id: SetId,
    members: usize,
    updates: Vec<PlanUpdate>,
}

impl SetAssembly {
    /// Adds the updates of a message. Returns those that are to be applied now.
    pub fn add(&mut self, mut updates: Vec<PlanUpdate>) -> Vec<PlanUpdate> {
        if let Some(held) = &mut self.held
            && let [PlanUpdate::Members { set, added, removed }] = &updates[..]
            && *set == held.id
            && removed.is_empty()
        {
            held.members += added.len();
            let is_last = !is_full(added) || held.members > MAX_HELD_MEMBERS;
            held.updates.append(&mut updates);
            return if is_last { self.finish() } else { Vec::new() };
        }
        let mut ready = self.finish();
        if let [PlanUpdate::Set(id, Some(_)), PlanUpdate::Members { added, .. }] = &updates[..]
            && is_full(added)
        {
            self.held = Some(HeldSet { id: id.clone(), members: added.len(), updates });
            return ready;
        }
        ready.append(&mut updates);
        ready
    }

    /// Returns whether a set waits for its next part.
    pub fn is_waiting(&self) -> bool {
        self.held.is_some()
    }

    /// Returns the updates that were held back: no part follows.
    pub fn finish(&mut self) -> Vec<PlanUpdate> {
        self.held.take().map(|held| held.updates).unwrap_or_default()
    }
}

/// Returns whether a message with these members may be followed by another one for the same set.
fn is_full(added: &[SetMember]) -> bool {
    added.len() >= MAX_MEMBERS_PER_MESSAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tortie_plan::SetKind;

    fn members(count: usize) -> Vec<SetMember> {
        let address = |number: usize| Ipv4Addr::from(u32::try_from(number).unwrap());
        (0..count).map(|number| SetMember::Net(std::net::IpAddr::V4(address(number)).into())).collect()
    }

    fn part(id: &str, count: usize) -> PlanUpdate {
        PlanUpdate::Members { set: SetId::new(id), added: members(count), removed: Vec::new() }
    }

    fn first(id: &str, count: usize) -> Vec<PlanUpdate> {
        vec![PlanUpdate::Set(SetId::new(id), Some(SetKind::Nets)), part(id, count)]
    }

    #[test]
    fn parts_of_a_set_take_effect_together() {
        let mut assembly = SetAssembly::default();
        assert_eq!(assembly.add(first("s:a", 5)).len(), 2, "a set that fits into one message");
        assert_eq!(assembly.add(first("s:a", MAX_MEMBERS_PER_MESSAGE)), []);
        assert_eq!(assembly.add(vec![part("s:a", MAX_MEMBERS_PER_MESSAGE)]), []);
        assert!(assembly.is_waiting());
        let all = assembly.add(vec![part("s:a", 1)]);
        let mut expected = first("s:a", MAX_MEMBERS_PER_MESSAGE);
        expected.extend([part("s:a", MAX_MEMBERS_PER_MESSAGE), part("s:a", 1)]);
        assert!(all == expected && !assembly.is_waiting());
    }

    #[test]
    fn other_messages_end_a_set() {
        let removal = PlanUpdate::Members { set: SetId::new("s:a"), added: Vec::new(), removed: members(1) };
        for next in [
            vec![removal],
            vec![part("s:b", 1)],
            first("s:b", 1),
            vec![PlanUpdate::Set(SetId::new("s:a"), None)],
        ] {
            let mut assembly = SetAssembly::default();
            assembly.add(first("s:a", MAX_MEMBERS_PER_MESSAGE));
            let mut expected = first("s:a", MAX_MEMBERS_PER_MESSAGE);
            expected.extend(next.clone());
            assert!(assembly.add(next) == expected && !assembly.is_waiting());
        }
        let mut assembly = SetAssembly::default();
        assembly.add(first("s:a", MAX_MEMBERS_PER_MESSAGE));
        assert_eq!((assembly.finish().len(), assembly.finish().len()), (2, 0), "an exact multiple");
    }

    #[test]
    fn held_members_are_bounded() {
        let mut assembly = SetAssembly::default();
        assembly.add(first("s:a", MAX_MEMBERS_PER_MESSAGE));
        let mut held = MAX_MEMBERS_PER_MESSAGE;
        while assembly.add(vec![part("s:a", MAX_MEMBERS_PER_MESSAGE)]).is_empty() {
            held += MAX_MEMBERS_PER_MESSAGE;
            assert!(held <= MAX_HELD_MEMBERS);
        }
        assert!(held + MAX_MEMBERS_PER_MESSAGE > MAX_HELD_MEMBERS && !assembly.is_waiting());
    }
}
