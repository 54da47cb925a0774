//! Routes are propagated as RFC 4271 and RFC 4456 specify.

use crate::net::*;
use rustbgpd_wire::LargeCommunity;
use std::sync::Arc;
use tortie_bgp::core::BestRoute;
use tortie_bgp::filter::{
    AttrsChange, BgpCommunity, FilterVerdict, RouteFilter, RouteFilterRule, RouteMatch,
};
use tortie_bgp::{AdvertisedNextHop, BgpFamily, PeerConfig, RouteAttrs, SpeakerConfig};

fn both() -> Vec<BgpFamily> {
    BgpFamily::ALL.to_vec()
}

/// Creates nodes `10.0.0.<n>` in the given ASes, connected as listed, with both families on every session.
fn topology(
    asns: &[u32],
    edges: &[(usize, usize)],
    adjust: impl Fn(usize, usize, &mut PeerConfig),
) -> SimulatedNetwork {
    let mut network = SimulatedNetwork::default();
    for (own, asn) in asns.iter().enumerate() {
        let mut config: SpeakerConfig = config(*asn, own as u8 + 1);
        for (a, b) in edges {
            let other = match own {
                own if own == *a => *b,
                own if own == *b => *a,
                _ => continue,
            };
            let mut session = PeerConfig { families: both(), ..peer(other as u8 + 1, asns[other]) };
            adjust(own, other, &mut session);
            config.peers.insert(format!("peer{}", other + 1), session);
        }
        network.add(config);
    }
    network
}

fn best(network: &SimulatedNetwork, node: usize, prefix: &str) -> BestRoute {
    network.nodes[node]
        .core
        .route(net(prefix))
        .unwrap_or_else(|| panic!("node {node} has no route to {prefix}"))
}

#[test]
fn routes_of_both_families_come_and_go() {
    let mut network = topology(&[64512; 3], &[(0, 1), (0, 2), (1, 2)], |_, _, _| {});
    for prefix in ["192.0.2.0/24", "198.51.100.128/26", "2001:db8:1::/48", "2001:db8:1:2::5/128", "0.0.0.0/0"]
    {
        network.originate(0, prefix);
    }
    network.run(20);
    for node in [1, 2] {
        assert_eq!(network.routes_to(node, "192.0.2.0/24"), Some(vec![ip("10.0.0.1")]));
        assert_eq!(network.routes_to(node, "198.51.100.128/26"), Some(vec![ip("10.0.0.1")]));
        assert_eq!(network.routes_to(node, "0.0.0.0/0"), Some(vec![ip("10.0.0.1")]));
        assert_eq!(network.routes_to(node, "2001:db8:1::/48"), Some(vec![ip("fd00::1")]));
        assert_eq!(network.routes_to(node, "2001:db8:1:2::5/128"), Some(vec![ip("fd00::1")]));
        assert_eq!(network.status(node, "peer1").prefixes_in, tortie_bgp::PerFamily { v4: 3, v6: 2 });
    }
    assert_eq!(network.status(0, "peer2").prefixes_out, tortie_bgp::PerFamily { v4: 3, v6: 2 });
    network.nodes[0].core.withdraw(net("192.0.2.0/24"));
    network.nodes[0].core.withdraw(net("2001:db8:1::/48"));
    network.settle();
    for node in [1, 2] {
        assert_eq!(network.routes_to(node, "192.0.2.0/24"), None);
        assert_eq!(network.routes_to(node, "2001:db8:1::/48"), None);
        assert_eq!(network.status(node, "peer1").prefixes_in, tortie_bgp::PerFamily { v4: 2, v6: 1 });
    }
    // A route that returns under a reused destination number is advertised again.
    network.originate(0, "192.0.2.0/24");
    network.settle();
    assert_eq!(network.routes_to(1, "192.0.2.0/24"), Some(vec![ip("10.0.0.1")]));
}

