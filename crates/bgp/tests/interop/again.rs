//! Peerings that are taken away and made again: each time one session comes up, and it stays.

use crate::place::{eventually, pair};
use crate::story::{ASN, start};
use std::net::Ipv4Addr;
use std::time::Duration;
use tortie_bgp::core::PeerState;
use tortie_bgp::{Config, PeerConfig, Speaker};

/// How often; `TORTIE_SOAK_REPEERINGS` asks for more.
fn rounds() -> u64 {
    std::env::var("TORTIE_SOAK_REPEERINGS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

fn config(own: u8, other: Option<u8>) -> Config {
    let mut config = Config::new(ASN, Ipv4Addr::new(10, 77, 0, own));
    config.listen = vec!["0.0.0.0:179".parse().unwrap()];
    if let Some(other) = other {
        let peer = PeerConfig {
            connect_retry: Duration::from_secs(1),
            idle_hold: (Duration::from_millis(50), Duration::from_millis(100)),
            ..PeerConfig::new(Ipv4Addr::new(10, 77, 0, other).into(), ASN)
        };
        config.peers.insert("other".to_owned(), peer);
    }
    config
}

/// How often the session came up, if it is up.
fn established(speaker: &Speaker) -> Option<u64> {
    let status = speaker.status().unwrap();
    let peer = status.peers.first()?;
    (peer.state == PeerState::Established).then_some(peer.established)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_speakers_that_both_connect_lose_no_session() {
    let (ours, theirs) = pair();
    let (first, _) = start(&ours, config(1, None), false).await;
    let (second, _) = start(&theirs, config(2, None), false).await;
    for round in 0..rounds() {
        // Both at once, so that both connect.
        let (one, other) =
            tokio::join!(first.reconfigure(config(1, Some(2))), second.reconfigure(config(2, Some(1))));
        one.unwrap();
        other.unwrap();
        eventually("the session is up at both ends", async || {
            established(&first).is_some() && established(&second).is_some()
        })
        .await;
        // What would end it has had time to arrive.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(
            (established(&first), established(&second)),
            (Some(1), Some(1)),
            "round {round}: a session was lost"
        );
        let (one, other) =
            tokio::join!(first.reconfigure(config(1, None)), second.reconfigure(config(2, None)));
        one.unwrap();
        other.unwrap();
    }
}
