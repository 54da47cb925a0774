//! Sessions come up, stay up and end as specified.

use crate::net::*;
use tortie_bgp::core::{BgpPeerState, ShutdownMode};
use tortie_bgp::{AdvertisedNextHop, BgpFamily};

#[test]
fn a_mesh_comes_up_when_both_ends_dial() {
    let mut network = SimulatedNetwork::mesh(5, 64512);
    network.run(60);
    assert!(network.all_up());
    for node in 0..5 {
        for peer in network.nodes[node].core.status(Default::default()).peers {
            assert_eq!(peer.established, 1, "{} of node {node} came up more than once", peer.name);
        }
    }
}

#[test]
fn a_session_with_a_passive_end_comes_up() {
    let mut network = SimulatedNetwork::mesh(2, 64512);
    let mut passive = config(64512, 1);
    passive.peers.insert("peer2".into(), tortie_bgp::PeerConfig { passive: true, ..peer(2, 64512) });
    let mut alone = SimulatedNetwork::default();
    alone.add(passive.clone());
    alone.run(60);
    assert_eq!(alone.status(0, "peer2").state, BgpPeerState::Active);
    let now = network.now;
    network.nodes[0].core.reconfigure(now, passive).unwrap();
    network.run(10);
    assert!(network.all_up());
}

#[test]
fn keepalives_hold_a_session_and_silence_ends_it() {
    let mut network = SimulatedNetwork::mesh(2, 64512);
    network.run(5);
    assert!(network.all_up());
    network.run(3600);
    assert!(network.all_up());
    assert_eq!(network.status(0, "peer2").established, 1);
    // A peer whose messages do not arrive: the hold timer of the other side ends the session.
    network.nodes[1].stalled = true;
    // The last keepalive arrived at most a third of the hold time ago.
    network.run(159);
    assert!(network.is_up(0, "peer2"), "{:?}", network.status(0, "peer2"));
    let mut waited = 0;
    while network.is_up(0, "peer2") && waited < 82 {
        network.run(1);
        waited += 1;
    }
    assert!(!network.is_up(0, "peer2"));
    assert!(network.status(0, "peer2").last_error.unwrap().contains("Hold Timer Expired"));
}

#[test]
fn the_smaller_hold_time_is_used() {
    let mut network = SimulatedNetwork::default();
    for (own, other, hold) in [(1, 2, 9), (2, 1, 90)] {
        let mut config = config(64512, own);
        let keepalive = (own == 1).then_some(1);
        config.peers.insert(
            "other".into(),
            tortie_bgp::PeerConfig { hold_time: hold, keepalive, ..peer(other, 64512) },
        );
        network.add(config);
    }
    network.run(5);
    assert_eq!(network.status(1, "other").hold_time, Some(9));
    let before = network.status(1, "other").messages_in;
    network.run(60);
    let heard = network.status(1, "other").messages_in - before;
    assert!((59..=61).contains(&heard), "{heard} keepalives in a minute");
}

#[test]
fn a_wrong_as_number_backs_off() {
    let mut network = SimulatedNetwork::default();
    let mut first = config(64512, 1);
    first.peers.insert("other".into(), peer(2, 65000));
    let mut second = config(64512, 2);
    second.peers.insert("other".into(), tortie_bgp::PeerConfig { passive: true, ..peer(1, 64512) });
    network.add(first);
    network.add(second);
    network.run(120);
    let status = network.status(0, "other");
    assert_ne!(status.state, BgpPeerState::Established);
    assert!(status.last_error.unwrap().contains("Bad Peer AS"));
    // 5 + 10 + 20 + 30 + 30 seconds: six OPENs in the first two minutes, each answered once.
    assert!(network.status(0, "other").messages_out <= 14, "{}", network.status(0, "other").messages_out);
}

#[test]
fn equal_router_identifiers_inside_an_as_are_refused() {
    let mut network = SimulatedNetwork::default();
    for (own, other) in [(1, 2), (2, 1)] {
        let mut config = config(64512, own);
        config.router_id = v4(9);
        config.peers.insert("other".into(), peer(other, 64512));
        network.add(config);
    }
    network.run(60);
    assert!(!network.is_up(0, "other"));
    assert!(network.status(0, "other").last_error.unwrap().contains("Bad BGP Identifier"));
}

#[test]
fn shutdown_tells_why() {
    let mut network = SimulatedNetwork::mesh(2, 64512);
    network.originate(0, "192.0.2.0/24");
    network.run(10);
    assert!(network.routes_to(1, "192.0.2.0/24").is_some());
    let now = network.now;
    network.nodes[0].core.shutdown(now, &ShutdownMode::Administrative { reason: "moving house".into() });
    network.settle();
    let error = network.status(1, "peer1").last_error.unwrap();
    assert!(error.contains("Administrative Shutdown") && error.contains("moving house"), "{error}");
    assert_eq!(network.routes_to(1, "192.0.2.0/24"), None);
}

