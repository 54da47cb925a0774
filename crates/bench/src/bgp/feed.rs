//! Builds UPDATE messages with many routes before a measurement starts.

use super::session::message;
use std::net::Ipv4Addr;

/// Route that is sent last. Observers receive no other route.
pub const MARKER_PREFIX: &str = "203.0.113.0/24";
const MARKER_NLRI: [u8; 4] = [24, 203, 0, 113];
/// Number of routes with the same attributes.
const ROUTES_PER_UPDATE: usize = 10;

/// Consecutive prefixes of equal length, starting at 20.0.0.0.
#[derive(Clone, Copy)]
pub struct GeneratedRoutes {
    pub first: usize,
    pub count: usize,
    pub bits: u8,
}

impl GeneratedRoutes {
    /// Returns `count` consecutive /24 routes.
    pub fn from_the_start(count: usize) -> GeneratedRoutes {
        GeneratedRoutes { first: 0, count, bits: 24 }
    }

    /// Encodes the UPDATE messages of a peer that announces the routes with itself as the next hop.
    pub fn announced_by(self, peer: Ipv4Addr) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.count * 16);
        let end = self.first + self.count;
        for first in (self.first..end).step_by(ROUTES_PER_UPDATE) {
            let mut nlri = Vec::with_capacity(5 * ROUTES_PER_UPDATE);
            for number in first..end.min(first + ROUTES_PER_UPDATE) {
                let address = Ipv4Addr::from((20 << 24) + ((number as u32) << (32 - self.bits)));
                nlri.push(self.bits);
                nlri.extend(address.octets().iter().take(usize::from(self.bits.div_ceil(8))));
            }
            update(&mut bytes, peer, (first / ROUTES_PER_UPDATE) as u32, &nlri);
        }
        bytes
    }
}

/// Encodes the announcement of the marker.
pub fn marker(peer: Ipv4Addr) -> Vec<u8> {
    let mut bytes = Vec::new();
    update(&mut bytes, peer, 0, &MARKER_NLRI);
    bytes
}

/// Appends an UPDATE with attributes that are distinct for each `set`: four AS numbers, LOCAL_PREF, two communities.
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
