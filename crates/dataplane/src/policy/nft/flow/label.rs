//! The label of a connection: one identity for each of the decisions that a node makes about it.

use super::identity::FlowIdentity;
use std::fmt;
use tortie_plan::PolicyDirection;

/// Length of a conntrack label.
pub const LABEL_BYTES: usize = 16;

/// The decisions that one connection may have on one node. Each has one word of the label; the first word is not used,
/// because `nft` before 1.1 crashes when it lists a key that contains it (see `NftField::Label`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowSlot {
    /// The endpoint that sends: a workload or the host.
    Egress = 1,
    /// The endpoint that receives.
    Ingress = 2,
    /// The host endpoint of an interface through which a forwarded packet enters or leaves the node.
    Passage = 3,
}

impl FlowSlot {
    /// Returns the slot of the endpoint that sends or receives packets.
    pub fn of_endpoint(direction: PolicyDirection) -> FlowSlot {
        match direction {
            PolicyDirection::Ingress => FlowSlot::Ingress,
            PolicyDirection::Egress => FlowSlot::Egress,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            FlowSlot::Egress => "out",
            FlowSlot::Ingress => "in",
            FlowSlot::Passage => "forward",
        }
    }
}

/// The bytes of a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowLabel(pub [u8; LABEL_BYTES]);

impl FlowLabel {
    pub fn new(slot: FlowSlot, identity: FlowIdentity) -> FlowLabel {
        let mut words = [0; 4];
        words[slot as usize] = identity.number();
        FlowLabel::of_words(words)
    }

    pub fn of_words(words: [u32; 4]) -> FlowLabel {
        let mut bytes = [0; LABEL_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        FlowLabel(bytes)
    }

    pub fn words(self) -> [u32; 4] {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = self.0;
        [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]].map(u32::from_be_bytes)
    }

    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<FlowLabel> {
        let mut words = [0; 4];
        let mut parts = text.split(':');
        for word in &mut words {
            *word = u32::from_str_radix(parts.next()?, 16).ok()?;
        }
        parts.next().is_none().then(|| FlowLabel::of_words(words))
    }

    pub fn is_empty(self) -> bool {
        self == FlowLabel::default()
    }
}

impl fmt::Display for FlowLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [unused, egress, ingress, passage] = self.words();
        write!(f, "{unused:08x}:{egress:08x}:{ingress:08x}:{passage:08x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_label() {
        let words = [1, 0xffff_0000, 3, u32::MAX];
        assert_eq!(FlowLabel::of_words(words).words(), words);
        let label = FlowLabel::of_words(words);
        assert_eq!(FlowLabel::parse(&label.to_string()), Some(label));
        assert_eq!(FlowLabel::parse("1:2:3"), None);
        assert_eq!(FlowLabel::parse("1:2:3:4:5"), None);
        assert!(FlowLabel::of_words([0; 4]).is_empty());
        assert!(!FlowLabel::of_words([0, 0, 0, 1]).is_empty());
    }
}
