//! Route reflection: BIRD between two of our speakers, our speaker between BIRD and another of our speakers, and reflectors
//! that are clients of another reflector.

use crate::bird::BirdInteropRouter;
use crate::place::{TestNamespace, eventually};
use crate::story::{ASN, InstalledRoutes, InteropRouter, start};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use tortie_bgp::{PeerConfig, RouteAttrs, Speaker, SpeakerConfig};

const REFLECTOR: u8 = 2;
const PREFIX: &str = "192.0.2.0/24";

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

/// Creates a namespace in which all of 10.77.0.0/24 is local, so that every speaker has a separate address.
fn place() -> TestNamespace {
    let namespace = TestNamespace::new("bgp");
    namespace.ip("addr add 10.77.0.1/24 dev lo");
    namespace
}

fn speaker(own: u8, peers: &[u8], adjust: impl Fn(u8, &mut PeerConfig)) -> SpeakerConfig {
    let mut config = SpeakerConfig::new(ASN, address(own));
    config.listen = vec![(address(own), 179).into()];
    for other in peers {
        let mut peer = PeerConfig::new(address(*other).into(), ASN);
        peer.source = Some(address(own).into());
        peer.connect_retry = Duration::from_secs(1);
        peer.idle_hold = (Duration::from_secs(1), Duration::from_secs(2));
        adjust(*other, &mut peer);
        config.peers.insert(format!("peer{other}"), peer);
    }
    config
}

fn bird_session(own: u8, other: u8, options: &str, channel: &str) -> String {
    format!(
        "protocol bgp peer{other} {{
          local 10.77.0.{own} as {ASN}; neighbor 10.77.0.{other} as {ASN}; strict bind yes; {options}
          connect delay time 1; connect retry time 1; error wait time 1, 2;
          ipv4 {{ import all; export all; {channel} }};
        }}\n"
    )
}

async fn announce(namespace: &TestNamespace, own: u8) -> (Speaker, InstalledRoutes) {
    let (speaker, kernel) = start(namespace, speaker(own, &[REFLECTOR], |_, _| {}), false).await;
    speaker.originate(PREFIX.parse().unwrap(), RouteAttrs::local()).await.unwrap();
    speaker.local_complete().await.unwrap();
    (speaker, kernel)
}

#[tokio::test(flavor = "multi_thread")]
async fn bird_reflects_between_ours_with_all_paths() {
    let namespace = place();
    let mut config = "router id 10.77.0.2;\nprotocol device {}\nprotocol direct { ipv4; }\n".to_owned();
    for other in [1, 3, 4] {
        config += &bird_session(REFLECTOR, other, "rr client;", "add paths tx;");
    }
    let _bird = BirdInteropRouter::start_with(&namespace, &config);
    let (first, _) = announce(&namespace, 1).await;
    let (_second, _) = announce(&namespace, 3).await;
    let listening = speaker(4, &[REFLECTOR], |_, peer| peer.add_path = true);
    let (listener, kernel) = start(&namespace, listening, false).await;
    let both: [IpAddr; 2] = [address(1).into(), address(3).into()];
    eventually("both paths have come", async || {
        let mut hops = kernel.next_hops(PREFIX);
        hops.sort();
        hops == both
    })
    .await;
    let best = listener.route(PREFIX.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(
        (best.attrs.originator, &*best.attrs.cluster_list),
        (Some(address(1)), &[address(REFLECTOR)][..])
    );
    first.withdraw(PREFIX.parse().unwrap()).await.unwrap();
    eventually("one path is gone", async || kernel.next_hops(PREFIX) == [IpAddr::from(address(3))]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ours_reflects_between_bird_and_ours() {
    let namespace = place();
    let reflecting = speaker(REFLECTOR, &[1, 3], |_, peer| peer.reflect = Some(address(REFLECTOR)));
    let (reflector, _) = start(&namespace, reflecting, false).await;
    reflector.local_complete().await.unwrap();
    let (_first, kernel) = announce(&namespace, 1).await;
    let config = format!(
        "router id 10.77.0.3;\nprotocol device {{}}\nprotocol direct {{ ipv4; }}
        protocol static {{ ipv4; route 203.0.113.0/24 blackhole; }}\n{}",
        bird_session(3, REFLECTOR, "", "")
    );
    let bird = BirdInteropRouter::start_with(&namespace, &config);
    let theirs: [IpAddr; 1] = [address(3).into()];
    eventually("ours has BIRD's route", async || kernel.next_hops("203.0.113.0/24") == theirs).await;
    eventually("BIRD has ours", async || bird.has(PREFIX)).await;
    let text = bird.birdc(&format!("show route {PREFIX} all"));
    assert!(
        text.contains("BGP.originator_id: 10.77.0.1") && text.contains("BGP.cluster_list: 10.77.0.2"),
        "{text}"
    );
    assert!(text.contains("BGP.next_hop: 10.77.0.1"), "{text}");
}

/// ```text
/// client 1 -- our reflector 2 -- BIRD 3 -- BIRD's reflector 4 -- client 5
/// ```
///
/// Both reflectors are clients of BIRD 3.
#[tokio::test(flavor = "multi_thread")]
async fn reflectors_are_clients_of_a_reflector() {
    const FAR_PREFIX: &str = "198.51.100.0/24";
    const TOP: u8 = 3;
    let namespace = place();
    let head =
        |own: u8| format!("router id 10.77.0.{own};\nprotocol device {{}}\nprotocol direct {{ ipv4; }}\n");
    let client = |own, other| bird_session(own, other, "rr client;", "");
    let _top = BirdInteropRouter::start_with(&namespace, &(head(TOP) + &client(TOP, 2) + &client(TOP, 4)));
    let right = head(4) + &bird_session(4, TOP, "", "") + &client(4, 5);
    let _right = BirdInteropRouter::start_with(&namespace, &right);
    let left = speaker(REFLECTOR, &[1, TOP], |other, peer| {
        peer.reflect = (other == 1).then(|| address(REFLECTOR));
    });
    let (left, _) = start(&namespace, left, false).await;
    left.local_complete().await.unwrap();
    let (_near, near_kernel) = announce(&namespace, 1).await;
    let (far, far_kernel) = start(&namespace, speaker(5, &[4], |_, _| {}), false).await;
    far.originate(FAR_PREFIX.parse().unwrap(), RouteAttrs::local()).await.unwrap();
    far.local_complete().await.unwrap();

    let near: [IpAddr; 1] = [address(1).into()];
    eventually("the route passes both levels", async || far_kernel.next_hops(PREFIX) == near).await;
    let route = far.route(PREFIX.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(route.attrs.originator, Some(address(1)));
    assert_eq!(*route.attrs.cluster_list, [address(4), address(TOP), address(REFLECTOR)]);
    let far: [IpAddr; 1] = [address(5).into()];
    eventually("so does the other", async || near_kernel.next_hops(FAR_PREFIX) == far).await;
}
