//! What a peer's UPDATE does to our table: errors as RFC 7606 wants them, loop checks, the import filter.

use super::{Core, Direction, Holds, Rib, Shared, origin_of, usual};
use crate::family::{Family, Prefix};
use crate::filter::{Asked, Filter, Outcome, PeerKind, Source};
use crate::rib::attrs::{Attrs, Interner};
use crate::rib::codec::{self, Decoded};
use crate::rib::table::{Effect, Path};
use crate::timers::Time;
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
use tracing::debug;

/// The prefixes of an UPDATE with the numbers that tell paths of one prefix apart.
pub(super) type Entries<P> = Vec<(P, u32)>;

/// What is needed of a peer to judge its routes.
struct Judge {
    external: bool,
    epoch: u8,
    filter: Arc<Filter>,
}

impl Core {
    pub(super) fn update(&mut self, now: Time, number: u16, direction: Direction, update: &UpdateMessage) {
        let Some(peer) = self.peer_mut(number) else { return };
        peer.history.updates_in += 1;
        if self.usual_update(number, update) {
            return self.check_limit(now, number, direction);
        }
        let Some(peer) = self.peer(number) else { return };
        let external = peer.external();
        let Some(negotiated) = peer.negotiated() else { return };
        let (four_octet_as, several) = (negotiated.four_octet_as, several_paths(negotiated));
        let body = several.contains(&Family::V4.wire());
        let parsed = match update.parse_revised(four_octet_as, !external, body, &several) {
            Ok(parsed) => parsed,
            Err(error) => return self.refuse(now, number, direction, &error),
        };
        let verdict = match judge(&parsed) {
            Verdict::Reset(notification) => {
                self.count_refused(number);
                self.event(now, number, direction, Event::UpdateValidationError(notification));
                return;
            }
            verdict => verdict,
        };
        self.apply(now, number, parsed, matches!(verdict, Verdict::Withdraw));
        self.check_limit(now, number, direction);
    }

    fn count_refused(&mut self, number: u16) {
        if let Some(peer) = self.peer_mut(number) {
            peer.history.refused += 1;
        }
    }

    /// Takes in a message that is plainly well-formed and only announces or only withdraws IPv4 routes. False: it is
    /// another, and nothing has been done.
    fn usual_update(&mut self, number: u16, update: &UpdateMessage) -> bool {
        let Some(peer) = self.peer(number) else { return false };
        let Some(negotiated) = peer.negotiated() else { return false };
        let plain = negotiated.four_octet_as
            && negotiated.add_path_families.is_empty()
            && negotiated.negotiated_families.contains(&Family::V4.wire());
        let UpdateMessage { withdrawn_routes: gone, path_attributes, nlri: announced } = update;
        let announces = gone.is_empty() && !announced.is_empty();
        let withdraws = !gone.is_empty() && announced.is_empty() && path_attributes.is_empty();
        if !plain || !(announces || withdraws) {
            return false;
        }
        let attrs = usual::attributes(path_attributes, peer.external());
        if announces && attrs.is_none() {
            return false;
        }
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        let understood = usual::prefixes(if announces { announced } else { gone }, &mut entries).is_some();
        match attrs {
            _ if !understood => {}
            Some(attrs) => self.admit(number, attrs, &entries, false),
            None => self.remove_all(number, &entries),
        }
        self.entries = entries;
        understood
    }

    /// The message cannot be understood at all: the session ends.
    fn refuse(&mut self, now: Time, number: u16, direction: Direction, error: &DecodeError) {
        let (code, subcode, data) = error.to_notification();
        self.count_refused(number);
        self.note(number, error.to_string());
        let notification = NotificationMessage::new(code, subcode, data);
        self.event(now, number, direction, Event::UpdateValidationError(notification));
    }

