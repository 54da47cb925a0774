//! The BGP backend of the node, our own speaker or BIRD, with a common interface for queries.

use super::secrets::PasswordError;
use std::path::PathBuf;
use tortie_bgp::bird::{BirdControl, ControlError};
use tortie_bgp::core::{RouteStatus, SpeakerStatus};
use tortie_bgp::{BgpFamily, Speaker, SpeakerError};

/// The backend that the operator selects with `CALICO_NETWORKING_BACKEND` and `TORTIE_BIRD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendChoice {
    /// Our own speaker.
    Speaker,
    /// A BIRD that runs beside the node.
    Bird,
    /// BGP is disabled.
    Off,
}

impl BackendChoice {
    /// Selects the backend. `bird`, the usual value in Calico's manifests, only enables BGP; `by_bird` selects the
    /// implementation.
    pub fn new(backend: &str, by_bird: bool) -> BackendChoice {
        match backend {
            "none" | "vxlan" => BackendChoice::Off,
            _ if by_bird => BackendChoice::Bird,
            _ => BackendChoice::Speaker,
        }
    }

    pub fn speaks(self) -> bool {
        self != BackendChoice::Off
    }
}

/// Paths of BIRD's configuration and control socket.
#[derive(Clone, Debug)]
pub struct BirdPaths {
    pub config: PathBuf,
    pub socket: PathBuf,
}

/// Why a backend does not follow the plan, or does not answer a query.
#[derive(Debug, thiserror::Error)]
pub enum BgpBackendError {
    #[error("the node has no IPv4 address to be its router ID; set CALICO_ROUTER_ID")]
    NoRouterId,
    #[error(transparent)]
    Speaker(#[from] SpeakerError),
    #[error(transparent)]
    Bird(#[from] ControlError),
    #[error(
        "BGP is left to BIRD (TORTIE_BIRD), but {source}. Start BIRD 2 with -c {} -s {}, or unset the variable to let \
         the node speak BGP itself",
        config.display(),
        socket.display()
    )]
    BirdDown { source: ControlError, config: PathBuf, socket: PathBuf },
    #[error("BIRD keeps its previous configuration: {0}")]
    PendingPassword(PasswordError),
    #[error("{}: {source}", path.display())]
    ConfigFile { path: PathBuf, source: std::io::Error },
}

/// A running backend. Both variants answer the same queries.
#[derive(Clone, Debug)]
pub enum BgpBackend {
    Speaker(Speaker),
    Bird { control: BirdControl, asn: u32 },
}

impl BgpBackend {
    pub async fn status(&self) -> Result<SpeakerStatus, BgpBackendError> {
        Ok(match self {
            BgpBackend::Speaker(speaker) => speaker.status()?,
            BgpBackend::Bird { control, asn } => control.status(*asn).await?,
        })
    }

    /// Returns all paths to all prefixes of a family.
    pub async fn routes(&self, family: BgpFamily) -> Result<Vec<RouteStatus>, BgpBackendError> {
        Ok(match self {
            BgpBackend::Speaker(speaker) => speaker.routes(family).await?,
            BgpBackend::Bird { control, .. } => control.routes(family).await?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_selects_the_backend() {
        for (value, by_bird, choice) in [
            ("", false, BackendChoice::Speaker),
            ("tortie", false, BackendChoice::Speaker),
            ("bird", false, BackendChoice::Speaker),
            ("bird", true, BackendChoice::Bird),
            ("", true, BackendChoice::Bird),
            ("none", true, BackendChoice::Off),
            ("vxlan", false, BackendChoice::Off),
        ] {
            assert_eq!(BackendChoice::new(value, by_bird), choice, "{value:?} {by_bird}");
        }
    }
}
