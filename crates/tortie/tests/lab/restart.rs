//! A node's daemon ends and starts again while its pods talk.

use crate::Lab;
use crate::talk::Talk;

#[test]
fn a_restart_of_the_daemon_loses_no_packet() {
    let lab = Lab::up(&["--nodes", "2"]);
    let one = lab.add("one", "node1", &[]);
    let two = lab.add("two", "node2", &[]);
    let talk = Talk::start(&lab, ("one", &one), ("two", &two));
    talk.through_restarts(&lab, &["node1", "node2"]);
    talk.none_lost();
}
