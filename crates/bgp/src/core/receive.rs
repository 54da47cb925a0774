//! Applies a peer's UPDATE to the table: error handling by RFC 7606, loop checks and the import filter.

use super::{
    ConnectionDirection, FamilyTable, RoutingTables, SharedAttrs, SpeakerCore, fast_decode, find_origin,
};
use crate::family::{BgpFamily, Prefix};
use crate::filter::{FilterOutcome, FilterRouteSource, PeerType, RouteContext, RouteFilter};
use crate::id::PeerId;
use crate::rib::attrs::{AttrsInterner, RouteAttrs};
use crate::rib::codec::{self, DecodedAttrs};
use crate::rib::table::{PathUpdateEffect, RoutePath};
use crate::timers::SpeakerTime;
use bytes::Bytes;
use rustbgpd_fsm::Event;
use rustbgpd_wire::notification::NotificationCode;
use rustbgpd_wire::validate::validate_update_attributes;
use rustbgpd_wire::{
    AddPathMode, Afi, DecodeError, ErrorDisposition, Ipv4Prefix, Ipv6Prefix, NlriEntry, NotificationMessage,
    Prefix as WirePrefix, RevisedParsedUpdate, Safi, UpdateMessage,
};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tracing::{debug, warn};

/// Percentage of a limit from which a warning is logged.
const LIMIT_WARNING_PERCENT: u64 = 80;

/// The prefixes of an UPDATE with their path identifiers.
pub(super) type NlriEntries<P> = Vec<(P, u32)>;

/// The properties of a peer that are needed to accept or reject its routes.
struct ImportPolicy {
    external: bool,
    epoch: u8,
    max_paths: u16,
    filter: Arc<RouteFilter>,
}

impl SpeakerCore {
    pub(super) fn update(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        update: &UpdateMessage,
    ) {
        let Some(peer) = self.peer_mut(peer_id) else { return };
        peer.history.updates_in += 1;
        if self.fast_update(peer_id, update) {
            return self.check_limit(now, peer_id, direction);
        }
        let Some(peer) = self.peer(peer_id) else { return };
        let external = peer.external();
        let Some(negotiated) = peer.negotiated() else { return };
        let four_octet_as = negotiated.four_octet_as;
        let add_path = add_path_receive_families(negotiated);
        let body = add_path.contains(&BgpFamily::V4.wire());
        let parsed = match update.parse_revised(four_octet_as, !external, body, &add_path) {
            Ok(parsed) => parsed,
            Err(error) => return self.refuse(now, peer_id, direction, &error),
        };
        let verdict = match error_handling(&parsed) {
            ErrorHandling::SessionReset(notification) => {
                self.count_refused(peer_id);
                self.event(now, peer_id, direction, Event::UpdateValidationError(notification));
                return;
            }
            verdict => verdict,
        };
        self.apply(now, peer_id, parsed, matches!(verdict, ErrorHandling::TreatAsWithdraw));
        self.check_limit(now, peer_id, direction);
    }

    fn count_refused(&mut self, peer_id: PeerId) {
        if let Some(peer) = self.peer_mut(peer_id) {
            peer.history.refused += 1;
        }
    }

    /// Processes a plainly well-formed message that only announces or only withdraws IPv4 routes. Returns false if
    /// the message is of another kind; nothing has been changed then.
    fn fast_update(&mut self, peer_id: PeerId, update: &UpdateMessage) -> bool {
        let Some(peer) = self.peer(peer_id) else { return false };
        let Some(negotiated) = peer.negotiated() else { return false };
        let plain = negotiated.four_octet_as
            && negotiated.add_path_families.is_empty()
            && negotiated.negotiated_families.contains(&BgpFamily::V4.wire());
        let UpdateMessage { withdrawn_routes: gone, path_attributes, nlri: announced } = update;
        let announces = gone.is_empty() && !announced.is_empty();
        let withdraws = !gone.is_empty() && announced.is_empty() && path_attributes.is_empty();
        if !plain || !(announces || withdraws) {
            return false;
        }
        let attrs = fast_decode::attributes(path_attributes, peer.external());
        if announces && attrs.is_none() {
            return false;
        }
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        let understood =
            fast_decode::prefixes(if announces { announced } else { gone }, &mut entries).is_some();
        match attrs {
            _ if !understood => {}
            Some(attrs) => self.admit(peer_id, attrs, &entries, false),
            None => self.remove_all(peer_id, &entries),
        }
        self.entries = entries;
        understood
    }

