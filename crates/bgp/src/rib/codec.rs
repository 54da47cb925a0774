//! Converts path attributes between their wire format and [`RouteAttrs`].

use super::attrs::RouteAttrs;
use bytes::Bytes;
use rustbgpd_wire::attribute::encode_path_attributes;
use rustbgpd_wire::{
    AsPath, AsPathSegment, EncodeError, MpReachNlri, MpUnreachNlri, PathAttribute, RawAttribute,
};
use std::net::IpAddr;

const OPTIONAL_TRANSITIVE: u8 = 0xc0;
const ONLY_TO_CUSTOMER: u8 = 35;

/// The decoded attributes of an UPDATE.
#[derive(Debug, Default)]
pub struct DecodedAttrs {
    pub attrs: RouteAttrs,
    /// NEXT_HOP, which applies to the prefixes in the body of the message.
    pub next_hop: Option<IpAddr>,
    pub reach: Option<Box<MpReachNlri>>,
    pub unreach: Option<Box<MpUnreachNlri>>,
}

/// Decodes attributes. `external` drops the ones that are valid only from inside the AS.
pub fn decode(attributes: Vec<PathAttribute>, external: bool) -> DecodedAttrs {
    let mut decoded = DecodedAttrs::default();
    let attrs = &mut decoded.attrs;
    let mut others = Vec::new();
    for attribute in attributes {
        match attribute {
            PathAttribute::Origin(origin) => attrs.origin = origin,
            PathAttribute::AsPath(path) => attrs.as_path = path.asns().collect(),
            PathAttribute::NextHop(next_hop) => decoded.next_hop = Some(IpAddr::V4(next_hop)),
            PathAttribute::Med(med) => attrs.med = Some(med),
            PathAttribute::LocalPref(value) if !external => attrs.local_pref = Some(value),
            PathAttribute::AtomicAggregate => attrs.atomic_aggregate = true,
            PathAttribute::Aggregator(aggregator) => attrs.aggregator = Some(aggregator),
            PathAttribute::Communities(values) | PathAttribute::CommunitiesPartial(values) => {
                attrs.communities = values.into();
            }
            PathAttribute::ExtendedCommunities(values)
            | PathAttribute::ExtendedCommunitiesPartial(values) => {
                attrs.extended_communities = values.into();
            }
            PathAttribute::LargeCommunities(values) | PathAttribute::LargeCommunitiesPartial(values) => {
                attrs.large_communities = values.into();
            }
            PathAttribute::OriginatorId(id) if !external => attrs.originator = Some(id),
            PathAttribute::ClusterList(list) if !external => attrs.cluster_list = list.into(),
            PathAttribute::MpReachNlri(reach) => decoded.reach = Some(reach),
            PathAttribute::MpUnreachNlri(unreach) => decoded.unreach = Some(unreach),
            // The data is a slice of the read buffer; a copy does not keep the whole buffer in memory.
            PathAttribute::Unknown(raw) => {
                others.push(RawAttribute { data: Bytes::copy_from_slice(&raw.data), ..raw });
            }
            // RFC 9234: we do not evaluate the attribute, but must preserve it.
            PathAttribute::OnlyToCustomer(asn) | PathAttribute::OnlyToCustomerPartial(asn) => {
                let data = Bytes::copy_from_slice(&asn.to_be_bytes());
                others.push(RawAttribute { flags: OPTIONAL_TRANSITIVE, type_code: ONLY_TO_CUSTOMER, data });
            }
            _ => {}
        }
    }
    attrs.others = others.into();
    decoded
}

/// Encodes the attributes that are independent of the prefix: all except the next hop of families other than IPv4.
pub fn encode(attrs: &RouteAttrs, four_octet_as: bool, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let mut list = Vec::with_capacity(12);
    list.push(PathAttribute::Origin(attrs.origin));
    let mut segments = Vec::new();
    if !attrs.as_path.is_empty() {
        segments.push(AsPathSegment::AsSequence(attrs.as_path.to_vec()));
    }
    list.push(PathAttribute::AsPath(AsPath { segments }));
    if let Some(IpAddr::V4(next_hop)) = attrs.next_hop {
        list.push(PathAttribute::NextHop(next_hop));
    }
    list.extend(attrs.med.map(PathAttribute::Med));
    list.extend(attrs.local_pref.map(PathAttribute::LocalPref));
    list.extend(attrs.atomic_aggregate.then_some(PathAttribute::AtomicAggregate));
    list.extend(attrs.aggregator.map(PathAttribute::Aggregator));
    if !attrs.communities.is_empty() {
        list.push(PathAttribute::Communities(attrs.communities.to_vec()));
    }
    list.extend(attrs.originator.map(PathAttribute::OriginatorId));
    if !attrs.cluster_list.is_empty() {
        list.push(PathAttribute::ClusterList(attrs.cluster_list.to_vec()));
    }
    if !attrs.extended_communities.is_empty() {
        list.push(PathAttribute::ExtendedCommunities(attrs.extended_communities.to_vec()));
    }
    if !attrs.large_communities.is_empty() {
        list.push(PathAttribute::LargeCommunities(attrs.large_communities.to_vec()));
    }
    list.extend(attrs.others.iter().cloned().map(PathAttribute::Unknown));
    encode_path_attributes(&list, out, four_octet_as, false)
}