    fn apply(&mut self, now: Time, number: u16, parsed: RevisedParsedUpdate, withdraw: bool) {
        let Some(peer) = self.peer_mut(number) else { return };
        let external = peer.external();
        let families = peer.families();
        if withdraw {
            peer.history.malformed += 1;
            debug!(peer = %peer.name, "malformed attributes: the routes count as withdrawn");
        }
        let empty = parsed.update.withdrawn.is_empty() && parsed.update.announced.is_empty();
        let no_attributes = parsed.update.attributes.is_empty();
        let Decoded { mut attrs, next_hop, reach, unreach } =
            codec::decode(parsed.update.attributes, external);

        if empty && no_attributes && families.contains(&Family::V4) {
            return self.end_of_rib(now, number, Family::V4);
        }
        let mut gone: Entries<Ipv4Prefix> =
            parsed.update.withdrawn.iter().map(|entry| (entry.prefix, entry.path_id)).collect();
        let announced: Entries<Ipv4Prefix> =
            parsed.update.announced.iter().map(|entry| (entry.prefix, entry.path_id)).collect();
        let mut gone_v6: Entries<Ipv6Prefix> = Vec::new();
        if let Some(unreach) = unreach {
            let family = Family::from_wire(unreach.afi, unreach.safi);
            if unreach.withdrawn.is_empty()
                && empty
                && reach.is_none()
                && let Some(family) = family.filter(|family| families.contains(family))
            {
                return self.end_of_rib(now, number, family);
            }
            split(&unreach.withdrawn, &mut gone, &mut gone_v6);
        }
        if families.contains(&Family::V6) {
            self.remove_all(number, &gone_v6);
        }
        if families.contains(&Family::V4) {
            self.remove_all(number, &gone);
            attrs.next_hop = next_hop;
            match reach.is_some() {
                true => self.admit(number, attrs.clone(), &announced, withdraw),
                // The usual case.
                false => return self.admit(number, attrs, &announced, withdraw),
            }
        }
        let Some(reach) = reach else { return };
        let Some(family) = Family::from_wire(reach.afi, reach.safi).filter(|f| families.contains(f)) else {
            return;
        };
        // We do not offer next hops of the other family.
        let foreign = Family::of(reach.next_hop) != family;
        attrs.next_hop = Some(reach.next_hop);
        attrs.link_local = reach.link_local_next_hop;
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        split(&reach.announced, &mut v4, &mut v6);
        match family {
            Family::V4 => self.admit(number, attrs, &v4, withdraw || foreign),
            Family::V6 => self.admit(number, attrs, &v6, withdraw || foreign),
        }
    }

    /// Takes routes into the table, or out of it where they may not be used.
    fn admit<P: Prefix>(&mut self, number: u16, attrs: Attrs, entries: &Entries<P>, withdraw: bool)
    where
        Rib: Holds<P>,
    {
        if entries.is_empty() {
            return;
        }
        let Some(peer) = self.peer(number) else { return };
        let judge = Judge {
            external: peer.external(),
            epoch: *peer.epoch.get(P::FAMILY),
            filter: peer.config.import.clone(),
        };
        if withdraw || self.is_loop(number, &attrs) {
            return self.remove_all(number, entries);
        }
        let shared = self.interner.intern(attrs);
        let mut added = 0u32;
        let mut removed = 0u32;
        for (prefix, path_id) in entries {
            let attrs = match judge.filter(&mut self.interner, *prefix, &shared) {
                Some(attrs) => attrs,
                None => {
                    let origins = &self.origins;
                    let origin = |peer| origin_of(origins, peer);
                    let effect = self.rib.table_mut().remove(*prefix, number, *path_id, origin);
                    removed += u32::from(effect == Effect::Removed);
                    continue;
                }
            };
            let path = Path { attrs, path_id: *path_id, peer: number, epoch: judge.epoch };
            let origins = &self.origins;
            let effect = self.rib.table_mut().insert(*prefix, path, |peer| origin_of(origins, peer));
            added += u32::from(effect == Effect::Added);
        }
        if let Some(peer) = self.peer_mut(number) {
            let received = peer.received.get_mut(P::FAMILY);
            *received = (*received + added).saturating_sub(removed);
        }
    }