    /// Ends the session because the message cannot be parsed at all.
    fn refuse(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        error: &DecodeError,
    ) {
        let (code, subcode, data) = error.to_notification();
        self.count_refused(peer_id);
        self.record_error(peer_id, error.to_string());
        let notification = NotificationMessage::new(code, subcode, data);
        self.event(now, peer_id, direction, Event::UpdateValidationError(notification));
    }

    fn apply(&mut self, now: SpeakerTime, peer_id: PeerId, parsed: RevisedParsedUpdate, withdraw: bool) {
        let Some(peer) = self.peer_mut(peer_id) else { return };
        let external = peer.external();
        let families = peer.families();
        if withdraw {
            peer.history.malformed += 1;
            debug!(peer = %peer.name, "malformed attributes: the routes are treated as withdrawn");
        }
        let empty = parsed.update.withdrawn.is_empty() && parsed.update.announced.is_empty();
        let no_attributes = parsed.update.attributes.is_empty();
        let DecodedAttrs { mut attrs, next_hop, reach, unreach } =
            codec::decode(parsed.update.attributes, external);

        if empty && no_attributes && families.contains(&BgpFamily::V4) {
            return self.end_of_rib(now, peer_id, BgpFamily::V4);
        }
        let mut gone: NlriEntries<Ipv4Prefix> =
            parsed.update.withdrawn.iter().map(|entry| (entry.prefix, entry.path_id)).collect();
        let announced: NlriEntries<Ipv4Prefix> =
            parsed.update.announced.iter().map(|entry| (entry.prefix, entry.path_id)).collect();
        let mut gone_v6: NlriEntries<Ipv6Prefix> = Vec::new();
        if let Some(unreach) = unreach {
            let family = BgpFamily::from_wire(unreach.afi, unreach.safi);
            if unreach.withdrawn.is_empty()
                && empty
                && reach.is_none()
                && let Some(family) = family.filter(|family| families.contains(family))
            {
                return self.end_of_rib(now, peer_id, family);
            }
            split(&unreach.withdrawn, &mut gone, &mut gone_v6);
        }
        if families.contains(&BgpFamily::V6) {
            self.remove_all(peer_id, &gone_v6);
        }
        if families.contains(&BgpFamily::V4) {
            self.remove_all(peer_id, &gone);
            attrs.next_hop = next_hop;
            // The usual case.
            if reach.is_none() {
                return self.admit(peer_id, attrs, &announced, withdraw);
            }
            self.admit(peer_id, attrs.clone(), &announced, withdraw);
        }
        let Some(reach) = reach else { return };
        let Some(family) = BgpFamily::from_wire(reach.afi, reach.safi).filter(|f| families.contains(f))
        else {
            return;
        };
        // We do not offer next hops of the other family.
        let foreign = BgpFamily::of(reach.next_hop) != family;
        attrs.next_hop = Some(reach.next_hop);
        attrs.link_local = reach.link_local_next_hop;
        let mut v4 = Vec::new();
        let mut v6 = Vec::new();
        split(&reach.announced, &mut v4, &mut v6);
        match family {
            BgpFamily::V4 => self.admit(peer_id, attrs, &v4, withdraw || foreign),
            BgpFamily::V6 => self.admit(peer_id, attrs, &v6, withdraw || foreign),
        }
    }

