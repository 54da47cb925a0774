//! A peer floods the speaker over real sockets in every possible way. The session of another peer with a short hold
//! time must stay up, and the speaker must respond to queries.

use crate::place::{NamespaceExt, TestNamespace, eventually, pair};
use crate::story::{ASN, start};
use rustbgpd_wire::{
    AddPathFamily, AddPathMode, Afi, Capability, Message, OpenMessage, Safi, encode_message,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tortie_bgp::core::{BgpPeerState, DialRequest};
use tortie_bgp::{PeerConfig, RouteAttrs, Speaker, SpeakerConfig};

/// Duration of each flood.
const FLOOD_DURATION: Duration = Duration::from_secs(4);
/// Hold time in seconds of the session that must stay up.
const HOLD_TIME_SECONDS: u16 = 12;

fn config(own: u8, peers: &[(&str, u8)]) -> SpeakerConfig {
    let mut config = SpeakerConfig::new(ASN, Ipv4Addr::new(10, 77, 0, own));
    config.listen = vec!["0.0.0.0:179".parse().unwrap()];
    for (name, last) in peers {
        let peer = PeerConfig {
            hold_time: HOLD_TIME_SECONDS,
            connect_retry: Duration::from_secs(1),
            idle_hold: (Duration::from_secs(1), Duration::from_secs(2)),
            limit_hold: Duration::from_secs(1),
            add_path: true,
            passive: *name == "flooder",
            ..PeerConfig::new(Ipv4Addr::new(10, 77, 0, *last).into(), ASN)
        };
        config.peers.insert((*name).to_owned(), peer);
    }
    config
}

/// Connects to the speaker from the address of the simulated peer.
pub async fn call(namespace: &TestNamespace) -> Option<TcpStream> {
    let dial = DialRequest {
        to: SocketAddr::new("10.77.0.1".parse().unwrap(), 179),
        from: Some("10.77.0.66".parse().unwrap()),
        password: None,
        ttl_security: None,
    };
    let (_patience, never) = oneshot::channel();
    namespace.sockets().dial(&dial, never).await.ok().flatten()
}

/// Connects and sends OPEN and KEEPALIVE.
async fn session(namespace: &TestNamespace) -> Option<TcpStream> {
    let mut stream = call(namespace).await?;
    let add_path = AddPathFamily { afi: Afi::Ipv4, safi: Safi::Unicast, send_receive: AddPathMode::Both };
    let open = OpenMessage {
        version: 4,
        my_as: ASN as u16,
        hold_time: HOLD_TIME_SECONDS,
        bgp_identifier: Ipv4Addr::new(10, 77, 0, 66),
        capabilities: vec![
            Capability::MultiProtocol { afi: Afi::Ipv4, safi: Safi::Unicast },
            Capability::FourOctetAs { asn: ASN },
            Capability::RouteRefresh,
            Capability::AddPath(vec![add_path]),
        ],
    };
    for message in [Message::Open(open), Message::Keepalive] {
        stream.write_all(&encode_message(&message).unwrap()).await.ok()?;
    }
    Some(stream)
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (19 + body.len() as u16).to_be_bytes();
    [&[0xff; 16][..], &length, &[kind], body].concat()
}

/// Builds an UPDATE with 400 paths, all to one prefix or each to its own.
fn update(first: u32, one_prefix: bool) -> Vec<u8> {
    let attributes = [0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 3, 4, 10, 77, 0, 66, 0x40, 5, 4, 0, 0, 0, 100];
    let paths = (first..first + 400).flat_map(|number| {
        let [_, a, b, c] = if one_prefix { [0, 192, 0, 2] } else { number.to_be_bytes() };
        let id = if one_prefix { number } else { 1 };
        [&id.to_be_bytes()[..], &[24, a, b, c]].concat()
    });
    let mut body = vec![0, 0, 0, attributes.len() as u8];
    body.extend(attributes);
    body.extend(paths);
    message(2, &body)
}

/// Sends for the duration of the flood and reconnects whenever the connection is closed. `reads` selects whether it
/// reads.
async fn send(namespace: &TestNamespace, reads: bool, pieces: usize, mut next: impl FnMut(u32) -> Vec<u8>) {
    let end = Instant::now() + FLOOD_DURATION;
    let mut number = 0;
    while Instant::now() < end {
        let Some(stream) = session(namespace).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let (mut read, mut write) = stream.into_split();
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 16];
            while reads && read.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
            // Keep the read half, otherwise the connection would be reset.
            std::future::pending::<()>().await;
        });
        let sending = async {
            while Instant::now() < end {
                number += 1;
                for piece in next(number * 400).chunks(pieces) {
                    if write.write_all(piece).await.is_err() {
                        return;
                    }
                }
            }
        };
        let _ = tokio::time::timeout(FLOOD_DURATION, sending).await;
        reader.abort();
    }
}

