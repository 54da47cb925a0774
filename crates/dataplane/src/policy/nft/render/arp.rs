//! The table of the ARP family: a workload claims its own addresses alone, so it cannot fill the host's neighbour table
//! or take another's place in it.

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
    // Answering for everything, the host would tell a workload that its own address is taken.
    let answers = vec![Rule::new(vec![own(Field::OutInterface)], drop).says("the workload's own address")];
    let hook = |point| Some(Hook::filter(point, PRIORITY));
    BTreeMap::from([
        ("input".to_owned(), Chain { hook: hook(Point::ArpInput), rules: check }),
        ("output".to_owned(), Chain { hook: hook(Point::ArpOutput), rules: answers }),
        ("workload-senders".to_owned(), Chain { hook: None, rules: senders }),
    ])
}
