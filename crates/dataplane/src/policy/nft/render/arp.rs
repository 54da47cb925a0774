//! Renders the table of the ARP family: a workload may claim only its own addresses, so that it can neither fill the
//! host's neighbour table nor impersonate another workload.

use super::super::rule::{Action, Field, Match, Rule};
use super::super::table::{Chain, Hook, Point};
use super::{Workloads, names};
use std::collections::BTreeMap;

const PRIORITY: i32 = 0;

pub(crate) fn chains(workloads: &Workloads<'_>) -> BTreeMap<String, Chain> {
    let check = workloads.rules(Field::InInterface, "", &[Action::Goto("workload-senders".into())]);
    let own = |interface| Match::lookup([interface, Field::ArpSender], names::SENDERS);
    let probe = Match::is(Field::ArpSender, [0; 4]);
    let drop = vec![Action::Count, Action::Drop];
    let senders = vec![
        Rule::new(vec![own(Field::InInterface)], vec![Action::Accept]),
        Rule::new(vec![probe], vec![Action::Accept]).says("asks whether an address is free"),
        Rule::new(Vec::new(), drop.clone()).says("not an address of the workload"),
    ];
    // The host answers by proxy ARP for every address; without this rule a workload would find its own address already
    // in use.
    let answers = vec![Rule::new(vec![own(Field::OutInterface)], drop).says("the workload's own address")];
    let hook = |point| Some(Hook::filter(point, PRIORITY));
    BTreeMap::from([
        ("input".to_owned(), Chain { hook: hook(Point::ArpInput), rules: check }),
        ("output".to_owned(), Chain { hook: hook(Point::ArpOutput), rules: answers }),
        ("workload-senders".to_owned(), Chain { hook: None, rules: senders }),
    ])
}
