//! Removes and re-creates peerings. Each time exactly one session must come up and stay up.

use crate::place::{TestNamespace, eventually, pair};
use crate::story::{ASN, InteropRouter, PASSWORD, both_up, config as both_sessions, start};
use crate::{bird, frr, gobgp};
use std::net::Ipv4Addr;
use std::time::Duration;
use tortie_bgp::core::BgpPeerState;
use tortie_bgp::{PeerConfig, Speaker, SpeakerConfig};

/// Returns the number of rounds; `TORTIE_SOAK_REPEERINGS` overrides it.
fn rounds(few: u64) -> u64 {
    std::env::var("TORTIE_SOAK_REPEERINGS").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
}

fn config(own: u8, other: Option<u8>) -> SpeakerConfig {
    let mut config = SpeakerConfig::new(ASN, Ipv4Addr::new(10, 77, 0, own));
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

/// Returns how many times the session came up, if it is established.
fn established(speaker: &Speaker) -> Option<u64> {
    let status = speaker.status().unwrap();
    let peer = status.peers.first()?;
    (peer.state == BgpPeerState::Established).then_some(peer.established)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_speakers_that_both_connect_lose_no_session() {
    let (ours, theirs) = pair();
    let (first, _) = start(&ours, config(1, None), false).await;
    let (second, _) = start(&theirs, config(2, None), false).await;
    for round in 0..rounds(20) {
        // Both at the same time, so that both connect.
        let (one, other) =
            tokio::join!(first.reconfigure(config(1, Some(2))), second.reconfigure(config(2, Some(1))));
        one.unwrap();
        other.unwrap();
        eventually("the session is up at both ends", async || {
            established(&first).is_some() && established(&second).is_some()
        })
        .await;
        // Allow time for a NOTIFICATION that would end the session.
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

/// Removes and re-creates both sessions with another implementation, whose own configuration does not change.
async fn again_and_again(ours: &TestNamespace, _router: impl InteropRouter) {
    let mut without = both_sessions(None);
    without.peers.clear();
    let (speaker, _) = start(ours, without.clone(), false).await;
    for round in 0..rounds(3) {
        speaker.reconfigure(both_sessions(Some(PASSWORD))).await.unwrap();
        eventually("both sessions are up", async || {
            speaker.status().unwrap().peers.len() == 2 && both_up(&speaker).await
        })
        .await;
        // Allow time for a NOTIFICATION that would end a session.
        tokio::time::sleep(Duration::from_millis(50)).await;
        for peer in speaker.status().unwrap().peers {
            let session = (peer.state, peer.established, peer.last_error.clone());
            assert_eq!(
                session,
                (BgpPeerState::Established, 1, None),
                "round {round}: {} was lost",
                peer.name
            );
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
