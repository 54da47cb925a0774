//! Decides whether BGP is far enough for the node to count as ready.

use std::net::IpAddr;
use std::time::Duration;
use tortie_bgp::core::{BgpPeerState, PeerStatus, SpeakerStatus};

/// Default time after the start during which all sessions have to be established.
pub const DEFAULT_SESSION_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// Checks the sessions of one family, or of both. Without peers BGP is ready. Within `patience` of the start all
/// sessions have to be established, later one is enough. The error names the missing sessions.
pub fn check_sessions(
    status: &SpeakerStatus,
    v6: Option<bool>,
    patience: Duration,
) -> Result<(), BgpNotReady> {
    // Workloads with BGP sessions may come and go, so they do not count.
    let peers = status.peers.iter().filter(|peer| !peer.name.starts_with("Local_"));
    let peers: Vec<&PeerStatus> =
        peers.filter(|peer| v6.is_none_or(|v6| peer.address.is_ipv6() == v6)).collect();
    if peers.is_empty() {
        return Ok(());
    }
    let early = status.now < patience;
    if early && status.restarting {
        return Err(BgpNotReady::Restarting);
    }
    let down = peers.iter().filter(|peer| peer.state != BgpPeerState::Established);
    let down: Vec<_> = down.map(|peer| (peer.address, peer.last_error.clone())).collect();
    if down.len() == peers.len() || (early && !down.is_empty()) {
        return Err(BgpNotReady::NotEstablished { down });
    }
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BgpNotReady {
    #[error("graceful restart in progress")]
    Restarting,
    #[error("BGP not established with {}", describe_down(down))]
    NotEstablished {
        /// The peers, each with its last error.
        down: Vec<(IpAddr, Option<String>)>,
    },
}

fn describe_down(down: &[(IpAddr, Option<String>)]) -> String {
    let addresses: Vec<String> = down.iter().map(|(address, _)| address.to_string()).collect();
    let errors = down.iter().filter_map(|(address, error)| Some(format!("\n{address}: {}", error.as_ref()?)));
    addresses.join(",") + &errors.collect::<String>()
}

/// Returns a warning with the peers whose number of routes is close to the limit at which the session is closed.
pub fn near_limit_warning(status: &SpeakerStatus) -> Option<String> {
    let near: Vec<String> =
        status.peers.iter().filter(|peer| peer.near_limit).map(|peer| peer.address.to_string()).collect();
    if near.is_empty() {
        return None;
    }
    let named = near.join(", ");
    Some(format!(
        "{named}: more than 80 % of the routes allowed are there; raise --bgp-max-prefixes or filter"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tortie_bgp::core::SpeakerCore;
    use tortie_bgp::{PeerConfig, SpeakerConfig};

    fn status(peers: &[&str]) -> SpeakerStatus {
        let mut config = SpeakerConfig::new(64512, Ipv4Addr::new(10, 0, 0, 1));
        for (number, address) in peers.iter().enumerate() {
            let peer = PeerConfig::new(address.parse().unwrap(), 64512);
            config.peers.insert(format!("Node_{number}"), peer);
        }
        SpeakerCore::new(config, false, Duration::ZERO).unwrap().status(Duration::ZERO)
    }

    fn judge(status: &SpeakerStatus, age: u64, v6: Option<bool>) -> Result<(), String> {
        let status = SpeakerStatus { now: Duration::from_secs(age), ..status.clone() };
        let checked = check_sessions(&status, v6, DEFAULT_SESSION_GRACE_PERIOD);
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn all_peers_at_first_and_one_later() {
        assert_eq!(judge(&status(&[]), 0, None), Ok(()));
        let mut status = status(&["10.0.0.2", "10.0.0.3", "fd00::2"]);
        let missing = |text: &str| Err(format!("BGP not established with {text}"));
        assert_eq!(judge(&status, 0, None), missing("10.0.0.2,10.0.0.3,fd00::2"));
        assert_eq!(judge(&status, 60, None), missing("10.0.0.2,10.0.0.3,fd00::2"));
        status.peers[0].state = BgpPeerState::Established;
        assert_eq!(judge(&status, 29, None), missing("10.0.0.3,fd00::2"));
        assert_eq!(judge(&status, 29, Some(false)), missing("10.0.0.3"));
        assert_eq!(judge(&status, 30, None), Ok(()));
        assert_eq!(judge(&status, 30, Some(false)), Ok(()));
        assert_eq!(judge(&status, 30, Some(true)), missing("fd00::2"));
        status.peers.iter_mut().for_each(|peer| peer.state = BgpPeerState::Established);
        assert_eq!(judge(&status, 0, None), Ok(()));
        status.restarting = true;
        assert!(judge(&status, 0, None).unwrap_err().contains("graceful restart"));
        assert_eq!(judge(&status, 30, None), Ok(()));
    }

    #[test]
    fn a_peer_near_its_limit_is_named() {
        let mut status = status(&["10.0.0.2", "10.0.0.3"]);
        assert_eq!(near_limit_warning(&status), None);
        status.peers[1].near_limit = true;
        assert!(near_limit_warning(&status).unwrap().starts_with("10.0.0.3: more than 80 %"));
    }

    #[test]
    fn it_is_said_why_a_session_is_down() {
        let mut status = status(&["10.0.0.2", "10.0.0.3"]);
        status.peers[1].last_error = Some("secret bgp/ext not found".to_owned());
        let expected = "BGP not established with 10.0.0.2,10.0.0.3\n10.0.0.3: secret bgp/ext not found";
        assert_eq!(judge(&status, 60, None), Err(expected.to_owned()));
    }
}
