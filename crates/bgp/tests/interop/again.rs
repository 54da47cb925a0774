//! Peerings that are taken away and made again: each time one session comes up, and it stays.

use crate::place::{Namespace, eventually, pair};
use crate::story::{ASN, PASSWORD, Router, both_up, config as both_sessions, start};
use crate::{bird, frr, gobgp};
use std::net::Ipv4Addr;
use std::time::Duration;
use tortie_bgp::core::PeerState;
use tortie_bgp::{Config, PeerConfig, Speaker};

/// How often; `TORTIE_SOAK_REPEERINGS` asks for more.
fn rounds(few: u64) -> u64 {
    std::env::var("TORTIE_SOAK_REPEERINGS").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
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
    for round in 0..rounds(20) {
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

/// Takes both sessions with another implementation away and makes them again, which it learns from us alone.
async fn again_and_again(ours: &Namespace, _router: impl Router) {
    let mut without = both_sessions(None);
    without.peers.clear();
    let (speaker, _) = start(ours, without.clone(), false).await;
    for round in 0..rounds(3) {
        speaker.reconfigure(both_sessions(Some(PASSWORD))).await.unwrap();
        eventually("both sessions are up", async || {
            speaker.status().unwrap().peers.len() == 2 && both_up(&speaker).await
        })
        .await;
        // What would end one has had time to arrive.
        tokio::time::sleep(Duration::from_millis(50)).await;
        for peer in speaker.status().unwrap().peers {
            let session = (peer.state, peer.established, peer.last_error.clone());
            assert_eq!(session, (PeerState::Established, 1, None), "round {round}: {} was lost", peer.name);
        }
        speaker.reconfigure(without.clone()).await.unwrap();
        eventually("no session is left", async || speaker.status().unwrap().peers.is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeering_with_bird_loses_no_session() {
    let (ours, theirs) = pair();
    again_and_again(&ours, bird::running(&theirs)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeering_with_frr_loses_no_session() {
    let (ours, theirs) = pair();
    again_and_again(&ours, frr::running(&theirs)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeering_with_gobgp_loses_no_session() {
    let (ours, theirs) = pair();
    again_and_again(&ours, gobgp::running(&theirs)).await;
}
