//! Tests two of our speakers over real sockets: features that need a kernel but no third-party router.

use crate::floods::call;
use crate::place::{NamespaceExt, TestNamespace, eventually, pair};
use crate::story::{ASN, InstalledRoutes, start};
use rustbgpd_wire::{Afi, Capability, Message, OpenMessage, Safi, encode_message};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tortie_bgp::core::BgpPeerState;
use tortie_bgp::{PeerConfig, RouteAttrs, Speaker, SpeakerConfig, SpeakerError};

/// Returns the configuration of one end with sessions over IPv4 and IPv6.
fn end(own: u8, other: u8, adjust: impl Fn(&mut PeerConfig)) -> SpeakerConfig {
    let mut config = SpeakerConfig::new(ASN, Ipv4Addr::new(10, 77, 0, own));
    config.listen = vec!["0.0.0.0:179".parse().unwrap(), "[::]:179".parse().unwrap()];
    for (name, address) in [("v4", format!("10.77.0.{other}")), ("v6", format!("fd77::{other}"))] {
        let mut peer = PeerConfig::new(address.parse().unwrap(), ASN);
        peer.connect_retry = Duration::from_secs(1);
        peer.idle_hold = (Duration::from_secs(1), Duration::from_secs(2));
        adjust(&mut peer);
        config.peers.insert(name.to_owned(), peer);
    }
    config
}

async fn up(speaker: &Speaker) -> bool {
    let status = speaker.status().unwrap();
    status.peers.iter().all(|peer| peer.state == BgpPeerState::Established)
}

async fn none_up(speaker: &Speaker) -> bool {
    let status = speaker.status().unwrap();
    status.peers.iter().all(|peer| peer.state != BgpPeerState::Established)
}

