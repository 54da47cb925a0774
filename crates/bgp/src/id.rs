//! Numbers that name things, each of a type of its own.

/// A peer of this speaker. Numbers are small and used again once a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(u16);

impl PeerId {
    /// Stands for this speaker itself as the source of a route.
    pub const LOCAL: PeerId = PeerId(0);

    /// None: there are more peers than can be numbered.
    pub fn from_index(index: usize) -> Option<PeerId> {
        u16::try_from(index).ok().map(PeerId)
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A destination of a routing table. A number is used again once the prefix is gone and every reader of the journals
/// knows that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationId(pub u32);

impl DestinationId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
