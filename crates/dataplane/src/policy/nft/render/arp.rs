//! Renders the table of the ARP family: a workload may claim only its own addresses, so that it can neither fill the
//! host's neighbour table nor impersonate another workload.

use super::super::rule::{NftAction, NftField, NftMatch, NftRule};
use super::super::table::{ChainHook, HookPoint, NftChain};
use super::{WorkloadInterfaces, names};
use std::collections::BTreeMap;

const ARP_FILTER_PRIORITY: i32 = 0;

pub fn chains(workloads: &WorkloadInterfaces<'_>) -> BTreeMap<String, NftChain> {
    let check = workloads.rules(NftField::InInterface, "", &[NftAction::Goto("workload-senders".into())]);
    let probe = NftMatch::is(NftField::ArpSender, [0; 4]);
    let drop = vec![NftAction::Count, NftAction::Drop];
    let senders = vec![
        NftRule::new(vec![own_sender(NftField::InInterface)], vec![NftAction::Accept]),
        NftRule::new(vec![probe], vec![NftAction::Accept]).says("asks whether an address is free"),
        NftRule::new(Vec::new(), drop.clone()).says("not an address of the workload"),
    ];
    // The host answers by proxy ARP for every address; without this rule a workload would find its own address already
    // in use.
    let own = vec![own_sender(NftField::OutInterface)];
    let answers = vec![NftRule::new(own, drop).says("the workload's own address")];
    let input = ChainHook::filter(HookPoint::ArpInput, ARP_FILTER_PRIORITY);
    let output = ChainHook::filter(HookPoint::ArpOutput, ARP_FILTER_PRIORITY);
    BTreeMap::from([
        ("input".to_owned(), NftChain { hook: Some(input), rules: check }),
        ("output".to_owned(), NftChain { hook: Some(output), rules: answers }),
        ("workload-senders".to_owned(), NftChain { hook: None, rules: senders }),
    ])
}

/// Matches packets whose sender is an address of the workload at an interface.
fn own_sender(interface: NftField) -> NftMatch {
    NftMatch::lookup([interface, NftField::ArpSender], names::ARP_SENDERS_SET)
}
