//! Replies recorded from BIRD 2.0.12.

use super::*;

fn lines(text: &str) -> Vec<ReplyLine> {
    let mut lines: Vec<ReplyLine> = Vec::new();
    for text in text.lines() {
        let before = lines.last().map_or(0, |line| line.code);
        lines.push(ReplyLine::parse(text, before).unwrap().0);
    }
    lines
}

const STATUS: &str = "1000-BIRD 2.0.12
1011-Router ID is 10.0.0.1
 Hostname is vm
 Current server time is 2026-11-15T10:35:15+0100
 Last reboot on 2026-11-15T09:35:07+0000
 Last reconfiguration on 2026-11-15T09:35:07+0000
0024-Graceful restart recovery in progress
   Waiting for 3 channels to recover
   Wait timer is 231.863/240
0013 Daemon is up and running";

#[test]
fn the_daemon() {
    let daemon = daemon(&lines(STATUS)).unwrap();
    assert_eq!(daemon.router_id, Ipv4Addr::new(10, 0, 0, 1));
    assert_eq!(between(daemon.started, daemon.now), Duration::from_secs(8), "whatever the time zone");
    assert!(daemon.restarting);
    // Before BIRD has loaded our configuration, it prints times in its own format.
    let foreign = super::daemon(&lines(&STATUS.replace('T', " "))).unwrap();
    assert_eq!(foreign.started, foreign.now);
    assert!(super::daemon(&lines("0013 Daemon is up and running")).is_err());
}

#[test]
fn sessions() {
    let text = "2002-Name       Proto      Table      State  Since         Info
1002-static1    Static     master4    up     2026-11-15T09:35:07+0000  
1006-  Channel ipv4
     State:          UP
     Routes:         1 imported, 0 exported, 1 preferred
     Route change stats:     received   rejected   filtered    ignored   accepted
       Import updates:              1          0          0          0          1
 
1002-Mesh_10_0_0_7 BGP        ---        start  2026-11-15T09:35:09+0000  Active        Socket: No route to host
1006-  Description:    Connection to BGP peer
   BGP state:          Active
     Neighbor address: 10.0.0.7
     Neighbor AS:      64512
     Local AS:         64512
     Connect delay:    3.385/5
     Last error:       Socket: No route to host
   Channel ipv4
     State:          DOWN
 
1002-Node_fd00__9 BGP        ---        up     2026-11-15T09:35:10+0000  Established   
1006-  BGP state:          Established
     Neighbor address: fd00::9
     Neighbor AS:      50200
     Local AS:         64512
     Neighbor ID:      10.0.0.9
     Hold timer:       170.264/240
   Channel ipv6
     Routes:         3 imported, 1 filtered, 2 exported, 3 preferred
       Import updates:              7          0          0          0          7
       Export updates:              5          1          2        ---          2
 
0000 ";
    let daemon = daemon(&lines(STATUS)).unwrap();
    let status = status(64512, &daemon, &lines(text)).unwrap();
    assert_eq!((status.routes.v4, status.routes.v6), (1, 3));
    let [mesh, node] = &status.peers[..] else { panic!("{:?}", status.peers) };
    assert_eq!((&*mesh.name, mesh.state, mesh.external), ("Mesh_10_0_0_7", BgpPeerState::Active, false));
    assert_eq!(
        (mesh.since, mesh.last_error.as_deref()),
        (Duration::from_secs(2), Some("Socket: No route to host"))
    );
    assert_eq!((node.address, node.remote_as), ("fd00::9".parse().unwrap(), 50200));
    assert_eq!((node.state, node.external, node.hold_time), (BgpPeerState::Established, true, Some(240)));
    assert_eq!((node.prefixes_in.v6, node.prefixes_out.v6, node.prefixes_in.v4), (3, 2, 0));
    assert_eq!((node.updates_in, node.router_id), (7, Some(Ipv4Addr::new(10, 0, 0, 9))));
}

#[test]
fn paths() {
    let text = "1007-Table master4:
 10.1.0.0/24          blackhole [static1 2026-11-15T09:35:07+0000] * (200)
1008-\tType: static univ
1007-10.2.0.0/26          unicast [Mesh_10_0_0_7 2026-11-15T09:35:08+0000] * (100/0) [i]
 \tvia 10.0.0.7 on eth0
1008-\tType: BGP univ
1012-\tBGP.origin: IGP
 \tBGP.as_path: 64513 64514
 \tBGP.next_hop: 10.0.0.7
 \tBGP.local_pref: 2147482623
 \tBGP.community: (64512,1) (64512,2)
 \tBGP.large_community: (1, 2, 3)
1007-                     unicast [Node_10_0_0_8 2026-11-15T09:35:08+0000] (100/0) [i]
 \tvia 10.0.0.8 on eth0
1012-\tBGP.as_path: 
0000 ";
    let routes = routes(&lines(text)).unwrap();
    let [block, learnt, other] = &routes[..] else { panic!("{routes:?}") };
    assert_eq!((block.prefix.to_string().as_str(), &block.peer, block.best), ("10.1.0.0/24", &None, true));
    assert_eq!(
        (learnt.peer.as_deref(), learnt.best, learnt.prefix),
        (Some("Mesh_10_0_0_7"), true, other.prefix)
    );
    assert_eq!(*learnt.attrs.as_path, [64513, 64514]);
    assert_eq!(*learnt.attrs.communities, [64512 << 16 | 1, 64512 << 16 | 2]);
    assert_eq!(*learnt.attrs.large_communities, [LargeCommunity::new(1, 2, 3)]);
    assert_eq!((learnt.attrs.local_pref, learnt.attrs.preference), (Some(2_147_482_623), 100));
    assert_eq!((other.best, other.attrs.next_hop), (false, "10.0.0.8".parse().ok()));
}

#[test]
fn nonsense_is_an_error() {
    for text in ["", "x", "00", "0001", "abcd-x", "0001?x", "é001-x"] {
        assert!(ReplyLine::parse(text, 0).is_err(), "{text:?}");
    }
    assert!(routes(&lines("1007-unicast [kernel1 x] * (10)")).is_err());
    let daemon = daemon(&lines(STATUS)).unwrap();
    assert!(status(1, &daemon, &lines("1002-Mesh_1 BGP")).is_err());
}

proptest::proptest! {
    /// Parsing any reply ends with a result or an error.
    #[test]
    fn any_answer_is_survived(texts in proptest::collection::vec("(1002|1006|1007|1011|1012)[- ].{0,60}|.{0,60}", 0..40)) {
        let mut lines: Vec<ReplyLine> = Vec::new();
        for text in &texts {
            let before = lines.last().map_or(0, |line| line.code);
            lines.extend(ReplyLine::parse(text, before).ok().map(|(line, _)| line));
        }
        let _ = routes(&lines);
        let _ = super::daemon(&lines);
        let _ = status(1, &super::daemon(&self::lines(STATUS)).unwrap(), &lines);
    }
}