    /// Inserts routes into the table, or removes them if they must not be used.
    fn admit<P: Prefix>(
        &mut self,
        peer_id: PeerId,
        attrs: RouteAttrs,
        entries: &NlriEntries<P>,
        withdraw: bool,
    ) where
        RoutingTables: FamilyTable<P>,
    {
        if entries.is_empty() {
            return;
        }
        let Some(peer) = self.peer(peer_id) else { return };
        let policy = ImportPolicy {
            external: peer.external(),
            epoch: *peer.epoch.get(P::FAMILY),
            max_paths: peer.config.max_paths_per_prefix,
            filter: peer.config.import.clone(),
        };
        if withdraw || self.is_loop(peer_id, &attrs) {
            return self.remove_all(peer_id, entries);
        }
        let shared = self.interner.intern(attrs);
        let mut added = 0u32;
        let mut removed = 0u32;
        let mut too_many = false;
        for (prefix, path_id) in entries {
            let attrs = match policy.filter(&mut self.interner, *prefix, &shared) {
                Some(attrs) => attrs,
                None => {
                    let origins = &self.origins;
                    let table = self.rib.table_mut();
                    let effect = table.remove(*prefix, peer_id, *path_id, |peer| find_origin(origins, peer));
                    removed += u32::from(effect == PathUpdateEffect::Removed);
                    continue;
                }
            };
            let path = RoutePath { attrs, path_id: *path_id, peer: peer_id, epoch: policy.epoch };
            let origins = &self.origins;
            let effect = self
                .rib
                .table_mut()
                .insert(*prefix, path, policy.max_paths, |peer| find_origin(origins, peer));
            added += u32::from(effect == PathUpdateEffect::Added);
            too_many |= effect == PathUpdateEffect::TooManyPaths;
        }
        if let Some(peer) = self.peer_mut(peer_id) {
            let received = peer.received.get_mut(P::FAMILY);
            *received = (*received + added).saturating_sub(removed);
            peer.too_many_paths |= too_many;
        }
    }

    fn remove_all<P: Prefix>(&mut self, peer_id: PeerId, entries: &NlriEntries<P>)
    where
        RoutingTables: FamilyTable<P>,
    {
        let mut removed = 0u32;
        for (prefix, path_id) in entries {
            let origins = &self.origins;
            let table = self.rib.table_mut();
            let effect = table.remove(*prefix, peer_id, *path_id, |peer| find_origin(origins, peer));
            removed += u32::from(effect == PathUpdateEffect::Removed);
        }
        if let Some(peer) = self.peer_mut(peer_id) {
            let received = peer.received.get_mut(P::FAMILY);
            *received = received.saturating_sub(removed);
        }
    }

    /// Returns whether the route contains a loop: it has passed through this speaker, or its next hop is our own
    /// address.
    fn is_loop(&self, peer_id: PeerId, attrs: &RouteAttrs) -> bool {
        let Some(peer) = self.peer(peer_id) else { return true };
        let own = attrs.as_path.iter().filter(|asn| **asn == self.config.asn || **asn == peer.local_as);
        let seen = own.count();
        seen as u64 > u64::from(peer.config.allow_own_as)
            || attrs.originator == Some(self.config.router_id)
            || attrs.cluster_list.iter().any(|cluster| self.is_own_cluster(*cluster))
            || attrs.next_hop.is_none_or(|address| {
                peer.local_address() == Some(address)
                    || self.config.local_v4.map(IpAddr::V4) == Some(address)
                    || self.config.local_v6.map(IpAddr::V6) == Some(address)
            })
    }

    fn is_own_cluster(&self, cluster: Ipv4Addr) -> bool {
        self.peers.iter().flatten().any(|peer| peer.config.reflect == Some(cluster))
    }

