//! Converts nets and ports into sorted and merged ranges, each with its first and last value.

use super::rule::NftFamily;
use ipnet::IpNet;
use tortie_plan::PortInterval;

pub type ByteRange = (Vec<u8>, Vec<u8>);

/// Returns the ranges of the nets of one family.
pub fn from_nets<'n>(nets: impl IntoIterator<Item = &'n IpNet>, family: NftFamily) -> Vec<ByteRange> {
    let mut ranges: Vec<ByteRange> = nets
        .into_iter()
        .filter_map(|net| match (net, family) {
            (IpNet::V4(net), NftFamily::V4) => {
                Some((net.network().octets().to_vec(), net.broadcast().octets().to_vec()))
            }
            (IpNet::V6(net), NftFamily::V6) => {
                Some((net.network().octets().to_vec(), net.broadcast().octets().to_vec()))
            }
            _ => None,
        })
        .collect();
    ranges.sort_unstable();
    merge(ranges)
}

pub fn from_ports(ports: &[PortInterval]) -> Vec<ByteRange> {
    let mut ranges: Vec<ByteRange> = ports
        .iter()
        .filter(|range| range.first <= range.last)
        .map(|range| (range.first.to_be_bytes().to_vec(), range.last.to_be_bytes().to_vec()))
        .collect();
    ranges.sort_unstable();
    merge(ranges)
}

pub fn from_bytes(values: &[u8]) -> Vec<ByteRange> {
    let mut ranges: Vec<ByteRange> = values.iter().map(|value| (vec![*value], vec![*value])).collect();
    ranges.sort_unstable();
    merge(ranges)
}

/// Merges ranges that overlap or are adjacent; `ranges` must be sorted.
fn merge(ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    let mut merged: Vec<ByteRange> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if after(end).is_none_or(|after| first <= after) => {
                if last > *end {
                    *end = last;
                }
            }
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// Returns the next value; `None` after the last.
pub(super) fn after(value: &[u8]) -> Option<Vec<u8>> {
    let mut next = value.to_vec();
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(next);
        }
    }
    None
}

/// Returns the previous value of one that is not the first.
pub(super) fn before(value: &[u8]) -> Vec<u8> {
    let mut previous = value.to_vec();
    for byte in previous.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != u8::MAX {
            break;
        }
    }
    previous
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(nets: &[&str], family: NftFamily) -> Vec<ByteRange> {
        let nets: Vec<IpNet> = nets.iter().map(|net| net.parse().unwrap()).collect();
        from_nets(&nets, family)
    }

    #[test]
    fn what_overlaps_or_touches_becomes_one() {
        let merged =
            nets(&["10.0.1.0/24", "10.0.0.0/24", "10.0.0.128/25", "10.0.3.0/24", "fd00::/8"], NftFamily::V4);
        assert_eq!(
            merged,
            [(vec![10, 0, 0, 0], vec![10, 0, 1, 255]), (vec![10, 0, 3, 0], vec![10, 0, 3, 255])]
        );
    }

    #[test]
    fn the_whole_space_swallows_the_rest() {
        let everything = nets(&["0.0.0.0/0", "255.255.255.255/32", "1.2.3.4/32"], NftFamily::V4);
        assert_eq!(everything, [(vec![0; 4], vec![255; 4])]);
        assert_eq!(nets(&["::/0", "fd00::/8"], NftFamily::V6), [(vec![0; 16], vec![255; 16])]);
    }

    #[test]
    fn ports_that_touch_become_one_range() {
        let range = |first, last| PortInterval { first, last };
        let merged = from_ports(&[range(81, 90), range(80, 80), range(65535, 65535), range(9, 3)]);
        assert_eq!(merged, [(vec![0, 80], vec![0, 90]), (vec![255, 255], vec![255, 255])]);
    }
}
