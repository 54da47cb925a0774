//! Newtypes for the numeric identifiers of peers and destinations.

/// Identifies a peer of this speaker. Numbers are small and are reused after a peer has been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(u16);

impl PeerId {
    /// This speaker itself, as the source of a route.
    pub const LOCAL: PeerId = PeerId(0);

    /// Returns `None` if there are more peers than can be numbered.
    pub fn from_index(index: usize) -> Option<PeerId> {
        u16::try_from(index).ok().map(PeerId)
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Identifies a destination of a routing table. A number is reused after the prefix is gone and every reader of the
/// journals has seen its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationId(pub u32);

impl DestinationId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