#[test]
fn external_peers_see_our_as_and_address() {
    let mut network = topology(&[65001, 65002, 65003], &[(0, 1), (1, 2)], |_, _, _| {});
    let attrs = RouteAttrs { med: Some(7), local_pref: Some(300), ..RouteAttrs::local() };
    network.originate_with(0, "192.0.2.0/24", attrs);
    network.run(20);
    let middle = best(&network, 1, "192.0.2.0/24");
    assert_eq!(
        (&*middle.attrs.as_path, middle.attrs.med, middle.attrs.local_pref),
        (&[65001][..], Some(7), None)
    );
    assert_eq!(network.routes_to(1, "192.0.2.0/24"), Some(vec![ip("10.0.0.1")]));
    let last = best(&network, 2, "192.0.2.0/24");
    assert_eq!((&*last.attrs.as_path, last.attrs.med), (&[65002, 65001][..], None));
    assert_eq!(network.routes_to(2, "192.0.2.0/24"), Some(vec![ip("10.0.0.2")]));
    // It is not advertised back to its source.
    assert_eq!(network.status(0, "peer2").prefixes_in.v4, 0);
}

#[test]
fn next_hop_modes() {
    for (mode, expected) in [
        (AdvertisedNextHop::Auto, "10.0.0.1"),
        (AdvertisedNextHop::Own, "10.0.0.2"),
        (AdvertisedNextHop::Keep, "10.0.0.1"),
    ] {
        let adjust = |own, _, peer: &mut PeerConfig| {
            if own == 1 {
                peer.next_hop = mode;
            }
        };
        let mut network = topology(&[65001, 65002, 65002], &[(0, 1), (1, 2)], adjust);
        network.originate(0, "192.0.2.0/24");
        network.run(20);
        assert_eq!(network.routes_to(2, "192.0.2.0/24"), Some(vec![ip(expected)]), "{mode:?}");
    }
    let keep = |own, _, peer: &mut PeerConfig| {
        if own == 1 {
            peer.next_hop = AdvertisedNextHop::Keep;
        }
    };
    let mut network = topology(&[65001, 65002, 65003], &[(0, 1), (1, 2)], keep);
    network.originate(0, "192.0.2.0/24");
    network.run(20);
    assert_eq!(network.routes_to(2, "192.0.2.0/24"), Some(vec![ip("10.0.0.1")]), "kept to an external peer");
}

#[test]
fn internal_routes_need_a_reflector_to_spread() {
    let mut network = topology(&[64512; 3], &[(0, 1), (1, 2)], |_, _, _| {});
    network.originate(0, "192.0.2.0/24");
    network.run(20);
    assert!(network.routes_to(1, "192.0.2.0/24").is_some());
    assert_eq!(network.routes_to(2, "192.0.2.0/24"), None);
}

#[test]
fn a_reflector_passes_routes_to_and_from_clients() {
    // 0 and 1 are clients of reflector 2; 3 and 4 are its non-client peers.
    let adjust = |own: usize, other: usize, peer: &mut PeerConfig| {
        if own == 2 && other < 2 {
            peer.reflect = Some(v4(200));
        }
    };
    let mut network = topology(&[64512; 5], &[(0, 2), (1, 2), (3, 2), (4, 2)], adjust);
    network.originate(0, "192.0.2.0/24");
    network.originate(0, "2001:db8::/32");
    network.originate(3, "198.51.100.0/24");
    network.run(20);
    for node in [1, 3, 4] {
        assert_eq!(network.routes_to(node, "192.0.2.0/24"), Some(vec![ip("10.0.0.1")]), "node {node}");
        assert_eq!(network.routes_to(node, "2001:db8::/32"), Some(vec![ip("fd00::1")]), "node {node}");
        let attrs = best(&network, node, "192.0.2.0/24").attrs;
        assert_eq!((attrs.originator, &*attrs.cluster_list), (Some(v4(1)), &[v4(200)][..]));
    }
    for node in [0, 1] {
        assert_eq!(network.routes_to(node, "198.51.100.0/24"), Some(vec![ip("10.0.0.4")]), "node {node}");
    }
    assert_eq!(network.routes_to(4, "198.51.100.0/24"), None, "between ordinary peers nothing is reflected");
    network.nodes[0].core.withdraw(net("192.0.2.0/24"));
    network.settle();
    assert_eq!(network.routes_to(4, "192.0.2.0/24"), None);
}

