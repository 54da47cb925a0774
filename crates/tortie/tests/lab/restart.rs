//! A node's daemon is stopped and restarted while its pods exchange traffic.

use crate::pinger::{ContinuousPing, restart_under};
use crate::{TestLab, family};

#[test]
fn a_restart_of_the_daemon_loses_no_packet() {
    let lab = TestLab::up(&["--nodes", "2"]);
    let one = lab.add("one", "node1", &[]);
    let two = lab.add("two", "node2", &[]);
    let talks = [("one", &two, false), ("one", &two, true), ("two", &one, false), ("two", &one, true)];
    let pingers: Vec<ContinuousPing> =
        talks.iter().map(|(from, to, v6)| ContinuousPing::start(&lab, from, family(to, *v6))).collect();
    pingers.iter().for_each(|pinger| pinger.wait_for_more(20));
    for node in ["node1", "node2"] {
        restart_under(&lab, &pingers, node, 20);
    }
    pingers.iter().for_each(ContinuousPing::none_lost);
}
