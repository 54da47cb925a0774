//! Chains of workloads, and the places where the kernel enters them.

use super::super::ranges;
use super::super::rule::{Action, Family, Field, Match, Rule, Test, interface, state};
use super::super::table::{Chain, Element, Hook, Point, join};
use super::{Tiers, names};
use ipnet::IpNet;
use std::net::IpAddr;
use tortie_plan::{Direction, EndpointToHost, Guard, Settings};

/// Multicast listener queries and reports, router and neighbour solicitations, neighbour advertisements.
const NEIGHBOUR_DISCOVERY: [u8; 6] = [130, 131, 132, 133, 135, 136];
const UDP: u8 = 17;
const IPIP: u8 = 4;

/// Known flows pass, invalid packets do not.
pub(super) fn tracked(drop_invalid: bool) -> Vec<Rule> {
    let known = Match::connection(state::ESTABLISHED | state::RELATED);
    let mut rules = vec![Rule::new(vec![known], vec![Action::Accept])];
    if drop_invalid {
        let invalid = vec![Match::connection(state::INVALID)];
        rules.push(Rule::new(invalid, vec![Action::Count, Action::Drop]).says("invalid"));
    }
    rules
}

/// The chain of one workload in one direction.
pub(crate) fn chain(guard: &Guard, direction: Direction, tiers: Tiers<'_>) -> Chain {
    let settings = tiers.settings;
    if !guard.up {
        let down = Rule::new(Vec::new(), vec![Action::Count, Action::Drop]).says("down");
        return Chain { hook: None, rules: vec![down] };
    }
    let mut rules = tracked(settings.drop_invalid);
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
    rules.extend(tiers.with_profiles(&guard.tiers, &guard.profiles, direction));
    Chain { hook: None, rules }
}

/// The sources a workload may use, as elements: interface and address.
pub(crate) fn sources(guard: &Guard, family: Family) -> Vec<Element> {
    let name = interface(&guard.interface);
    let own = guard.addresses.iter().filter(|address| guard.up && Family::of(**address) == family);
    own.map(|address| {
        let bytes = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        Element::key(join(&[&name, &bytes]))
    })
    .collect()
}

pub(crate) fn source_nets(guard: &Guard, family: Family) -> Vec<Element> {
    let name = interface(&guard.interface);
    let nets: &[IpNet] = if guard.up { &guard.allowed_sources } else { &[] };
    let ranges = ranges::of_nets(nets, family).into_iter();
    ranges.map(|(first, last)| Element::range(join(&[&name, &first]), join(&[&name, &last]))).collect()
}

/// The chains that the kernel enters, as far as workloads are concerned, and those they share. `source_nets` says for
/// which families there is a set of those.
pub(crate) fn fixed(settings: &Settings, source_nets: impl Fn(Family) -> bool) -> Vec<(String, Chain)> {
    let prefixes = |field: Field, action: Action, comment: &str| {
        let comment = comment.to_owned();
        let prefixes = settings.interface_prefixes.iter();
        prefixes
            .map(move |prefix| {
                let counted = matches!(action, Action::Drop).then_some(Action::Count);
                let actions = counted.into_iter().chain([action.clone()]).collect();
                Rule::new(vec![Match::interface_begins(field, prefix)], actions).says(comment.clone())
            })
            .collect::<Vec<Rule>>()
    };
    let dispatch =
        |field, map: &str| Rule::new(Vec::new(), vec![Action::Dispatch { field, map: map.into() }]);
    let entered = |point, priority, rules| Chain { hook: Some(Hook { point, priority }), rules };
    let inner = |rules| Chain { hook: None, rules };
    let discovery = Rule::new(
        vec![
            Match::family(Family::V6),
            Match::is(Field::Protocol, [Family::V6.icmp()]),
            Match::new(Field::IcmpType, Test::Within(ranges::of_bytes(&NEIGHBOUR_DISCOVERY))),
        ],
        vec![Action::Accept],
    )
    .says("neighbour discovery");
    let closed = |comment: &str| Rule::new(Vec::new(), vec![Action::Count, Action::Drop]).says(comment);

    let mut chains = vec![
        (
            "prerouting-raw".to_owned(),
            entered(
                Point::Prerouting,
                -300,
                prefixes(Field::InInterface, Action::Goto("workload-source".into()), ""),
            ),
        ),
        ("workload-source".to_owned(), inner(source_rules(source_nets))),
        (
            "forward-from".to_owned(),
            entered(
                Point::Forward,
                -1,
                [dispatch(Field::InInterface, names::FROM)]
                    .into_iter()
                    .chain(prefixes(Field::InInterface, Action::Drop, "from an unknown workload"))
                    .collect(),
            ),
        ),
        (
            "forward-to".to_owned(),
            entered(
                Point::Forward,
                0,
                [dispatch(Field::OutInterface, names::TO)]
                    .into_iter()
                    .chain(prefixes(Field::OutInterface, Action::Drop, "to an unknown workload"))
                    .collect(),
            ),
        ),
        (
            "input".to_owned(),
            entered(
                Point::Input,
                -1,
                prefixes(Field::InInterface, Action::Goto("workload-to-host".into()), ""),
            ),
        ),
        (
            "workload-to-host".to_owned(),
            inner(vec![
                discovery.clone(),
                dispatch(Field::InInterface, names::FROM),
                closed("from an unknown workload"),
            ]),
        ),
    ];
    if settings.policy.endpoint_to_host == EndpointToHost::Drop {
        let known = Match::connection(state::ESTABLISHED | state::RELATED);
        let closed = closed("the host is closed to workloads");
        let rules = vec![Rule::new(vec![known], vec![Action::Accept]), discovery, closed];
        let enter = prefixes(Field::InInterface, Action::Goto("host-closed".into()), "");
        chains.push(("input-after".to_owned(), entered(Point::Input, 0, enter)));
        chains.push(("host-closed".to_owned(), inner(rules)));
    }
    chains
}

/// Only a workload's own addresses get past these.
fn source_rules(source_nets: impl Fn(Family) -> bool) -> Vec<Rule> {
    let mut rules = Vec::new();
    for family in Family::BOTH {
        let mut sets = vec![names::sources(family)];
        if source_nets(family) {
            sets.push(names::source_nets(family));
        }
        for set in sets {
            let fields = [Field::InInterface, Field::Source(family)];
            rules.push(Rule::new(
                vec![Match::family(family), Match::lookup(fields, set)],
                vec![Action::Accept],
            ));
        }
    }
    // Addresses that only ever mean the link they are used on; the kernel does not forward them.
    let on_link: [IpNet; 2] = [
        IpNet::V6(ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
        IpNet::V6(ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::UNSPECIFIED, 128)),
    ];
    let on_link = Test::Within(ranges::of_nets(&on_link, Family::V6));
    rules.push(Rule::new(
        vec![
            Match::family(Family::V6),
            Match::new(Field::Source(Family::V6), on_link),
            Match::lookup([Field::InInterface], names::WORKLOADS),
        ],
        vec![Action::Accept],
    ));
    let spoofed = Rule::new(Vec::new(), vec![Action::Count, Action::Drop]);
    rules.push(spoofed.says("not a source of the workload"));
    rules
}