    /// Ends the session of a peer that exceeds a limit; logs a warning when it comes close.
    fn check_limit(&mut self, now: SpeakerTime, peer_id: PeerId, direction: ConnectionDirection) {
        let Some(peer) = self.peer_mut(peer_id) else { return };
        if std::mem::take(&mut peer.too_many_paths) {
            let limit = peer.config.max_paths_per_prefix;
            let reason = format!("the peer announced more than {limit} paths to one prefix");
            return self.limit_exceeded(now, peer_id, direction, reason);
        }
        let Some(limit) = peer.config.max_prefixes else { return };
        let most = BgpFamily::ALL.into_iter().max_by_key(|family| *peer.received.get(*family));
        let Some(family) = most else { return };
        let received = *peer.received.get(family);
        if received > limit {
            let reason = format!("the peer announced more than {limit} routes of {family}");
            return self.limit_exceeded(now, peer_id, direction, reason);
        }
        let near = u64::from(received) * 100 >= u64::from(limit) * LIMIT_WARNING_PERCENT;
        if near && !peer.near_limit {
            warn!(
                peer = %peer.name, received, limit, %family,
                "the peer has announced over {LIMIT_WARNING_PERCENT} % of its route limit; the session ends at the limit, \
                 raise it if these routes are wanted",
            );
        }
        peer.near_limit = near;
    }
}

impl ImportPolicy {
    fn filter<P: Prefix>(
        &self,
        interner: &mut AttrsInterner,
        prefix: P,
        attrs: &SharedAttrs,
    ) -> Option<SharedAttrs> {
        let peer = if self.external { PeerType::External } else { PeerType::Internal };
        let route = RouteContext { prefix: prefix.net(), source: FilterRouteSource::Peers, peer };
        match self.filter.run(&route, attrs) {
            FilterOutcome::Reject => None,
            FilterOutcome::Same => Some(attrs.clone()),
            FilterOutcome::Changed(changed) => Some(interner.intern(changed)),
        }
    }
}

pub(super) enum ErrorHandling {
    None,
    TreatAsWithdraw,
    SessionReset(NotificationMessage),
}

/// Returns the strongest reaction that RFC 7606 requires.
pub(super) fn error_handling(parsed: &RevisedParsedUpdate) -> ErrorHandling {
    let update = &parsed.update;
    let body = !update.announced.is_empty();
    let reach = update.attributes.iter().any(|attribute| {
        matches!(attribute, rustbgpd_wire::PathAttribute::MpReachNlri(reach) if !reach.announced.is_empty())
    });
    let worst = parsed.malformed.iter().max_by_key(|malformed| malformed.disposition);
    if let Some(malformed) = worst
        && malformed.disposition == ErrorDisposition::SessionReset
    {
        let (code, subcode, data) = malformed.error.to_notification();
        return ErrorHandling::SessionReset(NotificationMessage::new(code, subcode, data));
    }
    // NEXT_HOP is required from internal peers too: a route without one is unusable.
    let invalid = validate_update_attributes(&update.attributes, body || reach, body, true).err();
    if let Some(error) = &invalid
        && error.disposition == ErrorDisposition::SessionReset
    {
        let data = Bytes::copy_from_slice(&error.data);
        return ErrorHandling::SessionReset(NotificationMessage::new(
            NotificationCode::UpdateMessage,
            error.subcode,
            data,
        ));
    }
    let withdraw = worst.is_some_and(|malformed| malformed.disposition == ErrorDisposition::TreatAsWithdraw);
    if withdraw || invalid.is_some() { ErrorHandling::TreatAsWithdraw } else { ErrorHandling::None }
}

fn split(entries: &[NlriEntry], v4: &mut NlriEntries<Ipv4Prefix>, v6: &mut NlriEntries<Ipv6Prefix>) {
    for entry in entries {
        match entry.prefix {
            WirePrefix::V4(prefix) => v4.push((prefix, entry.path_id)),
            WirePrefix::V6(prefix) => v6.push((prefix, entry.path_id)),
        }
    }
}

/// Returns the families in which the peer sends path identifiers.
fn add_path_receive_families(negotiated: &rustbgpd_fsm::NegotiatedSession) -> Vec<(Afi, Safi)> {
    negotiated
        .add_path_families
        .iter()
        .filter(|(_, mode)| matches!(mode, AddPathMode::Receive | AddPathMode::Both))
        .map(|(family, _)| *family)
        .collect()
}
