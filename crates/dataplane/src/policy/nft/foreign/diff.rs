//! Computes the position of our rule in a foreign chain: before all rules that could drop packets, but after those of
//! kube-proxy. Without I/O.

/// Classification of a rule in a foreign chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignRuleKind {
    Ours,
    /// A copy of our rule that a program saved and restored, or a rule of another version.
    Copy,
    /// Jumps to a chain of kube-proxy.
    Services,
    Other,
}

/// A change to a chain. Positions refer to the chain as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainEdit {
    Delete(usize),
    /// Appends if `before` is `None`.
    Insert {
        before: Option<usize>,
    },
}

impl ForeignRuleKind {
    pub fn is_ours(self) -> bool {
        matches!(self, ForeignRuleKind::Ours | ForeignRuleKind::Copy)
    }
}

/// Computes the changes to a chain. A chain that cannot drop anything needs no rule.
pub(super) fn edits(rules: &[ForeignRuleKind], drops: bool, wanted: bool) -> Vec<ChainEdit> {
    let wanted = wanted && (drops || rules.iter().any(|kind| !kind.is_ours()));
    let before = rules.iter().position(|kind| *kind == ForeignRuleKind::Other);
    let mine: Vec<usize> =
        rules.iter().enumerate().filter(|(_, kind)| kind.is_ours()).map(|(i, _)| i).collect();
    let in_place = match mine.as_slice() {
        [only] => rules[*only] == ForeignRuleKind::Ours && only + 1 == before.unwrap_or(rules.len()),
        _ => false,
    };
    if wanted && in_place {
        return Vec::new();
    }
    let mut edits: Vec<ChainEdit> = mine.into_iter().map(ChainEdit::Delete).collect();
    if wanted {
        edits.push(ChainEdit::Insert { before });
    }
    edits
}

#[cfg(test)]
mod tests {
    use super::*;
    use ForeignRuleKind::{Copy, Other, Ours, Services};
    use proptest::prelude::*;

    #[test]
    fn our_rule_is_between_services_and_drops() {
        let insert = |before| ChainEdit::Insert { before };
        assert_eq!(edits(&[], false, true), [], "nothing there drops anything");
        assert_eq!(edits(&[], true, true), [insert(None)]);
        assert_eq!(edits(&[Other], false, true), [insert(Some(0))]);
        assert_eq!(edits(&[Services, Services, Other], true, true), [insert(Some(2))]);
        assert_eq!(edits(&[Services, Ours, Other, Services], true, true), []);
        assert_eq!(edits(&[Other, Ours], true, true), [ChainEdit::Delete(1), insert(Some(0))]);
        assert_eq!(edits(&[Copy, Other], true, true), [ChainEdit::Delete(0), insert(Some(1))]);
        assert_eq!(edits(&[Ours, Other], true, false), [ChainEdit::Delete(0)]);
        assert_eq!(edits(&[Ours], false, true), [ChainEdit::Delete(0)], "the others are gone");
        assert_eq!(edits(&[Other], true, false), []);
    }

    /// Applies the edits to a list.
    fn applied(rules: &[ForeignRuleKind], edits: &[ChainEdit]) -> Vec<ForeignRuleKind> {
        let mut after: Vec<(Option<usize>, ForeignRuleKind)> =
            rules.iter().copied().enumerate().map(|(i, k)| (Some(i), k)).collect();
        for edit in edits {
            match edit {
                ChainEdit::Delete(index) => after.retain(|(at, _)| *at != Some(*index)),
                ChainEdit::Insert { before } => {
                    let at = after
                        .iter()
                        .position(|(at, _)| before.is_some() && at == before)
                        .unwrap_or(after.len());
                    after.insert(at, (None, Ours));
                }
            }
        }
        after.into_iter().map(|(_, kind)| kind).collect()
    }

    proptest! {
        #[test]
        fn edits_converge_in_one_round_and_keep_foreign(
            rules in proptest::collection::vec(prop_oneof![Just(Ours), Just(Copy), Just(Services), Just(Other)], 0..8),
            drops: bool,
            wanted: bool,
        ) {
            let after = applied(&rules, &edits(&rules, drops, wanted));
            prop_assert_eq!(edits(&after, drops, wanted), []);
            let foreign = |list: &[ForeignRuleKind]| list.iter().copied().filter(|kind| matches!(kind, Services | Other)).collect::<Vec<_>>();
            prop_assert_eq!(foreign(&after), foreign(&rules));
        }
    }
}
