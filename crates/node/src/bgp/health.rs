//! Decides whether BGP is far enough for the node to count as ready.

use std::fmt;
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
    let peers: Vec<&PeerStatus> =
        list_lasting_peers(status).filter(|peer| v6.is_none_or(|v6| peer.address.is_ipv6() == v6)).collect();
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

/// Returns the peers that count: workloads with BGP sessions may come and go.
fn list_lasting_peers(status: &SpeakerStatus) -> impl Iterator<Item = &PeerStatus> {
    status.peers.iter().filter(|peer| !peer.name.starts_with("Local_"))
}

/// The number of established sessions, and the peers without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    total: usize,
    /// The peers, each with its last error.
    down: Vec<(IpAddr, Option<String>)>,
}

impl SessionSummary {
    pub fn new(status: &SpeakerStatus) -> SessionSummary {
        let down = list_lasting_peers(status).filter(|peer| peer.state != BgpPeerState::Established);
        SessionSummary {
            total: list_lasting_peers(status).count(),
            down: down.map(|peer| (peer.address, peer.last_error.clone())).collect(),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.down.is_empty()
    }
}

impl fmt::Display for SessionSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_LISTED_PEERS: usize = 5;
        if self.total == 0 {
            return f.write_str("no peers");
        }
        write!(f, "{} of {} sessions established", self.total - self.down.len(), self.total)?;
        for (index, (address, error)) in self.down.iter().take(MAX_LISTED_PEERS).enumerate() {
            write!(f, "{}{address}", if index == 0 { "; down: " } else { ", " })?;
            if let Some(error) = error {
                write!(f, " ({error})")?;
            }
        }
        match self.down.len().saturating_sub(MAX_LISTED_PEERS) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
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
pub fn describe_near_limit(status: &SpeakerStatus) -> Option<String> {
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
    fn the_summary_counts_sessions_and_names_peers() {
        assert_eq!(SessionSummary::new(&status(&[])).to_string(), "no peers");
        let mut status = status(&["10.0.0.2", "10.0.0.3", "fd00::2"]);
        for peer in &mut status.peers {
            peer.state = BgpPeerState::Established;
        }
        let summary = SessionSummary::new(&status);
        assert!(summary.is_complete());
        assert_eq!(summary.to_string(), "3 of 3 sessions established");
        status.peers[1].state = BgpPeerState::Active;
        status.peers[1].last_error = Some("connection refused".to_owned());
        let summary = SessionSummary::new(&status);
        assert!(!summary.is_complete());
        assert_eq!(summary.to_string(), "2 of 3 sessions established; down: 10.0.0.3 (connection refused)");
    }

    #[test]
    fn a_long_list_of_peers_is_shortened() {
        let addresses: Vec<String> = (1..=9).map(|number| format!("10.0.0.{number}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let text = SessionSummary::new(&status(&addresses)).to_string();
        assert!(text.starts_with("0 of 9 sessions established; down: 10.0.0.1, "), "{text}");
        assert!(text.ends_with(", 10.0.0.5 and 4 more"), "{text}");
    }

    #[test]
    fn a_peer_near_its_limit_is_named() {
        let mut status = status(&["10.0.0.2", "10.0.0.3"]);
        assert_eq!(describe_near_limit(&status), None);
        status.peers[1].near_limit = true;
        assert!(describe_near_limit(&status).unwrap().starts_with("10.0.0.3: more than 80 %"));
    }

    #[test]
    fn it_is_said_why_a_session_is_down() {
        let mut status = status(&["10.0.0.2", "10.0.0.3"]);
        status.peers[1].last_error = Some("secret bgp/ext not found".to_owned());
        let expected = "BGP not established with 10.0.0.2,10.0.0.3\n10.0.0.3: secret bgp/ext not found";
        assert_eq!(judge(&status, 60, None), Err(expected.to_owned()));
    }
}
