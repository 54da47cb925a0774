//! Translates the BGP part of the plan to the configuration of the speaker.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use tortie_bgp::filter::{
    Change, Filter, Match, PeerType, PrefixMatch, PrefixOperator, Rule, Source, Verdict,
};
use tortie_bgp::{Config, PeerConfig, PrefixSet};
use tortie_plan::bgp::{self as plan, Bgp, Export, FilterRule, LOCAL_PREF_OF_METRIC_0, Operation, Session};

/// Preference of a learnt route that takes precedence over a normal local route.
const PREFERRED: u16 = 200;

/// Maximum restart time of the graceful restart capability: 12 bits (RFC 4724, section 3).
const LONGEST_RESTART: u16 = 4095;

pub struct Translated {
    pub config: Config,
    /// Sessions that cannot be configured, with the reason. All others are in the configuration.
    pub skipped: Vec<String>,
}

/// Limits on what one peer may announce.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of routes of one family.
    pub prefixes: u32,
    /// Maximum number of paths to one prefix.
    pub paths: u16,
}

/// Translates the plan. `password` reads a secret. Returns None if the node has no router ID.
pub fn speaker(
    bgp: &Bgp,
    limits: Limits,
    password: impl Fn(&plan::Secret) -> Result<String, String>,
) -> Option<Translated> {
    let mut config = Config::new(bgp.as_number, bgp.router_id?);
    config.listen = match bgp.listen.as_slice() {
        [] => vec![
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, bgp.listen_port)),
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, bgp.listen_port)),
        ],
        addresses => addresses.iter().map(|address| SocketAddr::from((*address, bgp.listen_port))).collect(),
    };
    let mut skipped = Vec::new();
    for (name, session) in &bgp.sessions {
        let (password, missing) = match session.password.as_ref().map(&password) {
            None => (None, None),
            Some(Ok(password)) => (Some(password), None),
            // Without its password the session is listed, but stays down.
            Some(Err(missing)) => (None, Some(missing)),
        };
        skipped.extend(missing.as_ref().map(|missing| format!("session {name} is down: {missing}")));
        let peer = PeerConfig {
            shutdown: missing,
            max_prefixes: Some(limits.prefixes),
            max_paths_per_prefix: limits.paths,
            ..peer(bgp, session, password)
        };
        match peer.check(name) {
            Ok(()) => _ = config.peers.insert(name.clone(), peer),
            Err(error) => skipped.push(format!("session {name} is left out: {error}")),
        }
    }
    Some(Translated { config, skipped })
}

