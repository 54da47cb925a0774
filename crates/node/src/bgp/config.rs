//! Translates the BGP part of the plan to the configuration of the speaker.

use super::secrets::PasswordReader;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use tortie_bgp::filter::{
    AttrsChange, FilterPrefixOperator, FilterRouteSource, FilterVerdict, PeerType, PrefixSetMatch,
    RouteFilter, RouteFilterRule, RouteMatch,
};
use tortie_bgp::{PeerConfig, PrefixSet, SpeakerConfig};
use tortie_plan::bgp::{
    self as plan, BgpConfig, BgpExport, BgpFilterRule, BgpSession, FilterOperation, LOCAL_PREF_OF_METRIC_0,
};

/// Preference of a learnt route that takes precedence over a normal local route.
const PREFERRED_ROUTE_PREFERENCE: u16 = 200;

/// Maximum restart time of the graceful restart capability: 12 bits (RFC 4724, section 3).
const MAX_RESTART_SECONDS: u16 = 4095;

pub struct TranslatedConfig {
    pub config: SpeakerConfig,
    /// Sessions that cannot be configured, with the reason. All others are in the configuration.
    pub skipped: Vec<String>,
}

/// Limits on what one peer may announce.
#[derive(Clone, Copy, Debug)]
pub struct PeerLimits {
    /// Maximum number of routes of one family.
    pub prefixes: u32,
    /// Maximum number of paths to one prefix.
    pub paths: u16,
}

/// Translates the plan. Returns None if the node has no router ID.
pub fn build_speaker_config(
    bgp: &BgpConfig,
    limits: PeerLimits,
    secrets: &PasswordReader,
) -> Option<TranslatedConfig> {
    let mut config = SpeakerConfig::new(bgp.as_number, bgp.router_id?);
    config.listen = match bgp.listen.as_slice() {
        [] => vec![
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, bgp.listen_port)),
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, bgp.listen_port)),
        ],
        addresses => addresses.iter().map(|address| SocketAddr::from((*address, bgp.listen_port))).collect(),
    };
    let mut skipped = Vec::new();
    for (name, session) in &bgp.sessions {
        let mut peer = PeerConfig {
            max_prefixes: Some(limits.prefixes),
            max_paths_per_prefix: limits.paths,
            ..build_peer(bgp, session)
        };
        match session.password.as_ref().map(|secret| secrets.read(secret)).transpose() {
            Ok(password) => peer.password = password,
            // Without its password the session is listed, but stays down.
            Err(missing) => {
                skipped.push(format!("session {name} is down: {missing}"));
                peer.shutdown = Some(missing.to_string());
            }
        }
        match peer.check(name) {
            Ok(()) => _ = config.peers.insert(name.clone(), peer),
            Err(error) => skipped.push(format!("session {name} is left out: {error}")),
        }
    }
    Some(TranslatedConfig { config, skipped })
}

fn build_peer(bgp: &BgpConfig, session: &BgpSession) -> PeerConfig {
    let default = PeerConfig::new(session.peer, session.remote_as);
    let internal = session.local_as.unwrap_or(bgp.as_number) == session.remote_as;
    let v4 = session.peer.is_ipv4();
    PeerConfig {
        port: session.port,
        local_as: session.local_as,
        passive: session.passive,
        source: session.source,
        keepalive: session.keepalive,
        restart_time: session.restart_time.map(|time| time.min(MAX_RESTART_SECONDS)).or(default.restart_time),
        ttl_security: session.ttl_security,
        next_hop: session.next_hop,
        reflect: session.reflect,
        allow_own_as: session.allow_own_as,
        import: Arc::new(import(bgp, session, v4)),
        export: Arc::new(export(bgp, session, v4, internal)),
        add_path: true,
        ..default
    }
}

/// Returns the import filter: everything is accepted unless a filter of the session rejects it. A route with a higher
/// local preference than the normal routes of this node gets precedence over them.
fn import(bgp: &BgpConfig, session: &BgpSession, v4: bool) -> RouteFilter {
    let mut rules =
        build_filters(bgp, session, |filter| if v4 { &filter.import_v4 } else { &filter.import_v6 });
    rules.push(RouteFilterRule {
        when: RouteMatch {
            local_pref: Some(match_better_preference(&bgp.export, v4)),
            ..RouteMatch::default()
        },
        then: vec![AttrsChange::SetPreference(PREFERRED_ROUTE_PREFERENCE)],
        verdict: None,
    });
    RouteFilter { rules, default: FilterVerdict::Accept }
}

