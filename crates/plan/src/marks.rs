//! The bits of the packet mark that the node uses. Other software on the host uses the rest.

/// The default mark mask.
const DEFAULT_MARK_MASK: u32 = 0xffff_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MarkBits {
    /// Policy has accepted the packet: a host endpoint before connection tracking or DNAT, or all endpoints evaluated
    /// so far.
    pub accepted: u32,
    /// A policy has passed the packet to the next tier.
    pub passed: u32,
    /// Mark of packets that WireGuard sends; `None` if the mask has only two bits.
    pub wireguard: Option<u32>,
}

impl MarkBits {
    /// Allocates the bits of a mask as Calico does: from the lowest bit on, with three other uses between policy and
    /// WireGuard. If there is no sixth bit, WireGuard gets the last one. Returns `None` if the mask has fewer than
    /// two bits.
    pub fn of_mask(mask: u32) -> Option<MarkBits> {
        let bits: Vec<u32> = (0..u32::BITS).map(|bit| 1 << bit).filter(|bit| mask & bit != 0).collect();
        Some(MarkBits {
            accepted: *bits.first()?,
            passed: *bits.get(1)?,
            wireguard: bits.get(5).or(bits.get(2..).and_then(<[u32]>::last)).copied(),
        })
    }
}

impl Default for MarkBits {
    fn default() -> MarkBits {
        let none = MarkBits { accepted: 0, passed: 0, wireguard: None };
        MarkBits::of_mask(DEFAULT_MARK_MASK).unwrap_or(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_bits_are_allocated_as_in_calico() {
        let bits = |mask| MarkBits::of_mask(mask).map(|bits| (bits.accepted, bits.passed, bits.wireguard));
        let default = MarkBits::default();
        assert_eq!(
            (default.accepted, default.passed, default.wireguard),
            (0x10000, 0x20000, Some(0x20_0000))
        );
        assert_eq!(bits(0xff), Some((1, 2, Some(0x20))));
        assert_eq!(bits(0x8000_0f00), Some((0x100, 0x200, Some(0x8000_0000))), "the last of five");
        assert_eq!(bits(0x7), Some((1, 2, Some(4))));
        assert_eq!(bits(0x8000_0001), Some((1, 0x8000_0000, None)));
        assert_eq!((bits(0x10), bits(0)), (None, None));
    }
}
