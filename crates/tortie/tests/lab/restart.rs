//! A node's daemon is stopped and restarted while its pods exchange traffic.

use crate::pinger::{Pinger, restart_under};
use crate::{Lab, family};

#[test]
fn a_restart_of_the_daemon_loses_no_packet() {
    let lab = Lab::up(&["--nodes", "2"]);
    let one = lab.add("one", "node1", &[]);
    let two = lab.add("two", "node2", &[]);
    let talks = [("one", &two, false), ("one", &two, true), ("two", &one, false), ("two", &one, true)];
    let pingers: Vec<Pinger> =
        talks.iter().map(|(from, to, v6)| Pinger::start(&lab, from, family(to, *v6))).collect();
    pingers.iter().for_each(|pinger| pinger.wait_for_more(20));
    for node in ["node1", "node2"] {
        restart_under(&lab, &pingers, node, 20);
    }
    pingers.iter().for_each(Pinger::none_lost);
}
