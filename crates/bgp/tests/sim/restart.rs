//! Graceful restart: routes survive the restart of a daemon, but not its permanent absence.

use crate::net::*;
use tortie_bgp::core::ShutdownMode;
use tortie_bgp::{BgpFamily, PeerConfig, SpeakerConfig};

fn member(own: u8, count: u8) -> SpeakerConfig {
    let mut config = config(64512, own);
    for other in (1..=count).filter(|other| *other != own) {
        let session = PeerConfig { families: BgpFamily::ALL.to_vec(), ..peer(other, 64512) };
        config.peers.insert(format!("peer{other}"), session);
    }
    config
}

fn mesh(count: u8) -> SimulatedNetwork {
    let mut network = SimulatedNetwork::default();
    for own in 1..=count {
        network.add(member(own, count));
    }
    for own in 1..=count {
        network.originate(usize::from(own) - 1, &format!("192.0.{own}.0/24"));
        network.originate(usize::from(own) - 1, &format!("2001:db8:{own}::/48"));
    }
    network.run(20);
    assert!(network.all_up());
    network
}

fn has(network: &SimulatedNetwork, node: usize, own: u8) -> (bool, bool) {
    (
        network.routes_to(node, &format!("192.0.{own}.0/24")).is_some(),
        network.routes_to(node, &format!("2001:db8:{own}::/48")).is_some(),
    )
}

#[test]
fn routes_of_a_killed_node_survive_its_restart() {
    let mut network = mesh(3);
    network.kill(0);
    network.run(60);
    assert_eq!((has(&network, 1, 1), has(&network, 2, 1)), ((true, true), (true, true)));
    assert!(network.status(1, "peer1").waiting);

    let back = network.add_restarting(member(1, 3), true);
    network.originate(back, "192.0.1.0/24");
    network.run(10);
    // The node has received all routes but sent none, because its own routes are not known to be complete.
    assert!(network.is_up(back, "peer2"));
    assert!(
        network.nodes[back].kernel.is_empty(),
        "nothing is installed before all peers have sent End-of-RIB"
    );
    assert_eq!(has(&network, 1, 1), (true, true), "still the routes of before");
    let now = network.now;
    network.nodes[back].core.local_complete(now);
    network.settle();
    assert!(network.nodes[back].complete);
    assert_eq!(has(&network, back, 2), (true, true));
    assert_eq!(has(&network, 1, 1), (true, false), "the IPv6 route was not announced again");
    assert_eq!(has(&network, 2, 1), (true, false));
    assert!(!network.status(1, "peer1").waiting);
}

#[test]
fn routes_go_when_the_node_stays_away() {
    let mut network = mesh(2);
    network.kill(0);
    network.run(119);
    assert_eq!(has(&network, 1, 1), (true, true));
    network.run(2);
    assert_eq!(has(&network, 1, 1), (false, false));
    assert_eq!(network.status(1, "peer1").prefixes_in.v4, 0);
}

#[test]
fn a_lost_connection_withdraws_nothing() {
    let mut network = mesh(3);
    network.drop_connections(0);
    network.settle();
    assert_eq!((has(&network, 1, 1), has(&network, 0, 2)), ((true, true), (true, true)));
    network.run(10);
    assert!(network.all_up());
    assert_eq!((has(&network, 1, 1), has(&network, 0, 2)), ((true, true), (true, true)));
    assert_eq!(network.nodes[1].core.routes(BgpFamily::V4).iter().filter(|route| route.stale).count(), 0);
}

#[test]
fn routes_without_preserved_forwarding_state_are_dropped() {
    let mut network = mesh(2);
    network.kill(0);
    network.run(5);
    let back = network.add(member(1, 2));
    network.run(10);
    assert!(network.is_up(back, "peer2"));
    assert_eq!(has(&network, 1, 1), (false, false));
}

#[test]
fn only_an_administrative_shutdown_withdraws_routes() {
    for (how, kept) in
        [(ShutdownMode::Graceful, true), (ShutdownMode::Administrative { reason: String::new() }, false)]
    {
        let mut network = mesh(2);
        let now = network.now;
        network.nodes[0].core.shutdown(now, &how);
        network.settle();
        network.nodes[0].alive = false;
        network.run(30);
        assert_eq!(has(&network, 1, 1), (kept, kept), "{how:?}");
    }
}