#[test]
fn reflectors_in_a_ring_do_not_loop() {
    // Three reflectors of different clusters are clients of each other; node 3 is a client of the first.
    let adjust = |own: usize, _, peer: &mut PeerConfig| {
        if own < 3 {
            peer.reflect = Some(v4(200 + own as u8));
        }
    };
    let mut network = topology(&[64512; 4], &[(0, 1), (1, 2), (2, 0), (3, 0)], adjust);
    network.originate(3, "192.0.2.0/24");
    network.run(20);
    for node in 0..3 {
        assert_eq!(network.routes_to(node, "192.0.2.0/24"), Some(vec![ip("10.0.0.4")]), "node {node}");
    }
    network.nodes[3].core.withdraw(net("192.0.2.0/24"));
    network.settle();
    for node in 0..3 {
        assert_eq!(network.routes_to(node, "192.0.2.0/24"), None, "node {node}");
    }
}

#[test]
fn reflectors_of_one_cluster_ignore_each_others_reflections() {
    let adjust = |own: usize, other: usize, peer: &mut PeerConfig| {
        if own < 2 && other >= 2 {
            peer.reflect = Some(v4(200));
        }
    };
    let mut network = topology(&[64512; 4], &[(0, 1), (2, 0), (2, 1), (3, 0), (3, 1)], adjust);
    network.originate(2, "192.0.2.0/24");
    network.run(20);
    assert_eq!(network.routes_to(3, "192.0.2.0/24"), Some(vec![ip("10.0.0.3")]));
    assert_eq!(network.status(0, "peer2").prefixes_in.v4, 0);
    assert_eq!(network.status(1, "peer1").prefixes_in.v4, 0);
}

#[test]
fn our_own_as_is_a_loop_unless_allowed() {
    for (allowed, expected) in [(0, false), (1, true)] {
        let adjust = |own, _, peer: &mut PeerConfig| {
            if own == 2 {
                peer.allow_own_as = allowed;
            }
        };
        let mut network = topology(&[65001, 65002, 65001], &[(0, 1), (1, 2)], adjust);
        network.originate(0, "192.0.2.0/24");
        network.run(20);
        assert_eq!(network.routes_to(2, "192.0.2.0/24").is_some(), expected, "{allowed} allowed");
    }
}

#[test]
fn a_session_may_show_another_as() {
    let adjust = |own, other, peer: &mut PeerConfig| match (own, other) {
        (0, 1) => peer.local_as = Some(65099),
        (1, 0) => peer.remote_as = 65099,
        _ => {}
    };
    let mut network = topology(&[65001, 65002], &[(0, 1)], adjust);
    network.originate(0, "192.0.2.0/24");
    network.run(20);
    assert_eq!(*best(&network, 1, "192.0.2.0/24").attrs.as_path, [65099]);
}

#[test]
fn large_as_numbers() {
    let mut network = topology(&[4_200_000_001, 4_200_000_002], &[(0, 1)], |_, _, _| {});
    network.originate(0, "192.0.2.0/24");
    network.run(20);
    assert_eq!(*best(&network, 1, "192.0.2.0/24").attrs.as_path, [4_200_000_001]);
}

#[test]
fn multipath_and_tie_break_ignore_arrival_order() {
    for order in [[0, 1, 2], [2, 1, 0]] {
        let mut network = topology(&[64512; 4], &[(0, 3), (1, 3), (2, 3)], |_, _, _| {});
        network.run(20);
        for node in order {
            network.originate(node, "192.0.2.0/24");
            network.settle();
        }
        let hops = network.routes_to(3, "192.0.2.0/24");
        assert_eq!(hops, Some(vec![ip("10.0.0.1"), ip("10.0.0.2"), ip("10.0.0.3")]));
        let paths = network.nodes[3].core.routes(BgpFamily::V4);
        let first = paths.iter().find(|path| path.best).unwrap();
        assert_eq!(first.peer.as_deref(), Some("peer1"));
        network.originate_with(0, "192.0.2.0/24", RouteAttrs { local_pref: Some(99), ..RouteAttrs::local() });
        network.settle();
        assert_eq!(network.routes_to(3, "192.0.2.0/24"), Some(vec![ip("10.0.0.2"), ip("10.0.0.3")]));
        let mut single = config(64512, 4);
        single.multipath = 1;
        for other in 1..=3 {
            let session = PeerConfig { families: both(), ..peer(other, 64512) };
            single.peers.insert(format!("peer{other}"), session);
        }
        let now = network.now;
        network.nodes[3].core.reconfigure(now, single).unwrap();
        network.settle();
        assert_eq!(network.routes_to(3, "192.0.2.0/24"), Some(vec![ip("10.0.0.2")]));
        assert!(network.all_up());
    }
}

