//! A node's daemon ends and starts again while its pods talk.

use crate::pinger::Pinger;
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
        for how in [&["--kill"][..], &[]] {
            lab.run(&[&["node", "stop", node], how].concat());
            pingers.iter().for_each(|pinger| pinger.wait_for_more(20));
            lab.run(&["node", "start", node]);
            pingers.iter().for_each(|pinger| pinger.wait_for_more(20));
        }
    }
    pingers.iter().for_each(Pinger::none_lost);
}
