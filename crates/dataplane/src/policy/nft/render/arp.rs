//! Renders the table of the ARP family: a workload may claim only its own addresses, so that it can neither fill the
//! host's neighbour table nor impersonate another workload.

use super::super::rule::{NftAction, NftField, NftMatch, NftRule};
use super::super::table::{ChainHook, HookPoint, NftChain};
use super::{WorkloadInterfaces, names};
use std::collections::BTreeMap;

const ARP_FILTER_PRIORITY: i32 = 0;

pub fn chains(workloads: &WorkloadInterfaces<'_>) -> BTreeMap<String, NftChain> {
    let check = workloads.rules(NftField::InInterface, "", &[NftAction::Goto("workload-senders".into())]);
    let own = |interface| NftMatch::lookup([interface, NftField::ArpSender], names::ARP_SENDERS_SET);
    let probe = NftMatch::is(NftField::ArpSender, [0; 4]);
    let drop = vec![NftAction::Count, NftAction::Drop];
    let senders = vec![
        NftRule::new(vec![own(NftField::InInterface)], vec![NftAction::Accept]),
        NftRule::new(vec![probe], vec![NftAction::Accept]).says("asks whether an address is free"),
        NftRule::new(Vec::new(), drop.clone()).says("not an address of the workload"),
    ];
    // The host answers by proxy ARP for every address; without this rule a workload would find its own address already
    // in use.
    let answers =
        vec![NftRule::new(vec![own(NftField::OutInterface)], drop).says("the workload's own address")];
    let hook = |point| Some(ChainHook::filter(point, ARP_FILTER_PRIORITY));
    BTreeMap::from([
        ("input".to_owned(), NftChain { hook: hook(HookPoint::ArpInput), rules: check }),
        ("output".to_owned(), NftChain { hook: hook(HookPoint::ArpOutput), rules: answers }),
        ("workload-senders".to_owned(), NftChain { hook: None, rules: senders }),
    ])
}