#[test]
fn our_own_route_beats_a_learnt_one() {
    let mut network = topology(&[64512; 2], &[(0, 1)], |_, _, _| {});
    network.originate(0, "192.0.2.0/24");
    network.run(20);
    network.originate_with(1, "192.0.2.0/24", RouteAttrs { local_pref: Some(1), ..RouteAttrs::local() });
    network.settle();
    assert!(best(&network, 1, "192.0.2.0/24").local);
    network.nodes[1].core.withdraw(net("192.0.2.0/24"));
    network.settle();
    assert_eq!(network.routes_to(1, "192.0.2.0/24"), Some(vec![ip("10.0.0.1")]));
}

#[test]
fn communities_travel_and_well_known_ones_are_obeyed() {
    let mut network = topology(&[65001, 65002, 65003], &[(0, 1), (1, 2)], |_, _, _| {});
    let large = LargeCommunity::new(65001, 2, 3);
    let extended = rustbgpd_wire::ExtendedCommunity::new(0x0002_fde9_0000_0064);
    let tagged = RouteAttrs {
        communities: vec![0xfde9_0001].into(),
        large_communities: vec![large].into(),
        extended_communities: vec![extended].into(),
        ..RouteAttrs::local()
    };
    network.originate_with(0, "192.0.2.0/24", tagged.clone());
    let with = |community: u32| RouteAttrs { communities: vec![community].into(), ..RouteAttrs::local() };
    network.originate_with(0, "198.51.100.0/24", with(rustbgpd_wire::COMMUNITY_NO_ADVERTISE));
    network.originate_with(1, "203.0.113.0/24", with(rustbgpd_wire::COMMUNITY_NO_EXPORT));
    network.run(20);
    let attrs = best(&network, 2, "192.0.2.0/24").attrs;
    assert_eq!(attrs.communities, tagged.communities);
    assert_eq!(attrs.large_communities, tagged.large_communities);
    assert_eq!(attrs.extended_communities, tagged.extended_communities);
    assert_eq!(network.routes_to(1, "198.51.100.0/24"), None);
    assert_eq!(network.routes_to(2, "203.0.113.0/24"), None);
}

#[test]
fn filters_change_and_stop_routes_on_both_sides() {
    let tag = |value| vec![AttrsChange::AddCommunity(BgpCommunity::Standard(0, value))];
    let only_tagged = RouteFilter {
        rules: vec![RouteFilterRule {
            when: RouteMatch { community: Some(BgpCommunity::Standard(0, 5)), ..RouteMatch::default() },
            then: vec![AttrsChange::SetLocalPref(500)],
            verdict: Some(FilterVerdict::Accept),
        }],
        default: FilterVerdict::Reject,
    };
    let prefix = tortie_bgp::filter::PrefixSetMatch {
        operator: tortie_bgp::filter::FilterPrefixOperator::In,
        set: [net("192.0.2.0/24")].into_iter().collect(),
        length: None,
    };
    let tagging = RouteFilter {
        rules: vec![RouteFilterRule {
            when: RouteMatch { prefix: Some(prefix), ..RouteMatch::default() },
            then: tag(5),
            verdict: Some(FilterVerdict::Accept),
        }],
        default: FilterVerdict::Accept,
    };
    let adjust = |own: usize, _, peer: &mut PeerConfig| match own {
        0 => peer.export = Arc::new(tagging.clone()),
        _ => peer.import = Arc::new(only_tagged.clone()),
    };
    let mut network = topology(&[64512, 64512], &[(0, 1)], adjust);
    for prefix in ["192.0.2.0/24", "192.0.2.64/26", "198.51.100.0/24"] {
        network.originate(0, prefix);
    }
    network.run(20);
    assert_eq!(best(&network, 1, "192.0.2.0/24").attrs.local_pref, Some(500));
    assert!(network.routes_to(1, "192.0.2.64/26").is_some());
    assert_eq!(network.routes_to(1, "198.51.100.0/24"), None);
    assert_eq!(network.status(1, "peer1").prefixes_in.v4, 2);
}