/// Sends on one session as many paths to one prefix as once blocked the speaker for minutes, unless the session is
/// closed before.
async fn send_a_quarter_million_paths(namespace: &TestNamespace) {
    let Some(mut stream) = session(namespace).await else { return };
    for first in (0..250_000).step_by(400) {
        if stream.write_all(&update(first, true)).await.is_err() {
            return;
        }
    }
}

fn last_error(speaker: &Speaker, name: &str) -> String {
    let peers = speaker.status().unwrap().peers;
    let error = peers.into_iter().find(|peer| &*peer.name == name).and_then(|peer| peer.last_error);
    error.unwrap_or_default()
}

async fn others_are_well(speaker: &Speaker, flood: &str) {
    let status = speaker.status().unwrap();
    let good = status.peers.iter().find(|peer| &*peer.name == "good").unwrap();
    assert_eq!((good.state, good.established), (BgpPeerState::Established, 1), "after {flood}: {good:?}");
    speaker.route("198.51.100.0/24".parse().unwrap()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_flood_leaves_the_other_session_up() {
    let (ours, theirs) = pair();
    theirs.ip("addr add 10.77.0.66/24 dev eth0");
    let (speaker, _kernel) = start(&ours, config(1, &[("good", 2), ("flooder", 66)]), false).await;
    let (good, _other_kernel) = start(&theirs, config(2, &[("node", 1)]), false).await;
    good.originate("198.51.100.0/24".parse().unwrap(), RouteAttrs::local()).await.unwrap();
    good.local_complete().await.unwrap();
    eventually("the route is there", async || {
        speaker.route("198.51.100.0/24".parse().unwrap()).await.unwrap().is_some()
    })
    .await;

    send(&theirs, true, usize::MAX, |number| update(number % 400_000, false)).await;
    others_are_well(&speaker, "a flood of updates").await;
    send(&theirs, true, usize::MAX, |number| update(number, true)).await;
    others_are_well(&speaker, "a flood of paths to one prefix").await;
    // The peer may be blocked when it connects.
    eventually("it is cut off at the limit", async || {
        let patience = Duration::from_secs(u64::from(HOLD_TIME_SECONDS) * 3);
        let _ = tokio::time::timeout(patience, send_a_quarter_million_paths(&theirs)).await;
        others_are_well(&speaker, "a quarter of a million paths to one prefix").await;
        last_error(&speaker, "flooder").contains("more than 64 paths to one prefix")
    })
    .await;
    send(&theirs, true, usize::MAX, |_| message(5, &[0, 1, 0, 1]).repeat(1000)).await;
    others_are_well(&speaker, "a flood of route refreshes").await;
    send(&theirs, false, usize::MAX, |_| message(5, &[0, 1, 0, 1]).repeat(1000)).await;
    others_are_well(&speaker, "a peer that never reads").await;
    send(&theirs, true, 1, |number| update(number % 400_000, false)).await;
    others_are_well(&speaker, "messages byte by byte").await;

    let end = Instant::now() + FLOOD_DURATION;
    let mut half_open = Vec::new();
    while Instant::now() < end {
        if let Some(mut stream) = call(&theirs).await {
            let _ = stream.write_all(&[0xff; 7]).await;
            half_open.push(stream);
        }
        // Some stay open, the others are closed immediately.
        half_open.truncate(200);
    }
    drop(half_open);
    others_are_well(&speaker, "a flood of connections").await;

    // The flooding peer can connect again.
    let _stream = loop {
        if let Some(stream) = session(&theirs).await {
            break stream;
        }
    };
    let status = speaker.status().unwrap();
    assert!(status.peers.iter().any(|peer| &*peer.name == "flooder"));
}