#[test]
fn without_graceful_restart_routes_go_at_once() {
    let mut network = SimulatedNetwork::default();
    for own in 1..=2 {
        let mut config = member(own, 2);
        config.peers.values_mut().for_each(|peer| peer.restart_time = None);
        network.add(config);
    }
    network.originate(0, "192.0.1.0/24");
    network.run(20);
    assert!(network.routes_to(1, "192.0.1.0/24").is_some());
    network.kill(0);
    network.settle();
    assert_eq!(network.routes_to(1, "192.0.1.0/24"), None);
}

#[test]
fn a_restarted_speaker_does_not_wait_for_ever() {
    let mut network = mesh(3);
    network.kill(0);
    network.kill(2);
    network.run(5);
    let back = network.add_restarting(member(1, 3), true);
    network.originate(back, "192.0.1.0/24");
    network.originate(back, "2001:db8:1::/48");
    let now = network.now;
    network.nodes[back].core.local_complete(now);
    network.run(20);
    assert!(network.nodes[back].kernel.is_empty(), "the third node may still come");
    network.run(15);
    assert!(network.nodes[back].complete);
    assert_eq!((has(&network, back, 2), has(&network, 1, 1)), ((true, true), (true, true)));
}

#[test]
fn a_returning_peer_takes_over_its_old_session() {
    let mut network = mesh(2);
    // The node dies without its connections being reset.
    network.nodes[0].alive = false;
    let back = network.add_restarting(member(1, 2), true);
    network.originate(back, "192.0.1.0/24");
    network.originate(back, "2001:db8:1::/48");
    let now = network.now;
    network.nodes[back].core.local_complete(now);
    network.run(10);
    assert!(network.is_up(back, "peer2") && network.is_up(1, "peer1"));
    assert_eq!((has(&network, 1, 1), has(&network, back, 2)), ((true, true), (true, true)));
}

#[test]
fn simultaneous_restarts_do_not_deadlock() {
    let mut network = mesh(2);
    network.kill(0);
    network.kill(1);
    let nodes = [network.add_restarting(member(1, 2), true), network.add_restarting(member(2, 2), true)];
    for (node, own) in nodes.into_iter().zip([1, 2]) {
        network.originate(node, &format!("192.0.{own}.0/24"));
        let now = network.now;
        network.nodes[node].core.local_complete(now);
    }
    network.run(10);
    assert_eq!(network.routes_to(nodes[0], "192.0.2.0/24"), Some(vec![ip("10.0.0.2")]));
    assert_eq!(network.routes_to(nodes[1], "192.0.1.0/24"), Some(vec![ip("10.0.0.1")]));
}

#[test]
fn kernel_routes_stay_while_both_peers_restart() {
    let mut network = mesh(2);
    network.kill(0);
    network.kill(1);
    let nodes = [network.add_restarting(member(1, 2), true), network.add_restarting(member(2, 2), true)];
    network.originate(nodes[0], "192.0.1.0/24");
    let now = network.now;
    network.nodes[nodes[0]].core.local_complete(now);
    network.run(10);
    assert!(network.is_up(nodes[0], "peer2"));
    assert!(!network.nodes[nodes[0]].complete, "the peer's routes are swept before it could send them");

    network.originate(nodes[1], "192.0.2.0/24");
    let now = network.now;
    network.nodes[nodes[1]].core.local_complete(now);
    network.run(1);
    for (node, other) in [(nodes[0], 2), (nodes[1], 1)] {
        assert!(network.nodes[node].complete);
        assert_eq!(has(&network, node, other), (true, false));
    }
}

#[test]
fn a_collision_seen_late_costs_no_route() {
    let mut network = mesh(2);
    network.kill(0);
    network.run(5);
    let back = network.add_restarting(member(1, 2), true);
    network.run(10);
    assert!(network.is_up(1, "peer1"));
    // The peer preferred the other connection before it knew that we had chosen this one.
    let end = network.end_of(1, back);
    let cease = [&[0xff; 16][..], &[0, 21, 3, 6, 7]].concat();
    network.inject(end, &cease);
    assert_eq!(has(&network, 1, 1), (true, true), "stale routes are kept");
    network.originate(back, "192.0.1.0/24");
    network.originate(back, "2001:db8:1::/48");
    let now = network.now;
    network.nodes[back].core.local_complete(now);
    network.run(20);
    assert!(network.is_up(1, "peer1"));
    assert_eq!(has(&network, 1, 1), (true, true));
    assert_eq!(network.nodes[1].core.routes(BgpFamily::V4).iter().filter(|route| route.stale).count(), 0);
}
