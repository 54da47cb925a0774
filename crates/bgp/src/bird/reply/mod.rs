//! Parses the replies of BIRD into the status types of our own speaker.

use super::control::ControlError;
use super::render::TIME_FORMAT;
use crate::core::{BgpPeerState, PeerStatus, RouteStatus, SpeakerStatus};
use crate::family::{BgpFamily, PerFamily};
use crate::rib::attrs::RouteAttrs;
use ipnet::IpNet;
use rustbgpd_wire::LargeCommunity;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const CODE_PROTOCOL: u16 = 1002;
const CODE_PROTOCOL_DETAILS: u16 = 1006;
const CODE_ROUTE: u16 = 1007;
const CODE_ROUTE_ATTRIBUTES: u16 = 1012;
const CODE_STATUS: u16 = 1011;
const CODE_RESTART_RECOVERY: u16 = 24;

/// One line of a reply. The code identifies its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplyLine {
    pub code: u16,
    pub text: String,
}

impl ReplyLine {
    /// Parses a line. A line without a code continues the previous line and has its code. Also returns whether it is
    /// the last line of the reply.
    pub fn parse(text: &str, before: u16) -> Result<(ReplyLine, bool), ControlError> {
        if let Some(rest) = text.strip_prefix(' ') {
            return Ok((ReplyLine { code: before, text: rest.to_owned() }, false));
        }
        let code = text.get(..4).and_then(|code| code.parse().ok());
        match (code, text.get(4..5), text.get(5..)) {
            (Some(code), Some(mark @ ("-" | " ")), Some(rest)) => {
                Ok((ReplyLine { code, text: rest.to_owned() }, mark == " "))
            }
            _ => Err(ControlError::Unreadable(format!("{text:?} does not begin with a number"))),
        }
    }
}

/// The status of the daemon itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BirdDaemonStatus {
    pub router_id: Ipv4Addr,
    pub started: SystemTime,
    pub now: SystemTime,
    pub restarting: bool,
}

/// Parses `show status`. Times can be parsed only after BIRD has loaded our configuration; until then it uses its own
/// format.
pub(super) fn daemon(lines: &[ReplyLine]) -> Result<BirdDaemonStatus, ControlError> {
    let find = |beginning: &str| {
        let mut texts = lines.iter().filter(|line| line.code == CODE_STATUS).map(|line| line.text.as_str());
        texts.find_map(|text| text.trim_start().strip_prefix(beginning))
    };
    let router_id = find("Router ID is ").and_then(|text| text.trim().parse().ok());
    let now = find("Current server time is ").and_then(time).unwrap_or_else(SystemTime::now);
    Ok(BirdDaemonStatus {
        router_id: router_id
            .ok_or_else(|| ControlError::Unreadable("it does not say its router ID".to_owned()))?,
        started: find("Last reboot on ").and_then(time).unwrap_or(now),
        now,
        restarting: lines.iter().any(|line| line.code == CODE_RESTART_RECOVERY),
    })
}

fn time(text: &str) -> Option<SystemTime> {
    Some(jiff::Timestamp::strptime(TIME_FORMAT, text.trim()).ok()?.into())
}

fn between(earlier: SystemTime, later: SystemTime) -> Duration {
    later.duration_since(earlier).unwrap_or_default()
}

/// Parses the sessions from `show protocols all`.
pub(super) fn status(
    asn: u32,
    daemon: &BirdDaemonStatus,
    lines: &[ReplyLine],
) -> Result<SpeakerStatus, ControlError> {
    let mut routes = PerFamily::<usize>::default();
    let mut peers: Vec<PeerStatus> = Vec::new();
    // The family that the current lines describe, and whether their protocol is a BGP session.
    let mut family = BgpFamily::V4;
    let mut is_session = false;
    for line in lines {
        if line.code == CODE_PROTOCOL {
            let mut columns = line.text.split_whitespace();
            let name = columns.next().unwrap_or_default();
            is_session = columns.next() == Some("BGP");
            if is_session {
                let since = columns.nth(2).and_then(time).unwrap_or(daemon.now);
                peers.push(PeerStatus::down(name, between(daemon.started, since)));
            }
        }
        let Some((key, value)) = line.text.split_once(':').filter(|_| line.code == CODE_PROTOCOL_DETAILS)
        else {
            match line.text.trim() {
                "Channel ipv4" => family = BgpFamily::V4,
                "Channel ipv6" => family = BgpFamily::V6,
                _ => {}
            }
            continue;
        };
        let key = key.trim();
        let value = value.trim();
        if key == "Routes" {
            *routes.get_mut(family) += usize::try_from(parse_count(value, "preferred")).unwrap_or(usize::MAX);
        }
        if let Some(peer) = peers.last_mut().filter(|_| is_session) {
            apply_detail(peer, family, key, value);
        }
    }
    for peer in &peers {
        if peer.address.is_unspecified() {
            return Err(ControlError::Unreadable(format!("it does not say whom {} is with", peer.name)));
        }
    }
    Ok(SpeakerStatus {
        now: between(daemon.started, daemon.now),
        asn,
        router_id: daemon.router_id,
        restarting: daemon.restarting,
        routes,
        attributes: 0,
        peers,
    })
}