    fn remove_all<P: Prefix>(&mut self, number: u16, entries: &Entries<P>)
    where
        Rib: Holds<P>,
    {
        let mut removed = 0u32;
        for (prefix, path_id) in entries {
            let origins = &self.origins;
            let origin = |peer| origin_of(origins, peer);
            let effect = self.rib.table_mut().remove(*prefix, number, *path_id, origin);
            removed += u32::from(effect == Effect::Removed);
        }
        if let Some(peer) = self.peer_mut(number) {
            let received = peer.received.get_mut(P::FAMILY);
            *received = received.saturating_sub(removed);
        }
    }

    /// Whether a route has been here before, or leads to ourselves.
    fn is_loop(&self, number: u16, attrs: &Attrs) -> bool {
        let Some(peer) = self.peer(number) else { return true };
        let own = |asn: &&u32| **asn == self.config.asn || **asn == peer.local_as;
        let seen = attrs.as_path.iter().filter(own).count();
        let ours = |address: IpAddr| {
            peer.local_address() == Some(address)
                || self.config.local_v4.map(IpAddr::V4) == Some(address)
                || self.config.local_v6.map(IpAddr::V6) == Some(address)
        };
        seen as u64 > u64::from(peer.config.allow_own_as)
            || attrs.originator == Some(self.config.router_id)
            || attrs.cluster_list.iter().any(|cluster| self.is_own_cluster(*cluster))
            || attrs.next_hop.is_none_or(ours)
    }

    fn is_own_cluster(&self, cluster: Ipv4Addr) -> bool {
        self.peers.iter().flatten().any(|peer| peer.config.reflect == Some(cluster))
    }

    fn check_limit(&mut self, now: Time, number: u16, direction: Direction) {
        let Some(peer) = self.peer(number) else { return };
        let Some(limit) = peer.config.max_prefixes else { return };
        if Family::ALL.into_iter().any(|family| *peer.received.get(family) > limit) {
            self.too_many(now, number, direction);
        }
    }
}

impl Judge {
    fn filter<P: Prefix>(&self, interner: &mut Interner, prefix: P, attrs: &Shared) -> Option<Shared> {
        let peer = if self.external { PeerKind::External } else { PeerKind::Internal };
        let asked = Asked { prefix: prefix.net(), source: Source::Peers, peer };
        match self.filter.run(&asked, attrs) {
            Outcome::Reject => None,
            Outcome::Same => Some(attrs.clone()),
            Outcome::Changed(changed) => Some(interner.intern(changed)),
        }
    }
}

pub(super) enum Verdict {
    Fine,
    Withdraw,
    Reset(NotificationMessage),
}

/// The strongest of what RFC 7606 asks for.
pub(super) fn judge(parsed: &RevisedParsedUpdate) -> Verdict {
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
        return Verdict::Reset(NotificationMessage::new(code, subcode, data));
    }
    // Internal peers may leave NEXT_HOP out by mistake; a route without one is of no use.
    let invalid = validate_update_attributes(&update.attributes, body || reach, body, true).err();
    if let Some(error) = &invalid
        && error.disposition == ErrorDisposition::SessionReset
    {
        let data = Bytes::copy_from_slice(&error.data);
        return Verdict::Reset(NotificationMessage::new(
            NotificationCode::UpdateMessage,
            error.subcode,
            data,
        ));
    }
    let withdraw = worst.is_some_and(|malformed| malformed.disposition == ErrorDisposition::TreatAsWithdraw);
    if withdraw || invalid.is_some() { Verdict::Withdraw } else { Verdict::Fine }
}

fn split(entries: &[NlriEntry], v4: &mut Entries<Ipv4Prefix>, v6: &mut Entries<Ipv6Prefix>) {
    for entry in entries {
        match entry.prefix {
            WirePrefix::V4(prefix) => v4.push((prefix, entry.path_id)),
            WirePrefix::V6(prefix) => v6.push((prefix, entry.path_id)),
        }
    }
}

/// The families in which the peer numbers its paths.
fn several_paths(negotiated: &rustbgpd_fsm::NegotiatedSession) -> Vec<(Afi, Safi)> {
    negotiated
        .add_path_families
        .iter()
        .filter(|(_, mode)| matches!(mode, AddPathMode::Receive | AddPathMode::Both))
        .map(|(family, _)| *family)
        .collect()
}
