//! Renders the chains of one workload, and its permitted sources.

use super::super::ranges;
use super::super::rule::{Action, Family, Field, Match, Rule, Test, interface, state};
use super::super::table::{Chain, Element, join};
use super::{Tiers, names};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv6Addr};
use tortie_plan::{Direction, Limits, WorkloadPolicy};

const TCP: u8 = 6;
const UDP: u8 = 17;
const IPIP: u8 = 4;

/// Returns rules that accept packets of known flows and drop invalid packets.
pub(super) fn tracked(drop_invalid: bool) -> Vec<Rule> {
    let known = Match::connection(state::ESTABLISHED | state::RELATED);
    let mut rules = vec![Rule::new(vec![known], vec![Action::Accept])];
    if drop_invalid {
        let invalid = vec![Match::connection(state::INVALID)];
        rules.push(Rule::new(invalid, vec![Action::Count, Action::Drop]).says("invalid"));
    }
    rules
}

/// Drops new TCP connections that do not begin with a SYN. Connection tracking would also pick up connections in the
/// middle, from either side: a deleted connection would come back with a packet of the server, and packets that policy
/// denies would pass as its replies.
fn begins() -> Rule {
    const SYN: u32 = 2;
    let middle = vec![
        Match::connection(state::NEW),
        Match::is(Field::Protocol, [TCP]),
        Match::new(Field::TcpFlags, Test::Any(SYN)).not(),
    ];
    Rule::new(middle, vec![Action::Count, Action::Drop]).says("not the beginning of a connection")
}

/// Returns the chain that limits the connections of a workload. It is a separate chain because the kernel keeps the
/// count with the rule: the count survives changes of the workload's policy.
pub(crate) fn connections(limits: Limits) -> Option<Chain> {
    let beyond = Action::ConnectionsOver(limits.connections?);
    let tcp = Match::is(Field::Protocol, [TCP]);
    let rule = Rule::new(vec![tcp], vec![beyond, Action::Count, Action::Reset]).says("too many connections");
    Some(Chain { hook: None, rules: vec![rule] })
}

/// Renders the chain of one workload in one direction.
pub(crate) fn chain(
    policy: &WorkloadPolicy,
    limits: Limits,
    direction: Direction,
    tiers: Tiers<'_>,
) -> Chain {
    let settings = tiers.settings;
    if !policy.up {
        let down = Rule::new(Vec::new(), vec![Action::Count, Action::Drop]).says("down");
        return Chain { hook: None, rules: vec![down] };
    }
    let packets = limits.packets.map(|rate| {
        let actions = vec![Action::Over(rate), Action::Count, Action::Drop];
        Rule::new(Vec::new(), actions).says("too many packets")
    });
    let mut rules: Vec<Rule> = packets.into_iter().chain(tracked(settings.drop_invalid)).collect();
    if limits.connections.is_some() {
        let count = Action::Jump(names::connections(&policy.interface, direction));
        rules.push(Rule::new(Vec::new(), vec![count]));
    }
    if settings.cut_denied_flows {
        rules.push(begins());
    }
    if direction == Direction::Egress {
        let guarded = |matches| {
            Rule::new(matches, vec![Action::Count, Action::Drop]).says("workloads may not encapsulate")
        };
        if !settings.vxlan_from_workloads {
            let port = settings.vxlan_port.to_be_bytes();
            let udp = Match::is(Field::Protocol, [UDP]);
            rules.push(guarded(vec![udp, Match::is(Field::DestinationPort, port)]));
        }
        if !settings.ipip_from_workloads {
            rules.push(guarded(vec![Match::is(Field::Protocol, [IPIP])]));
        }
    }
    rules.extend(tiers.with_profiles(&policy.tiers, &policy.profiles, direction));
    Chain { hook: None, rules }
}

/// Returns the permitted sources of a workload as elements of interface and address. Besides its addresses these are
/// the link-local address derived from its MAC, and the unspecified address, for duplicate address detection. Any other
/// link-local address would add an entry to the host's neighbour table.
pub(crate) fn sources(policy: &WorkloadPolicy, mac: Option<[u8; 6]>, family: Family) -> Vec<Element> {
    let name = interface(&policy.interface);
    let link_local = mac.map(tortie_plan::link_local).map(IpAddr::V6);
    let unspecified = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let all = policy.addresses.iter().copied().chain(link_local).chain([unspecified]);
    let own = all.filter(|address| policy.up && Family::of(*address) == family);
    own.map(|address| {
        let bytes = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        Element::key(join(&[&name, &bytes]))
    })
    .collect()
}

pub(crate) fn source_nets(policy: &WorkloadPolicy, family: Family) -> Vec<Element> {
    let name = interface(&policy.interface);
    let nets: &[IpNet] = if policy.up { &policy.allowed_sources } else { &[] };
    let ranges = ranges::of_nets(nets, family).into_iter();
    ranges.map(|(first, last)| Element::range(join(&[&name, &first]), join(&[&name, &last]))).collect()
}
