//! Encodes the attributes of a route for a peer, and packs routes with the same attributes into UPDATE messages.

use super::SharedAttrs;
use crate::config::AdvertisedNextHop;
use crate::family::{BgpFamily, Prefix};
use crate::rib::attrs::RouteAttrs;
use crate::rib::codec;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Identifies an update group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct UpdateGroupId(u32);

/// An update group: all properties of a session that determine how attributes are encoded for it. Sessions of one
/// group share the encoded attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UpdateGroup {
    pub external: bool,
    pub local_as: u32,
    pub next_hop: AdvertisedNextHop,
    /// Our address as a next hop, and the link-local address that accompanies it.
    pub own: Option<IpAddr>,
    pub own_link_local: Option<Ipv6Addr>,
    pub four_octet_as: bool,
}

/// The source of a route, as far as it affects the advertised attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RouteProvenance {
    Own,
    External,
    /// Learnt inside the AS and reflected, with the identifier of its originator and our cluster.
    Reflected {
        from: Ipv4Addr,
        cluster: Ipv4Addr,
    },
}

/// A prefix in a message. The path identifier distinguishes several paths to it (RFC 7911); 0 if there is only one.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathNlri<P> {
    pub prefix: P,
    pub path: u32,
}

impl<P: Prefix> PathNlri<P> {
    /// Returns the maximum encoded size in octets.
    fn room(&self) -> usize {
        17 + if self.path == 0 { 0 } else { 4 }
    }

    fn encode(self, out: &mut Vec<u8>) {
        if self.path != 0 {
            out.extend(self.path.to_be_bytes());
        }
        self.prefix.encode(out);
    }
}

/// Attributes in wire format.
#[derive(Debug)]
pub(super) struct EncodedAttrs {
    /// Without MP_REACH_NLRI.
    attributes: Vec<u8>,
    next_hop: IpAddr,
    link_local: Option<Ipv6Addr>,
}

/// Encoded attributes by update group.
#[derive(Debug, Default)]
pub(super) struct EncodedAttrsCache {
    groups: HashMap<UpdateGroup, UpdateGroupId>,
    /// The attributes are kept together with their encoding, so that their address cannot be reused while it is a
    /// key.
    encoded: HashMap<EncodedAttrsKey, (SharedAttrs, Option<Arc<EncodedAttrs>>)>,
}

/// An update group, the address of the attributes and the source of the route.
type EncodedAttrsKey = (UpdateGroupId, usize, RouteProvenance);

impl EncodedAttrsCache {
    const MAX_CACHED_ENCODINGS: usize = 16384;

    pub fn group(&mut self, group: UpdateGroup) -> UpdateGroupId {
        let next = UpdateGroupId(self.groups.len() as u32);
        *self.groups.entry(group).or_insert(next)
    }

    /// Returns the encoded attributes, or `None` if the route cannot be advertised to such a peer.
    pub fn get(
        &mut self,
        group_id: UpdateGroupId,
        group: &UpdateGroup,
        attrs: &SharedAttrs,
        provenance: RouteProvenance,
    ) -> Option<Arc<EncodedAttrs>> {
        if self.encoded.len() >= Self::MAX_CACHED_ENCODINGS {
            self.encoded.clear();
        }
        let key = (group_id, Arc::as_ptr(attrs) as usize, provenance);
        let (_, encoded) = self
            .encoded
            .entry(key)
            .or_insert_with(|| (attrs.clone(), render(attrs, group, provenance).map(Arc::new)));
        encoded.clone()
    }

    /// Releases attributes that the table may have dropped.
    pub fn clear(&mut self) {
        self.encoded.clear();
    }
}

/// Computes the attributes with which a route is advertised (RFC 4271 section 5, RFC 4456 section 8).
fn render(attrs: &RouteAttrs, group: &UpdateGroup, provenance: RouteProvenance) -> Option<EncodedAttrs> {
    let keeps = match group.next_hop {
        AdvertisedNextHop::Own => false,
        AdvertisedNextHop::Keep => true,
        AdvertisedNextHop::Auto => !group.external,
    };
    let (next_hop, link_local) = match attrs.next_hop {
        Some(next_hop) if keeps => (next_hop, attrs.link_local.filter(|_| !group.external)),
        _ => (group.own?, group.own_link_local),
    };
    let mut out = attrs.clone();
    out.next_hop = Some(next_hop);
    if group.external {
        out.as_path = [&[group.local_as], &attrs.as_path[..]].concat().into();
        out.local_pref = None;
        out.originator = None;
        out.cluster_list = Box::default();
        if provenance != RouteProvenance::Own {
            out.med = None;
        }
    } else {
        out.local_pref = Some(attrs.local_pref());
        if let RouteProvenance::Reflected { from, cluster } = provenance {
            out.originator.get_or_insert(from);
            out.cluster_list = [&[cluster], &attrs.cluster_list[..]].concat().into();
        }
    }
    let mut attributes = Vec::with_capacity(64);
    codec::encode(&out, group.four_octet_as, &mut attributes).ok()?;
    Some(EncodedAttrs { attributes, next_hop, link_local })
}

