//! The metadata service of OpenStack: virtual machines send requests to 169.254.169.254, which are translated to the
//! address of the actual service.
//!
//! As in [`super::nat`], matching and translating are separate chains.

use super::super::ranges;
use super::super::rule::{Action, Family, Field, Match, Rule, Test};
use super::super::table::{Chain, Hook, Point};
use super::Workloads;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr};
use tortie_plan::Metadata;

/// Address that virtual machines use for the service.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const PORT: u16 = 80;
/// Before the chains that translate services.
const PRIORITY: i32 = -110;
const DNAT: &str = "metadata-dnat";
const TCP: u8 = 6;

fn to(address: Ipv4Addr, port: u16) -> Vec<Match> {
    let host = IpNet::from(IpAddr::V4(address));
    vec![
        Match::family(Family::V4),
        Match::new(Field::Destination(Family::V4), Test::Within(ranges::of_nets([&host], Family::V4))),
        Match::is(Field::Protocol, [TCP]),
        Match::is(Field::DestinationPort, port.to_be_bytes()),
    ]
}

/// Renders the translation of workload requests to the configured address and port.
pub(crate) fn chains(metadata: Option<Metadata>, workloads: Workloads<'_>) -> Vec<(String, Chain)> {
    let Some(Metadata { address, port }) = metadata else { return Vec::new() };
    let asked = |from: Match| {
        let matches = std::iter::once(from).chain(to(ADDRESS, PORT)).collect();
        Rule::new(matches, vec![Action::Goto(DNAT.to_owned())])
    };
    let rules = workloads.conditions(Field::InInterface).map(asked).collect();
    let hook = Some(Hook::nat(Point::Prerouting, PRIORITY));
    let translate =
        Rule::new(Vec::new(), vec![Action::Count, Action::TranslateDestination { address, port }]);
    vec![
        ("metadata-in".to_owned(), Chain { hook, rules }),
        (DNAT.to_owned(), Chain { hook: None, rules: vec![translate] }),
    ]
}

/// Accepts requests of workloads to a service on the host itself, whatever their policy.
pub(crate) fn accepted(metadata: Option<Metadata>) -> Option<Rule> {
    let Metadata { address, port } = metadata?;
    Some(Rule::new(to(address, port), vec![Action::Accept]).says("the metadata service"))
}