fn peer(bgp: &Bgp, session: &Session, password: Option<String>) -> PeerConfig {
    let default = PeerConfig::new(session.peer, session.remote_as);
    let internal = session.local_as.unwrap_or(bgp.as_number) == session.remote_as;
    let v4 = session.peer.is_ipv4();
    PeerConfig {
        port: session.port,
        local_as: session.local_as,
        passive: session.passive,
        source: session.source,
        password,
        keepalive: session.keepalive,
        restart_time: session.restart_time.map(|time| time.min(LONGEST_RESTART)).or(default.restart_time),
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
/// local preference than a normal route of ours gets precedence over it.
fn import(bgp: &Bgp, session: &Session, v4: bool) -> Filter {
    let mut rules = filters(bgp, session, |filter| if v4 { &filter.import_v4 } else { &filter.import_v6 });
    rules.push(Rule {
        when: Match { local_pref: Some(better_than_normal(&bgp.export, v4)), ..Match::default() },
        then: vec![Change::SetPreference(PREFERRED)],
        verdict: None,
    });
    Filter { rules, default: Verdict::Accept }
}

/// Returns the export filter. The rules are in Calico's order, in which an accepting filter of the session takes
/// precedence over everything else.
fn export(bgp: &Bgp, session: &Session, v4: bool, internal: bool) -> Filter {
    let export = &bgp.export;
    let mut rules = filters(bgp, session, |filter| if v4 { &filter.export_v4 } else { &filter.export_v6 });
    let decide = |when: Match, verdict: Verdict| Rule { when, then: Vec::new(), verdict: Some(verdict) };
    let device = |pattern: &str| Match { device: Some(pattern.to_owned()), ..Match::default() };
    rules.push(decide(inside(&export.silent_pools), Verdict::Reject));
    if internal {
        rules.extend(["*.cali", "*.calico", "tunl0"].map(|pattern| decide(device(pattern), Verdict::Reject)));
    }
    rules.push(decide(device("bpf*.cali"), Verdict::Reject));
    rules.extend(export.communities.iter().map(|(net, values)| Rule {
        when: inside(std::slice::from_ref(net)),
        then: values.iter().map(|value| Change::AddCommunity(*value)).collect(),
        verdict: None,
    }));
    let blocks: Vec<_> =
        export.blocks.iter().filter(|(_, advertised)| **advertised).map(|(block, _)| *block).collect();
    rules.push(decide(prefixes(PrefixOperator::Equal, &blocks), Verdict::Accept));
    let migrating = Match { local_pref: Some(better_than_normal(export, v4)), ..inside(&blocks) };
    rules.push(decide(migrating, Verdict::Accept));
    rules.push(decide(inside(&blocks), Verdict::Reject));
    // Matched by a flag instead of a prefix list, so that a moved service endpoint does not re-evaluate every route.
    rules.push(decide(Match { service: true, ..Match::default() }, Verdict::Accept));
    rules.push(decide(inside(&export.reflected), Verdict::Accept));
    let of_others = Match { source: Some(Source::Peers), ..inside(&export.services) };
    let verdict = if session.takes_over(bgp.as_number) { Verdict::Reject } else { Verdict::Accept };
    rules.push(decide(of_others, verdict));
    rules.push(decide(inside(&export.pools), Verdict::Accept));
    Filter { rules, default: Verdict::Reject }
}

fn better_than_normal(export: &Export, v4: bool) -> std::ops::RangeInclusive<u32> {
    let normal = if v4 { export.priority_v4 } else { export.priority_v6 };
    LOCAL_PREF_OF_METRIC_0.saturating_sub(normal) + 1..=u32::MAX
}

fn inside(nets: &[ipnet::IpNet]) -> Match {
    prefixes(PrefixOperator::In, nets)
}

fn prefixes(operator: PrefixOperator, nets: &[ipnet::IpNet]) -> Match {
    let set: PrefixSet = nets.iter().copied().collect();
    Match { prefix: Some(PrefixMatch { operator, set, length: None }), ..Match::default() }
}

/// Returns the rules of a session's filters in order. Filters that do not exist are ignored.
fn filters(bgp: &Bgp, session: &Session, part: impl Fn(&plan::Filter) -> &Vec<FilterRule>) -> Vec<Rule> {
    let known = session.filters.iter().filter_map(|name| bgp.filters.get(name));
    known.flat_map(|filter| part(filter).iter().map(rule).collect::<Vec<_>>()).collect()
}

fn rule(rule: &FilterRule) -> Rule {
    let prefix = rule.prefix.map(|prefix| PrefixMatch {
        operator: prefix.operator,
        set: [prefix.net].into_iter().collect(),
        length: prefix.length.map(|(first, last)| first..=last),
    });
    let priority = |priority: u32| LOCAL_PREF_OF_METRIC_0.saturating_sub(priority);
    Rule {
        when: Match {
            prefix,
            source: rule.learnt.then_some(Source::Peers),
            device: rule.interface.clone(),
            service: false,
            peer: rule
                .internal
                .map(|internal| if internal { PeerType::Internal } else { PeerType::External }),
            community: rule.community,
            as_path_prefix: rule.as_path_prefix.clone(),
            local_pref: rule.priority.map(|wanted| priority(wanted)..=priority(wanted)),
        },
        then: rule
            .operations
            .iter()
            .map(|operation| match operation {
                Operation::AddCommunity(community) => Change::AddCommunity(*community),
                Operation::PrependPath(path) => Change::PrependPath(path.clone()),
                Operation::SetPriority(wanted) => Change::SetLocalPref(priority(*wanted)),
            })
            .collect(),
        verdict: Some(if rule.accept { Verdict::Accept } else { Verdict::Reject }),
    }
}