const HEADER_BYTES: usize = 19;
/// Flags, type and two octets of length of MP_REACH_NLRI or MP_UNREACH_NLRI.
const MP_HEADER_BYTES: usize = 4;
const MP_REACH_TYPE: u8 = 14;
const MP_UNREACH_TYPE: u8 = 15;
/// Optional, with two octets of length.
const MP_FLAGS: u8 = 0x90;

/// Appends the minimum number of UPDATEs that announce the prefixes. Returns their number; 0 if the attributes leave
/// no room for a prefix.
pub(super) fn announce<P: Prefix>(
    out: &mut Vec<u8>,
    prefixes: &[PathNlri<P>],
    encoded: &EncodedAttrs,
    limit: u16,
) -> usize {
    let fixed = HEADER_BYTES + 4 + encoded.attributes.len() + reach_head(P::FAMILY, encoded).len();
    pack(out, prefixes, usize::from(limit).saturating_sub(fixed), |out, nlri| match P::FAMILY {
        BgpFamily::V4 => {
            message(out, &[], &[&encoded.attributes], nlri);
        }
        BgpFamily::V6 => {
            let head = reach_head(P::FAMILY, encoded);
            let value = (head.len() - MP_HEADER_BYTES + nlri.len()) as u16;
            let [high, low] = value.to_be_bytes();
            let mut head = head;
            head.splice(2..4, [high, low]);
            message(out, &[], &[&head, nlri, &encoded.attributes], &[]);
        }
    })
}

/// Appends the minimum number of UPDATEs that withdraw the prefixes. Returns their number.
pub(super) fn withdraw<P: Prefix>(out: &mut Vec<u8>, prefixes: &[PathNlri<P>], limit: u16) -> usize {
    let fixed = HEADER_BYTES + 4 + MP_HEADER_BYTES + 3;
    pack(out, prefixes, usize::from(limit).saturating_sub(fixed), |out, nlri| match P::FAMILY {
        BgpFamily::V4 => message(out, nlri, &[], &[]),
        BgpFamily::V6 => message(out, &[], &[&build_unreach_head(nlri.len()), nlri], &[]),
    })
}

/// Appends the End-of-RIB marker of a family (RFC 4724 section 2).
pub(super) fn end_of_rib(out: &mut Vec<u8>, family: BgpFamily) {
    match family {
        BgpFamily::V4 => message(out, &[], &[], &[]),
        BgpFamily::V6 => message(out, &[], &[&build_unreach_head(0)], &[]),
    }
}

fn reach_head(family: BgpFamily, encoded: &EncodedAttrs) -> Vec<u8> {
    let mut head = Vec::with_capacity(48);
    let IpAddr::V6(next_hop) = encoded.next_hop else { return head };
    if family == BgpFamily::V6 {
        head.extend([MP_FLAGS, MP_REACH_TYPE, 0, 0, 0, 2, 1]);
        head.push(if encoded.link_local.is_some() { 32 } else { 16 });
        head.extend(next_hop.octets());
        head.extend(encoded.link_local.iter().flat_map(|address| address.octets()));
        head.push(0);
    }
    head
}

fn build_unreach_head(nlri: usize) -> [u8; 7] {
    let [high, low] = ((nlri + 3) as u16).to_be_bytes();
    [MP_FLAGS, MP_UNREACH_TYPE, high, low, 0, 2, 1]
}

fn pack<P: Prefix>(
    out: &mut Vec<u8>,
    prefixes: &[PathNlri<P>],
    room: usize,
    mut write: impl FnMut(&mut Vec<u8>, &[u8]),
) -> usize {
    // Attributes that leave no room for a prefix cannot be sent.
    if prefixes.first().is_none_or(|first| room < first.room()) {
        return 0;
    }
    let mut messages = 0;
    let mut nlri = Vec::with_capacity(room.min(4096));
    for prefix in prefixes {
        if nlri.len() + prefix.room() > room {
            write(out, &nlri);
            messages += 1;
            nlri.clear();
        }
        prefix.encode(&mut nlri);
    }
    if !nlri.is_empty() {
        write(out, &nlri);
        messages += 1;
    }
    messages
}

fn message(out: &mut Vec<u8>, withdrawn: &[u8], attributes: &[&[u8]], nlri: &[u8]) {
    let attributes_length: usize = attributes.iter().map(|part| part.len()).sum();
    let length = HEADER_BYTES + 4 + withdrawn.len() + attributes_length + nlri.len();
    out.extend([0xff; 16]);
    out.extend((length as u16).to_be_bytes());
    out.push(rustbgpd_wire::constants::message_type::UPDATE);
    out.extend((withdrawn.len() as u16).to_be_bytes());
    out.extend(withdrawn);
    out.extend((attributes_length as u16).to_be_bytes());
    attributes.iter().for_each(|part| out.extend(*part));
    out.extend(nlri);
}
