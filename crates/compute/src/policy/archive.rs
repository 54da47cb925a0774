//! Stores the rules of policies and profiles as shortened JSON, each text once.
//!
//! Most policies of a cluster apply to no endpoint of this node: their rules are parsed again when they do. Stored as
//! parsed, they would take ten times the memory.

use super::ids::RulesId;
use super::interner::StringInterner;
use tortie_model::kinds::Rule;

#[derive(Debug, Default)]
pub(super) struct RuleArchive {
    interner: StringInterner<RulesId>,
    /// Buffer, reused for the next rules.
    scratch: Vec<u8>,
}

/// Phrases that occur in nearly every rule. Each is encoded as one byte, its index in the list: JSON text contains no
/// control characters. Longer phrases come before those that they contain.
const COMMON_PHRASES: [&str; 16] = [
    r#"{"action":"Allow","source":{},"destination":{"#,
    r#"{"action":"Allow","source":{"#,
    r#"},"destination":{}}"#,
    r#"},"destination":{"#,
    r#""namespaceSelector":"#,
    r#""projectcalico.org/name == '"#,
    r#"projectcalico.org/"#,
    r#""selector":"#,
    r#""protocol":"#,
    r#","source":{},"destination":{"#,
    r#","source":{"#,
    r#""notSelector":"#,
    r#""nets":[""#,
    r#""ports":["#,
    r#"{"action":"#,
    r#"],["#,
];

impl RuleArchive {
    /// Stores rules and adds a reference to them.
    pub fn keep(&mut self, ingress: &[Rule], egress: &[Rule]) -> RulesId {
        self.scratch.clear();
        // Writing to memory does not fail, and every rule has a form in JSON.
        serde_json::to_writer(&mut self.scratch, &(ingress, egress)).unwrap_or_default();
        replace_phrases(&mut self.scratch);
        // The text is still UTF-8: only whole phrases were replaced.
        self.interner.hold(std::str::from_utf8(&self.scratch).unwrap_or_default())
    }

    pub fn release(&mut self, id: RulesId) {
        self.interner.release(id);
    }

    /// Returns the ingress and the egress rules.
    pub fn read(&self, id: RulesId) -> serde_json::Result<(Vec<Rule>, Vec<Rule>)> {
        serde_json::from_slice(&expand_phrases(self.interner.get(id)))
    }
}

/// Replaces phrases in place: the text only gets shorter.
fn replace_phrases(text: &mut Vec<u8>) {
    let mut from = 0;
    let mut to = 0;
    while let Some(first) = text.get(from).copied() {
        let found = match first {
            b'{' | b'}' | b'"' | b',' | b']' | b'p' => {
                COMMON_PHRASES.iter().position(|phrase| text[from..].starts_with(phrase.as_bytes()))
            }
            _ => None,
        };
        let (byte, length) = found.map_or((first, 1), |index| (index as u8, COMMON_PHRASES[index].len()));
        text[to] = byte;
        from += length;
        to += 1;
    }
    text.truncate(to);
}

fn expand_phrases(text: &str) -> Vec<u8> {
    let mut whole = Vec::with_capacity(text.len() * 4);
    for byte in text.bytes() {
        match COMMON_PHRASES.get(usize::from(byte)) {
            Some(phrase) => whole.extend_from_slice(phrase.as_bytes()),
            None => whole.push(byte),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tortie_model::kinds::{Action, EntityRule};

    fn rule(action: Action, selector: &str, namespaces: &str) -> Rule {
        let source = EntityRule {
            selector: selector.to_owned(),
            namespace_selector: namespaces.to_owned(),
            ..EntityRule::default()
        };
        Rule { action, source, ..Rule::default() }
    }

    proptest! {
        #[test]
        fn rules_read_back(
            texts in prop::collection::vec((".{0,20}", "(projectcalico.org/|\"nets\":\\[\"|\\\\|[\u{0}-\u{20}]){0,6}"), 0..6)
        ) {
            let rules: Vec<Rule> = texts.iter().map(|(one, other)| rule(Action::Allow, one, other)).collect();
            let others: Vec<Rule> = texts.iter().map(|(one, other)| rule(Action::Pass, other, one)).collect();
            let mut archive = RuleArchive::default();
            let id = archive.keep(&rules, &others);
            prop_assert_eq!(archive.read(id).unwrap(), (rules, others));
        }
    }

    #[test]
    fn the_same_rules_are_kept_once_and_short() {
        let mut archive = RuleArchive::default();
        let rules = [rule(Action::Allow, "", "projectcalico.org/name == 'customer-12345'")];
        let one = archive.keep(&rules, &[]);
        assert_eq!(archive.keep(&rules, &[]), one);
        assert!(archive.interner.get(one).len() < 40);
        archive.release(one);
        assert_eq!(archive.read(one).unwrap(), (rules.to_vec(), Vec::new()));
    }
}