/// Returns the export filter. The rules are in Calico's order, in which an accepting filter of the session takes
/// precedence over everything else.
fn export(bgp: &BgpConfig, session: &BgpSession, v4: bool, internal: bool) -> RouteFilter {
    let export = &bgp.export;
    let mut rules =
        build_filters(bgp, session, |filter| if v4 { &filter.export_v4 } else { &filter.export_v6 });
    rules.push(decide(build_prefix_match(&export.silent_pools), FilterVerdict::Reject));
    if internal {
        rules.extend(
            ["*.cali", "*.calico", "tunl0"]
                .map(|pattern| decide(build_device_match(pattern), FilterVerdict::Reject)),
        );
    }
    rules.push(decide(build_device_match("bpf*.cali"), FilterVerdict::Reject));
    rules.extend(export.communities.iter().map(|(net, values)| RouteFilterRule {
        when: build_prefix_match(std::slice::from_ref(net)),
        then: values.iter().map(|value| AttrsChange::AddCommunity(*value)).collect(),
        verdict: None,
    }));
    let blocks: Vec<_> =
        export.blocks.iter().filter(|(_, advertised)| **advertised).map(|(block, _)| *block).collect();
    rules.push(decide(build_prefixes(FilterPrefixOperator::Equal, &blocks), FilterVerdict::Accept));
    let migrating =
        RouteMatch { local_pref: Some(match_better_preference(export, v4)), ..build_prefix_match(&blocks) };
    rules.push(decide(migrating, FilterVerdict::Accept));
    rules.push(decide(build_prefix_match(&blocks), FilterVerdict::Reject));
    // Matched by a flag instead of a prefix list, so that a moved service endpoint does not re-evaluate every route.
    rules.push(decide(RouteMatch { service: true, ..RouteMatch::default() }, FilterVerdict::Accept));
    rules.push(decide(build_prefix_match(&export.reflected), FilterVerdict::Accept));
    let of_others =
        RouteMatch { source: Some(FilterRouteSource::Peers), ..build_prefix_match(&export.services) };
    let verdict =
        if session.takes_over(bgp.as_number) { FilterVerdict::Reject } else { FilterVerdict::Accept };
    rules.push(decide(of_others, verdict));
    rules.push(decide(build_prefix_match(&export.pools), FilterVerdict::Accept));
    RouteFilter { rules, default: FilterVerdict::Reject }
}

fn match_better_preference(export: &BgpExport, v4: bool) -> std::ops::RangeInclusive<u32> {
    let normal = if v4 { export.priority_v4 } else { export.priority_v6 };
    local_pref(normal) + 1..=u32::MAX
}

fn decide(when: RouteMatch, verdict: FilterVerdict) -> RouteFilterRule {
    RouteFilterRule { when, then: Vec::new(), verdict: Some(verdict) }
}

fn build_device_match(pattern: &str) -> RouteMatch {
    RouteMatch { device: Some(pattern.to_owned()), ..RouteMatch::default() }
}

fn build_prefix_match(nets: &[ipnet::IpNet]) -> RouteMatch {
    build_prefixes(FilterPrefixOperator::In, nets)
}

fn build_prefixes(operator: FilterPrefixOperator, nets: &[ipnet::IpNet]) -> RouteMatch {
    let set: PrefixSet = nets.iter().copied().collect();
    RouteMatch { prefix: Some(PrefixSetMatch { operator, set, length: None }), ..RouteMatch::default() }
}

/// Returns the rules of a session's filters in order. Filters that do not exist are ignored.
fn build_filters(
    bgp: &BgpConfig,
    session: &BgpSession,
    part: impl Fn(&plan::BgpFilter) -> &Vec<BgpFilterRule>,
) -> Vec<RouteFilterRule> {
    let known = session.filters.iter().filter_map(|name| bgp.filters.get(name));
    known.flat_map(|filter| part(filter).iter().map(translate_rule).collect::<Vec<_>>()).collect()
}

/// Converts a priority of Calico, which is a route metric, to a local preference.
fn local_pref(priority: u32) -> u32 {
    LOCAL_PREF_OF_METRIC_0.saturating_sub(priority)
}

fn translate_rule(rule: &BgpFilterRule) -> RouteFilterRule {
    let prefix = rule.prefix.map(|prefix| PrefixSetMatch {
        operator: prefix.operator,
        set: [prefix.net].into_iter().collect(),
        length: prefix.length.map(|(first, last)| first..=last),
    });
    RouteFilterRule {
        when: RouteMatch {
            prefix,
            source: rule.learnt.then_some(FilterRouteSource::Peers),
            device: rule.interface.clone(),
            service: false,
            peer: rule
                .internal
                .map(|internal| if internal { PeerType::Internal } else { PeerType::External }),
            community: rule.community,
            as_path_prefix: rule.as_path_prefix.clone(),
            local_pref: rule.priority.map(local_pref).map(|local_pref| local_pref..=local_pref),
        },
        then: rule
            .operations
            .iter()
            .map(|operation| match operation {
                FilterOperation::AddCommunity(community) => AttrsChange::AddCommunity(*community),
                FilterOperation::PrependPath(path) => AttrsChange::PrependPath(path.clone()),
                FilterOperation::SetPriority(wanted) => AttrsChange::SetLocalPref(local_pref(*wanted)),
            })
            .collect(),
        verdict: Some(if rule.accept { FilterVerdict::Accept } else { FilterVerdict::Reject }),
    }
}
