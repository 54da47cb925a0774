//! UPDATE messages with many routes, made before the clock starts.

use super::session::message;
use std::net::Ipv4Addr;

/// Sent last, and passed on alone where routes are only taken in.
pub const MARKER: &str = "203.0.113.0/24";
const MARKER_NLRI: [u8; 4] = [24, 203, 0, 113];
/// Routes that share their attributes.
const TOGETHER: usize = 10;

/// Routes of equal length, one beside the other from 20.0.0.0 on.
#[derive(Clone, Copy)]
pub struct Routes {
    pub first: usize,
    pub count: usize,
    pub bits: u8,
}

impl Routes {
    /// The first million /24s, or as many of them.
    pub fn from_the_start(count: usize) -> Routes {
        Routes { first: 0, count, bits: 24 }
    }

    /// As one peer announces them, with itself as the next hop.
    pub fn announced_by(self, peer: Ipv4Addr) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.count * 16);
        let end = self.first + self.count;
        for first in (self.first..end).step_by(TOGETHER) {
            let mut nlri = Vec::with_capacity(5 * TOGETHER);
            for number in first..end.min(first + TOGETHER) {
                let address = Ipv4Addr::from((20 << 24) + ((number as u32) << (32 - self.bits)));
                nlri.push(self.bits);
                nlri.extend(address.octets().iter().take(usize::from(self.bits.div_ceil(8))));
            }
            update(&mut bytes, peer, (first / TOGETHER) as u32, &nlri);
        }
        bytes
    }
}

/// The announcement of the marker.
pub fn marker(peer: Ipv4Addr) -> Vec<u8> {
    let mut bytes = Vec::new();
    update(&mut bytes, peer, 0, &MARKER_NLRI);
    bytes
}

/// An UPDATE whose path tells it from others: four AS numbers, LOCAL_PREF, two communities.
fn update(out: &mut Vec<u8>, next_hop: Ipv4Addr, set: u32, nlri: &[u8]) {
    let mut attributes = vec![0x40, 1, 1, 0, 0x40, 2, 18, 2, 4];
    for asn in [65001, 65100 + set % 300, 65500 + set / 300 % 300, 66000 + set / 90_000] {
        attributes.extend(u32::to_be_bytes(asn));
    }
    attributes.extend([0x40, 3, 4]);
    attributes.extend(next_hop.octets());
    attributes.extend([0x40, 5, 4, 0, 0, 0, 100]);
    attributes.extend([0xc0, 8, 8, 0xfd, 0xe9, 0, 1, 0xfd, 0xe9, 0, (set % 16) as u8]);
    let mut body = vec![0, 0];
    body.extend((attributes.len() as u16).to_be_bytes());
    body.extend(attributes);
    body.extend(nlri);
    out.extend(message(2, &body));
}
