//! A fast decoder for the UPDATEs that make up nearly all traffic. It decodes directly into the types of the table.
//! Messages that are not plainly well-formed are left to the codec, which implements the error handling of RFC 7606.

use crate::rib::attrs::RouteAttrs;
use rustbgpd_wire::{Ipv4Prefix, Origin};
use std::net::{IpAddr, Ipv4Addr};

const ORIGIN: u8 = 1;
const AS_PATH: u8 = 2;
const NEXT_HOP: u8 = 3;
const MED: u8 = 4;
const LOCAL_PREF: u8 = 5;
const COMMUNITIES: u8 = 8;
const ORIGINATOR_ID: u8 = 9;
const CLUSTER_LIST: u8 = 10;
const MANDATORY: u16 = 1 << ORIGIN | 1 << AS_PATH | 1 << NEXT_HOP;

const WELL_KNOWN: u8 = 0x40;
const OPTIONAL: u8 = 0x80;
const TRANSITIVE: u8 = 0xc0;
const EXTENDED_LENGTH: u8 = 0x10;

const AS_SEQUENCE: u8 = 2;

/// Decodes the attributes of the routes in the body of a message from a peer with four-octet AS numbers. `external`
/// drops the attributes that are valid only from inside the AS.
pub(super) fn attributes(mut bytes: &[u8], external: bool) -> Option<RouteAttrs> {
    let mut attrs = RouteAttrs::default();
    let mut seen = 0u16;
    while !bytes.is_empty() {
        let (flags, kind, value) = next(&mut bytes)?;
        match (kind, flags) {
            (ORIGIN, WELL_KNOWN) => {
                let [origin] = value.try_into().ok()?;
                attrs.origin = Origin::from_u8(origin)?;
            }
            (AS_PATH, WELL_KNOWN) => attrs.as_path = path(value)?,
            (NEXT_HOP, WELL_KNOWN) => attrs.next_hop = Some(IpAddr::V4(next_hop(value)?)),
            (MED, OPTIONAL) => attrs.med = Some(number(value)?),
            (LOCAL_PREF, WELL_KNOWN) => attrs.local_pref = Some(number(value)?).filter(|_| !external),
            (COMMUNITIES, TRANSITIVE) => attrs.communities = numbers(value)?.collect(),
            (ORIGINATOR_ID, OPTIONAL) => {
                attrs.originator = Some(Ipv4Addr::from_bits(number(value)?)).filter(|_| !external);
            }
            (CLUSTER_LIST, OPTIONAL) => {
                let clusters = numbers(value)?.map(Ipv4Addr::from_bits);
                attrs.cluster_list = if external { Box::default() } else { clusters.collect() };
            }
            _ => return None,
        }
        // All type codes handled above are small.
        let bit = 1 << kind;
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
    }
    (seen & MANDATORY == MANDATORY).then_some(attrs)
}

/// Appends the prefixes of the body of a message, which have no path identifiers. Returns `None` if they are
/// malformed.
pub(super) fn prefixes(mut bytes: &[u8], out: &mut Vec<(Ipv4Prefix, u32)>) -> Option<()> {
    while let Some((length, rest)) = bytes.split_first() {
        let (octets, rest) = rest.split_at_checked(usize::from(length.div_ceil(8)))?;
        let mut address = [0; 4];
        // `None` if the length is over 32.
        address.get_mut(..octets.len())?.copy_from_slice(octets);
        out.push((Ipv4Prefix::new(address.into(), *length), 0));
        bytes = rest;
    }
    Some(())
}

