//! The metadata service of OpenStack: its machines ask 169.254.169.254, and the host answers, or knows who does.
//!
//! As in [`super::nat`], which packets are concerned and what is done to them are different chains.

use super::super::ranges;
use super::super::rule::{Action, Family, Field, Match, Rule, Test};
use super::super::table::{Chain, Hook, Point};
use super::Workloads;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr};
use tortie_plan::Metadata;

/// Where machines look for it.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const PORT: u16 = 80;
/// Before those who translate services.
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

/// What workloads ask of it is sent where it is.
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

/// Where the host itself answers, no policy of the workload keeps it from asking.
pub(crate) fn accepted(metadata: Option<Metadata>) -> Option<Rule> {
    let Metadata { address, port } = metadata?;
    Some(Rule::new(to(address, port), vec![Action::Accept]).says("the metadata service"))
}