#[test]
fn too_many_prefixes_end_only_that_session() {
    let adjust = |own, other, peer: &mut PeerConfig| {
        if (own, other) == (1, 0) {
            peer.max_prefixes = Some(10);
            peer.limit_hold = std::time::Duration::from_secs(120);
        }
    };
    let mut network = topology(&[64512; 3], &[(0, 1), (1, 2)], adjust);
    for last in 0..10 {
        network.originate(0, &format!("192.0.2.{last}/32"));
    }
    network.run(20);
    assert!(network.all_up());
    network.originate(0, "192.0.2.10/32");
    network.settle();
    assert!(!network.is_up(1, "peer1"));
    let error = network.status(1, "peer1").last_error.unwrap();
    assert!(error.contains("Maximum Number of Prefixes"), "{error}");
    assert_eq!(network.routes_to(1, "192.0.2.1/32"), None);
    assert_eq!(network.status(1, "peer3").established, 1);
    network.nodes[0].core.withdraw(net("192.0.2.10/32"));
    network.run(110);
    assert!(!network.is_up(1, "peer1"), "the peer is left alone for a while, also if it calls");
    network.run(90);
    assert!(network.all_up());
    assert_eq!(
        network.status(1, "peer1").last_error,
        None,
        "what is over is not shown beside a healthy session"
    );
    assert!(network.routes_to(1, "192.0.2.1/32").is_some());
}

#[test]
fn many_routes_need_few_messages() {
    let mut network = topology(&[64512; 2], &[(0, 1)], |_, _, _| {});
    network.run(20);
    let before = network.status(0, "peer2").updates_out;
    for number in 0..20_000u32 {
        let prefix = format!("{}/32", std::net::Ipv4Addr::from(0x0b00_0000 + number));
        network.originate(0, &prefix);
    }
    network.settle();
    assert_eq!(network.status(1, "peer1").prefixes_in.v4, 20_000);
    // 65,535 octets hold some 13,000 such prefixes; the walk examines 4096 at a time.
    let updates = network.status(0, "peer2").updates_out - before;
    assert!(updates <= 10, "{updates} messages");
}

#[test]
fn a_slow_peer_delays_nobody_and_catches_up() {
    let mut network = topology(&[64512; 3], &[(0, 1), (0, 2)], |_, _, _| {});
    network.run(20);
    let now = network.now;
    // Node 2 does not read: no output for it is requested from node 0.
    let slow = network.slow(0, 2);
    for round in 0..50u32 {
        for number in 0..100u32 {
            let prefix = format!("{}/32", std::net::Ipv4Addr::from(0x0b00_0000 + number));
            network.originate_with(0, &prefix, RouteAttrs { med: Some(round), ..RouteAttrs::local() });
        }
        network.settle();
    }
    assert_eq!(network.now, now);
    assert_eq!(best(&network, 1, "11.0.0.99/32").attrs.med, Some(49));
    assert_eq!(network.routes_to(2, "11.0.0.99/32"), None);
    network.release(slow);
    network.settle();
    assert_eq!(best(&network, 2, "11.0.0.99/32").attrs.med, Some(49));
    assert_eq!(
        network.status(2, "peer1").updates_in,
        3,
        "only the latest was sent: both markers and one update"
    );
}

#[test]
fn a_peer_that_never_reads_is_given_up() {
    // Without keepalives nothing else would end the session.
    let mut network = topology(&[64512; 3], &[(0, 1), (0, 2)], |_, _, peer| peer.hold_time = 0);
    network.run(20);
    let slow = network.slow(0, 2);
    network.originate(0, "192.0.2.0/24");
    let now = network.now;
    network.nodes[0].core.sending(now, slow.conn, true);
    network.run(479);
    assert_eq!(network.status(0, "peer3").last_error, None);
    assert_eq!(network.status(0, "peer3").established, 1);
    let end = network.now + std::time::Duration::from_secs(1);
    network.nodes[0].core.tick(end);
    let error = network.status(0, "peer3").last_error;
    assert_eq!(error.as_deref(), Some("the peer takes nothing we send"));
    assert_eq!(network.status(0, "peer2").established, 1);
}