/// Splits off the next attribute: its flags without the extended-length bit, its type and its value.
fn next<'a>(bytes: &mut &'a [u8]) -> Option<(u8, u8, &'a [u8])> {
    let (&[flags, kind, length], rest) = bytes.split_first_chunk()?;
    let (length, rest) = match flags & EXTENDED_LENGTH {
        0 => (usize::from(length), rest),
        _ => {
            let (low, rest) = rest.split_first()?;
            (usize::from(u16::from_be_bytes([length, *low])), rest)
        }
    };
    let (value, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some((flags & !EXTENDED_LENGTH, kind, value))
}

fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

/// Parses a non-empty list of numbers.
fn numbers(value: &[u8]) -> Option<impl Iterator<Item = u32>> {
    let (numbers, rest) = value.as_chunks::<4>();
    (!numbers.is_empty() && rest.is_empty()).then(|| numbers.iter().copied().map(u32::from_be_bytes))
}

/// Parses an AS_PATH that is empty or consists of one AS_SEQUENCE.
fn path(value: &[u8]) -> Option<Box<[u32]>> {
    let Some((&[kind, count], value)) = value.split_first_chunk() else {
        return value.is_empty().then(Box::default);
    };
    if kind != AS_SEQUENCE || value.len() != 4 * usize::from(count) {
        return None;
    }
    let path: Box<[u32]> = numbers(value)?.collect();
    (!path.contains(&0)).then_some(path)
}

fn next_hop(value: &[u8]) -> Option<Ipv4Addr> {
    let address = Ipv4Addr::from_bits(number(value)?);
    let unusable =
        address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.is_broadcast();
    (!unusable).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::super::receive::{ErrorHandling, error_handling};
    use super::*;
    use crate::rib::codec;
    use bytes::Bytes;
    use proptest::prelude::*;
    use rustbgpd_wire::UpdateMessage;

    fn attribute() -> impl Strategy<Value = Vec<u8>> {
        let flags = prop_oneof![Just(0x40u8), Just(0x80), Just(0xc0), Just(0x50), any::<u8>()];
        let kind = prop_oneof![1u8..=10, any::<u8>()];
        // Often of the length that most attributes have.
        let value = prop_oneof![
            proptest::collection::vec(0u8..4, 4..=4),
            proptest::collection::vec(0u8..4, 1..=1),
            proptest::collection::vec(any::<u8>(), 0..20),
            proptest::collection::vec(1u32..70_000, 1..4).prop_map(|path| {
                let asns = path.iter().flat_map(|asn| asn.to_be_bytes());
                [AS_SEQUENCE, path.len() as u8].into_iter().chain(asns).collect()
            }),
        ];
        (flags, kind, value).prop_map(|(flags, kind, value)| encoded(flags, kind, &value))
    }

    fn encoded(flags: u8, kind: u8, value: &[u8]) -> Vec<u8> {
        let length = (value.len() as u16).to_be_bytes();
        let length = if flags & EXTENDED_LENGTH == 0 { &length[1..] } else { &length[..] };
        [&[flags, kind], length, value].concat()
    }

    /// Returns well-formed attributes of every type that is handled here.
    fn typical() -> Vec<Vec<u8>> {
        vec![
            encoded(0x40, ORIGIN, &[2]),
            encoded(0x50, AS_PATH, &[AS_SEQUENCE, 2, 0, 0, 0xfd, 0xe9, 0, 1, 0, 7]),
            encoded(0x40, NEXT_HOP, &[192, 0, 2, 1]),
            encoded(0x80, MED, &[0, 0, 0, 9]),
            encoded(0x40, LOCAL_PREF, &[0, 0, 1, 0]),
            encoded(0xc0, COMMUNITIES, &[0xfd, 0xe9, 0, 1, 0xfd, 0xe9, 0, 2]),
            encoded(0x80, ORIGINATOR_ID, &[10, 0, 0, 1]),
            encoded(0x80, CLUSTER_LIST, &[10, 0, 0, 2, 10, 0, 0, 3]),
        ]
    }

    /// Decodes the same message with the codec and RFC 7606. Returns `None` on any error.
    fn by_the_codec(
        attributes: &[u8],
        nlri: &[u8],
        external: bool,
    ) -> Option<(RouteAttrs, Vec<(Ipv4Prefix, u32)>)> {
        let update = UpdateMessage {
            withdrawn_routes: Bytes::new(),
            path_attributes: Bytes::copy_from_slice(attributes),
            nlri: Bytes::copy_from_slice(nlri),
        };
        let parsed = update.parse_revised(true, !external, false, &[]).ok()?;
        if !parsed.malformed.is_empty() || !matches!(error_handling(&parsed), ErrorHandling::None) {
            return None;
        }
        let prefixes = parsed.update.announced.iter().map(|entry| (entry.prefix, entry.path_id)).collect();
        let mut decoded = codec::decode(parsed.update.attributes, external);
        decoded.attrs.next_hop = decoded.next_hop;
        Some((decoded.attrs, prefixes))
    }

    fn agrees(attributes: &[u8], nlri: &[u8], external: bool) -> bool {
        let mut found = Vec::new();
        let Some(attrs) = super::attributes(attributes, external) else { return false };
        if prefixes(nlri, &mut found).is_none() || found.is_empty() {
            return false;
        }
        assert_eq!(Some((attrs, found)), by_the_codec(attributes, nlri, external));
        true
    }

    #[test]
    fn typical_attributes_are_decoded_here() {
        for external in [false, true] {
            assert!(agrees(&typical().concat(), &[24, 10, 1, 2, 0, 32, 10, 0, 0, 1, 9, 10, 255], external));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]
        #[test]
        fn the_fast_decoder_agrees_with_the_codec(
            others in proptest::collection::vec(attribute(), 0..3),
            kept in proptest::collection::vec(any::<bool>(), 8),
            change in proptest::option::of((0usize..60, any::<u8>())),
            nlri in prop_oneof![
                Just(vec![24, 10, 0, 1]),
                proptest::collection::vec(any::<u8>(), 0..12),
            ],
            external: bool,
        ) {
            let kept = typical().into_iter().zip(kept).filter(|(_, kept)| *kept).map(|(one, _)| one);
            let mut attributes = kept.chain(others).collect::<Vec<_>>().concat();
            if let Some((at, byte)) = change && let Some(place) = attributes.get_mut(at) {
                *place = byte;
            }
            agrees(&attributes, &nlri, external);
        }
    }
}