#[test]
fn reconfiguration_touches_only_what_changed() {
    let mut network = SimulatedNetwork::mesh(3, 64512);
    network.run(10);
    let mut changed = config(64512, 1);
    for other in [2, 3] {
        changed.peers.insert(format!("peer{other}"), peer(other, 64512));
    }
    let now = network.now;
    network.nodes[0].core.reconfigure(now, changed.clone()).unwrap();
    network.run(10);
    assert_eq!(network.status(0, "peer2").established, 1, "nothing changed");

    changed.peers.get_mut("peer2").unwrap().hold_time = 30;
    let since = network.status(0, "peer3").since;
    let now = network.now;
    network.nodes[0].core.reconfigure(now, changed.clone()).unwrap();
    assert!(!network.is_up(0, "peer2"));
    network.run(20);
    assert!(network.all_up());
    assert_eq!(network.status(0, "peer2").hold_time, Some(30));
    assert_eq!((network.status(0, "peer3").since, network.status(0, "peer3").established), (since, 1));

    changed.peers.remove("peer2");
    let now = network.now;
    network.nodes[0].core.reconfigure(now, changed.clone()).unwrap();
    network.settle();
    assert!(network.status(1, "peer1").last_error.unwrap().contains("De-configured"));
    assert_eq!(network.status(0, "peer3").established, 1);

    changed.peers.insert("bad".into(), peer(9, 0));
    let error = network.nodes[0].core.reconfigure(now, changed).unwrap_err();
    assert_eq!(error.to_string(), "peers.bad.remote_as: 0 is not an AS number");
    assert!(network.is_up(0, "peer3"));
}

#[test]
fn next_hop_and_filter_changes_keep_the_session() {
    let mut network = SimulatedNetwork::mesh(2, 64512);
    network.originate(0, "192.0.2.0/24");
    network.run(10);
    let mut changed = config(64512, 1);
    changed.peers.insert("peer2".into(), peer(2, 64512));
    changed.peers.get_mut("peer2").unwrap().export =
        std::sync::Arc::new(tortie_bgp::filter::RouteFilter::reject());
    changed.peers.get_mut("peer2").unwrap().next_hop = AdvertisedNextHop::Own;
    let now = network.now;
    network.nodes[0].core.reconfigure(now, changed.clone()).unwrap();
    network.run(5);
    assert_eq!(network.routes_to(1, "192.0.2.0/24"), None);
    changed.peers.get_mut("peer2").unwrap().export =
        std::sync::Arc::new(tortie_bgp::filter::RouteFilter::accept());
    let now = network.now;
    network.nodes[0].core.reconfigure(now, changed).unwrap();
    network.run(5);
    assert!(network.routes_to(1, "192.0.2.0/24").is_some());

    let mut picky = config(64512, 2);
    picky.peers.insert("peer1".into(), peer(1, 64512));
    picky.peers.get_mut("peer1").unwrap().import =
        std::sync::Arc::new(tortie_bgp::filter::RouteFilter::reject());
    let now = network.now;
    network.nodes[1].core.reconfigure(now, picky.clone()).unwrap();
    network.run(5);
    assert_eq!(network.routes_to(1, "192.0.2.0/24"), None);
    assert_eq!(network.status(1, "peer1").prefixes_in.v4, 0);
    assert_eq!(network.status(0, "peer2").established, 1);
    assert_eq!(network.status(1, "peer1").established, 1);
}

#[test]
fn only_common_families_are_spoken() {
    let mut network = SimulatedNetwork::default();
    let families = [vec![BgpFamily::V4, BgpFamily::V6], vec![BgpFamily::V6]];
    for ((own, other), families) in [(1, 2), (2, 1)].into_iter().zip(families) {
        let mut config = config(64512, own);
        config.peers.insert("other".into(), tortie_bgp::PeerConfig { families, ..peer(other, 64512) });
        network.add(config);
    }
    network.originate(0, "192.0.2.0/24");
    network.originate(0, "2001:db8:1::/48");
    network.run(20);
    assert_eq!(network.status(0, "other").families, [BgpFamily::V6]);
    assert_eq!(network.routes_to(1, "192.0.2.0/24"), None);
    assert_eq!(network.routes_to(1, "2001:db8:1::/48"), Some(vec![ip("fd00::1")]));
}

#[test]
fn a_thousand_reconnections_disturb_no_other_peer() {
    let mut network = SimulatedNetwork::mesh(2, 64512);
    let mut third = config(64512, 1);
    third.peers.insert("peer2".into(), peer(2, 64512));
    third.peers.insert("flapper".into(), tortie_bgp::PeerConfig { passive: true, ..peer(66, 64512) });
    let now = network.now;
    network.nodes[0].core.reconfigure(now, third).unwrap();
    network.run(10);
    for _ in 0..1000 {
        let end = network.play(v4(66).into(), 0).unwrap();
        network.settle();
        network.hang_up_played(end);
    }
    network.run(60);
    assert!(network.is_up(0, "peer2"));
    assert_eq!(network.status(0, "peer2").established, 1);
    assert!(network.play(v4(67).into(), 0).is_none(), "a stranger is not accepted");
}