#[test]
fn a_path_with_unreachable_next_hop_is_unused() {
    // Node 0 learns both prefixes from node 1, and the first also from node 2; node 3 learns the routes that node 0
    // uses.
    let mut network = topology(&[65001, 65002, 65003, 65004], &[(0, 1), (0, 2), (0, 3)], |_, _, _| {});
    for (prefix, alone) in [
        ("192.0.2.0/24", false),
        ("198.51.100.0/24", true),
        ("2001:db8::/48", false),
        ("2001:db8:1::/48", true),
    ] {
        network.originate(1, prefix);
        if !alone {
            network.originate_with(
                2,
                prefix,
                RouteAttrs { as_path: vec![65009].into(), ..RouteAttrs::local() },
            );
        }
    }
    network.run(20);
    let first = |last: u8| [vec![ip(&format!("10.0.0.{last}"))], vec![ip(&format!("fd00::{last}"))]];
    let at_first = |network: &SimulatedNetwork, last: u8| {
        for (prefix, hops) in ["192.0.2.0/24", "2001:db8::/48"].into_iter().zip(first(last)) {
            assert_eq!(network.routes_to(0, prefix), Some(hops), "{prefix}");
            assert!(network.routes_to(3, prefix).is_some());
        }
    };
    let at_second = |network: &SimulatedNetwork, there: bool| {
        for prefix in ["198.51.100.0/24", "2001:db8:1::/48"] {
            assert_eq!(network.routes_to(0, prefix).is_some(), there, "{prefix}");
            assert_eq!(network.routes_to(3, prefix).is_some(), there, "{prefix}");
        }
    };
    at_first(&network, 2);
    at_second(&network, true);
    network.nodes[0].core.set_unreachable(&[ip("10.0.0.2"), ip("fd00::2")].into());
    network.settle();
    at_first(&network, 3);
    at_second(&network, false);
    let lost = network.nodes[0].core.routes(BgpFamily::V4).into_iter().filter(|route| !route.reachable);
    assert!(lost.into_iter().all(|route| !route.best && !route.used));
    network.nodes[0].core.set_unreachable(&Default::default());
    network.settle();
    at_first(&network, 2);
    at_second(&network, true);
}

#[test]
fn add_path_peers_receive_several_paths() {
    // Nodes 1 and 2 announce the same prefix to node 0; 3 receives all paths, 4 only the best.
    let edges = [(0, 1), (0, 2), (0, 3), (0, 4)];
    let mut network = topology(&[65001, 65002, 65003, 65004, 65005], &edges, |own, other, session| {
        session.add_path = [own, other].contains(&3);
    });
    let paths = |network: &SimulatedNetwork, node: usize, family: BgpFamily| -> Vec<Vec<u32>> {
        let routes = network.nodes[node].core.routes(family);
        let mut paths: Vec<Vec<u32>> = routes.iter().map(|route| route.attrs.as_path.to_vec()).collect();
        paths.sort();
        paths
    };
    let know = |network: &SimulatedNetwork, all: &[&[u32]], best: &[&[u32]]| {
        for family in BgpFamily::ALL {
            assert_eq!(paths(network, 3, family), all, "{family:?}");
            assert_eq!(paths(network, 4, family), best, "{family:?}");
        }
    };
    let both = ["192.0.2.0/24", "2001:db8::/48"];
    both.iter().for_each(|prefix| network.originate(1, prefix));
    network.run(20);
    know(&network, &[&[65001, 65002]], &[&[65001, 65002]]);
    both.iter().for_each(|prefix| network.originate(2, prefix));
    network.settle();
    know(&network, &[&[65001, 65002], &[65001, 65003]], &[&[65001, 65002]]);
    // The second-best path changes.
    let longer = RouteAttrs { as_path: vec![65009].into(), ..RouteAttrs::local() };
    both.iter().for_each(|prefix| network.originate_with(2, prefix, longer.clone()));
    network.settle();
    know(&network, &[&[65001, 65002], &[65001, 65003, 65009]], &[&[65001, 65002]]);
    // That changes nothing for peers that receive only the best path.
    assert_eq!(network.status(0, "peer5").updates_out, 2);
    // The best path is withdrawn, the other one takes its place.
    both.iter().for_each(|prefix| network.nodes[1].core.withdraw(net(prefix)));
    network.settle();
    know(&network, &[&[65001, 65003, 65009]], &[&[65001, 65003, 65009]]);
    both.iter().for_each(|prefix| network.nodes[2].core.withdraw(net(prefix)));
    network.settle();
    know(&network, &[], &[]);
    assert_eq!(network.status(0, "peer4").prefixes_out, tortie_bgp::PerFamily { v4: 0, v6: 0 });
}