fn apply_detail(peer: &mut PeerStatus, family: BgpFamily, key: &str, value: &str) {
    let first = || value.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
    match key {
        "BGP state" => {
            peer.state = match value {
                "Connect" => BgpPeerState::Connect,
                "Active" | "Passive" => BgpPeerState::Active,
                "OpenSent" => BgpPeerState::OpenSent,
                "OpenConfirm" => BgpPeerState::OpenConfirm,
                "Established" => BgpPeerState::Established,
                _ => BgpPeerState::Idle,
            };
            // BIRD does not count how often a session came up; an established one came up at least once.
            peer.established = u64::from(peer.state == BgpPeerState::Established);
        }
        "Neighbor address" => {
            // A link-local address is followed by its interface.
            let address = value.split('%').next().unwrap_or_default();
            peer.address = address.parse().unwrap_or(peer.address);
            peer.families = vec![BgpFamily::of(peer.address)];
        }
        "Neighbor AS" => peer.remote_as = value.parse().unwrap_or(0),
        "Local AS" => peer.external = value.parse() != Ok(peer.remote_as),
        "Neighbor ID" => peer.router_id = value.parse().ok(),
        "Neighbor graceful restart active" => peer.waiting = true,
        "Hold timer" => peer.hold_time = value.split('/').nth(1).and_then(|text| text.parse().ok()),
        "Last error" => peer.last_error = Some(value.to_owned()),
        "Routes" => {
            *peer.prefixes_in.get_mut(family) = parse_count(value, "imported");
            *peer.prefixes_out.get_mut(family) = parse_count(value, "exported");
        }
        "Import updates" => peer.updates_in = first().unwrap_or(0),
        "Export updates" => peer.updates_out = first().unwrap_or(0),
        _ => {}
    }
}

/// Returns the number before a word in `5 imported, 2 exported, 5 preferred`.
fn parse_count(text: &str, word: &str) -> u32 {
    let mut parts = text.split(',').filter_map(|part| part.trim().split_once(' '));
    parts.find(|(_, name)| *name == word).and_then(|(count, _)| count.parse().ok()).unwrap_or(0)
}

/// Parses all paths from `show route all`.
pub(super) fn routes(lines: &[ReplyLine]) -> Result<Vec<RouteStatus>, ControlError> {
    let mut routes: Vec<(RouteStatus, RouteAttrs)> = Vec::new();
    let mut prefix: Option<IpNet> = None;
    for line in lines {
        let text = line.text.trim();
        match line.code {
            CODE_ROUTE if text.contains('[') => {
                // A further path to the same prefix starts with the kind of route.
                prefix = text.split_whitespace().next().and_then(|word| word.parse().ok()).or(prefix);
                let Some(prefix) = prefix else {
                    return Err(ControlError::Unreadable(format!("{text:?} names no prefix")));
                };
                let (kind, rest) = text.split_once('[').unwrap_or((text, ""));
                let name = rest.split_whitespace().next().unwrap_or_default();
                let best = text.contains("] * ");
                let attrs = RouteAttrs { preference: preference(text), ..RouteAttrs::default() };
                routes.push((
                    RouteStatus {
                        prefix,
                        peer: is_session(name).then(|| name.into()),
                        best,
                        used: best,
                        stale: false,
                        reachable: !kind.contains("unreachable"),
                        attrs: Arc::default(),
                    },
                    attrs,
                ));
            }
            CODE_ROUTE => {
                if let Some((_, attrs)) = routes.last_mut() {
                    way(attrs, text);
                }
            }
            CODE_ROUTE_ATTRIBUTES => {
                if let (Some((_, attrs)), Some((key, value))) = (routes.last_mut(), text.split_once(": ")) {
                    apply_attribute(attrs, key, value.trim());
                }
            }
            _ => {}
        }
    }
    Ok(routes.into_iter().map(|(route, attrs)| RouteStatus { attrs: attrs.into(), ..route }).collect())
}

fn is_session(name: &str) -> bool {
    ["Mesh_", "Global_", "Node_"].iter().any(|beginning| name.starts_with(beginning))
}

/// Parses the first number in `(100/0)` at the end of a route.
fn preference(text: &str) -> u16 {
    let inner = text.rsplit_once('(').map(|(_, rest)| rest);
    let digits = inner.and_then(|rest| rest.split(['/', ')']).next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Parses `via 10.0.0.1 on eth0` or `dev eth0`; the first of several applies.
fn way(attrs: &mut RouteAttrs, text: &str) {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["via", gateway, "on", device, ..] if attrs.device.is_none() => {
            attrs.next_hop = gateway.parse().ok();
            attrs.device = Some(device.into());
        }
        ["dev", device, ..] if attrs.device.is_none() => attrs.device = Some(device.into()),
        _ => {}
    }
}

/// Returns the numbers in a text, whatever separates them.
fn parse_numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

fn apply_attribute(attrs: &mut RouteAttrs, key: &str, value: &str) {
    let groups = || value.split(')').map(parse_numbers);
    match key {
        "BGP.as_path" => attrs.as_path = parse_numbers(value).into(),
        "BGP.next_hop" => {
            let global = value.split_whitespace().next().and_then(|text| text.parse().ok());
            attrs.next_hop = global.or(attrs.next_hop);
        }
        "BGP.med" => attrs.med = value.parse().ok(),
        "BGP.local_pref" => attrs.local_pref = value.parse().ok(),
        "BGP.community" => {
            attrs.communities = groups().filter_map(|group| standard(&group)).collect();
        }
        "BGP.large_community" => {
            attrs.large_communities = groups().filter_map(|group| large(&group)).collect();
        }
        _ => {}
    }
}

fn standard(group: &[u32]) -> Option<u32> {
    let [high, low] = group else { return None };
    Some(u32::from(u16::try_from(*high).ok()?) << 16 | u32::from(u16::try_from(*low).ok()?))
}

fn large(group: &[u32]) -> Option<LargeCommunity> {
    let [first, second, third] = group else { return None };
    Some(LargeCommunity::new(*first, *second, *third))
}

#[cfg(test)]
mod tests;
