//! The metadata service of OpenStack: virtual machines send requests to 169.254.169.254, which are translated to the
//! address of the actual service.
//!
//! As in [`super::nat`], matching and translating are separate chains.

use super::super::ranges;
use super::super::rule::{NftAction, NftFamily, NftField, NftMatch, NftRule, NftTest};
use super::super::table::{ChainHook, HookPoint, NftChain};
use super::WorkloadInterfaces;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr};
use tortie_plan::MetadataService;

/// Address that virtual machines use for the service.
const METADATA_ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const METADATA_PORT: u16 = 80;
/// Before the chains that translate services.
const METADATA_DNAT_PRIORITY: i32 = -110;
const METADATA_DNAT_CHAIN: &str = "metadata-dnat";
const TCP: u8 = 6;

fn to(address: Ipv4Addr, port: u16) -> Vec<NftMatch> {
    let host = IpNet::from(IpAddr::V4(address));
    vec![
        NftMatch::family(NftFamily::V4),
        NftMatch::new(
            NftField::Destination(NftFamily::V4),
            NftTest::Within(ranges::from_nets([&host], NftFamily::V4)),
        ),
        NftMatch::is(NftField::Protocol, [TCP]),
        NftMatch::is(NftField::DestinationPort, port.to_be_bytes()),
    ]
}

/// Renders the translation of workload requests to the configured address and port.
pub fn chains(
    metadata: Option<MetadataService>,
    workloads: WorkloadInterfaces<'_>,
) -> Vec<(String, NftChain)> {
    let Some(MetadataService { address, port }) = metadata else { return Vec::new() };
    let mut rules = Vec::new();
    for from in workloads.conditions(NftField::InInterface) {
        let matches = [vec![from], to(METADATA_ADDRESS, METADATA_PORT)].concat();
        rules.push(NftRule::new(matches, vec![NftAction::Goto(METADATA_DNAT_CHAIN.to_owned())]));
    }
    let hook = Some(ChainHook::nat(HookPoint::Prerouting, METADATA_DNAT_PRIORITY));
    let translate =
        NftRule::new(Vec::new(), vec![NftAction::Count, NftAction::TranslateDestination { address, port }]);
    vec![
        ("metadata-in".to_owned(), NftChain { hook, rules }),
        (METADATA_DNAT_CHAIN.to_owned(), NftChain { hook: None, rules: vec![translate] }),
    ]
}

/// Accepts requests of workloads to a service on the host itself, whatever their policy.
pub fn accepted(metadata: Option<MetadataService>) -> Option<NftRule> {
    let MetadataService { address, port } = metadata?;
    Some(NftRule::new(to(address, port), vec![NftAction::Accept]).says("the metadata service"))
}