#[tokio::test(flavor = "multi_thread")]
async fn ttl_security_admits_only_neighbours() {
    let (ours, theirs) = pair();
    let (first, _) = start(&ours, end(1, 2, |peer| peer.ttl_security = Some(1)), false).await;
    let (second, _) = start(&theirs, end(2, 1, |_| {}), false).await;
    // The second speaker sends with the default TTL, which does not prove that it is adjacent.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(none_up(&first).await);
    second.reconfigure(end(2, 1, |peer| peer.ttl_security = Some(1))).await.unwrap();
    eventually("both secure their sessions", async || up(&first).await && up(&second).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_must_agree() {
    let (ours, theirs) = pair();
    let with = |password: Option<&'static str>| {
        move |peer: &mut PeerConfig| peer.password = password.map(str::to_owned)
    };
    let (first, _) = start(&ours, end(1, 2, with(Some("one"))), false).await;
    let (second, _) = start(&theirs, end(2, 1, with(None)), false).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(none_up(&first).await);
    second.reconfigure(end(2, 1, with(Some("two")))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(none_up(&first).await);
    eventually("it is said what may be wrong", async || {
        let peers = first.status().unwrap().peers;
        let hint = "no answer to our SYN; is the password right?";
        peers.iter().all(|peer| peer.last_error.as_deref() == Some(hint))
    })
    .await;
    second.reconfigure(end(2, 1, with(Some("one")))).await.unwrap();
    eventually("the passwords agree", async || up(&first).await && up(&second).await).await;
    assert!(
        first.status().unwrap().peers.iter().all(|peer| peer.last_error.is_none()),
        "an old error is shown"
    );
    // A password that is removed on both sides is no longer used.
    first.reconfigure(end(1, 2, with(None))).await.unwrap();
    second.reconfigure(end(2, 1, with(None))).await.unwrap();
    eventually("no password agrees too", async || up(&first).await && up(&second).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_come_from_the_address_that_is_given() {
    let (ours, theirs) = pair();
    ours.ip("addr add 10.77.0.11/24 dev eth0");
    let mut first = end(1, 2, |_| {});
    first.peers.remove("v6");
    first.peers.get_mut("v4").unwrap().source = Some("10.77.0.11".parse().unwrap());
    let mut second = end(2, 11, |peer| peer.passive = true);
    second.peers.remove("v6");
    let (first, _) = start(&ours, first, false).await;
    let (second, kernel) = start(&theirs, second, false).await;
    first.originate("192.0.2.0/24".parse().unwrap(), RouteAttrs::local()).await.unwrap();
    eventually("the session is up", async || up(&first).await && up(&second).await).await;
    let from: IpAddr = "10.77.0.11".parse().unwrap();
    eventually("the route leads there", async || kernel.next_hops("192.0.2.0/24") == [from]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_names_a_port_in_use() {
    let (ours, _theirs) = pair();
    let (_first, _) = start(&ours, end(1, 2, |_| {}), false).await;
    let error = Speaker::start(end(1, 2, |_| {}), ours.sockets(), false).await.unwrap_err();
    assert!(matches!(&error, SpeakerError::Listen { address, .. } if address.port() == 179), "{error}");
}

/// More routes than the socket buffers can hold.
const ROUTE_COUNT: u32 = 300_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_stops_reading_delays_nobody() {
    let (ours, theirs) = pair();
    theirs.ip("addr add 10.77.0.66/24 dev eth0");
    let mut config = end(1, 2, |_| {});
    config.peers.remove("v6");
    let mut deaf = PeerConfig::new("10.77.0.66".parse().unwrap(), ASN);
    deaf.passive = true;
    config.peers.insert("deaf".to_owned(), deaf);
    let (first, _) = start(&ours, config, false).await;
    for number in 0..ROUTE_COUNT {
        let prefix = ipnet::Ipv4Net::new(Ipv4Addr::from(0x0b00_0000 + number), 32).unwrap();
        // Different attributes produce many messages.
        first
            .originate(prefix.into(), RouteAttrs { med: Some(number / 4), ..RouteAttrs::local() })
            .await
            .unwrap();
    }
    let mut stream = deaf_peer(&theirs).await;
    eventually("the deaf peer's session is up", async || {
        let status = first.status().unwrap();
        status.peers.iter().any(|peer| &*peer.name == "deaf" && peer.state == BgpPeerState::Established)
    })
    .await;

    let mut other = end(2, 1, |_| {});
    other.peers.remove("v6");
    let (second, _kernel): (Speaker, InstalledRoutes) = start(&theirs, other, false).await;
    eventually("the other peer has all", async || second.status().unwrap().routes.v4 == ROUTE_COUNT as usize)
        .await;
    let status = first.status().unwrap();
    let advertised = status.peers.iter().find(|peer| &*peer.name == "deaf").unwrap().prefixes_out.v4;
    assert!(advertised < ROUTE_COUNT, "the deaf peer took all {advertised}; it was no test");
    // When it reads again, it receives the rest.
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 20];
        while stream.read(&mut buffer).await.unwrap() > 0 {}
    });
    eventually("the deaf peer hears again and catches up", async || {
        let status = first.status().unwrap();
        status.peers.iter().any(|peer| &*peer.name == "deaf" && peer.prefixes_out.v4 == ROUTE_COUNT)
    })
    .await;
    reader.abort();
}

/// Brings up a session as a peer that then stops reading.
async fn deaf_peer(namespace: &TestNamespace) -> tokio::net::TcpStream {
    let mut stream = call(namespace).await.unwrap();
    let open = OpenMessage {
        version: 4,
        my_as: ASN as u16,
        hold_time: 0,
        bgp_identifier: Ipv4Addr::new(10, 77, 0, 66),
        capabilities: vec![
            Capability::MultiProtocol { afi: Afi::Ipv4, safi: Safi::Unicast },
            Capability::FourOctetAs { asn: ASN },
        ],
    };
    for message in [Message::Open(open), Message::Keepalive] {
        stream.write_all(&encode_message(&message).unwrap()).await.unwrap();
    }
    stream
}
