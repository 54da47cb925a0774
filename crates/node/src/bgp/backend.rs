//! The BGP backend of the node, our own speaker or BIRD, with a common interface for queries.

use std::path::PathBuf;
use tortie_bgp::bird::BirdControl;
use tortie_bgp::core::{RouteStatus, SpeakerStatus};
use tortie_bgp::{BgpFamily, Speaker};

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
    pub fn of(backend: &str, by_bird: bool) -> BackendChoice {
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

/// A running backend. Both variants answer the same queries.
#[derive(Clone, Debug)]
pub enum BgpBackend {
    Speaker(Speaker),
    Bird { control: BirdControl, asn: u32 },
}

impl BgpBackend {
    pub async fn status(&self) -> Result<SpeakerStatus, String> {
        match self {
            BgpBackend::Speaker(speaker) => speaker.status().map_err(|error| error.to_string()),
            BgpBackend::Bird { control, asn } => {
                control.status(*asn).await.map_err(|error| error.to_string())
            }
        }
    }

    /// Returns all paths to all prefixes of a family.
    pub async fn routes(&self, family: BgpFamily) -> Result<Vec<RouteStatus>, String> {
        match self {
            BgpBackend::Speaker(speaker) => speaker.routes(family).await.map_err(|error| error.to_string()),
            BgpBackend::Bird { control, .. } => {
                control.routes(family).await.map_err(|error| error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_is_ours_unless_somebody_asks_for_another() {
        for (value, by_bird, choice) in [
            ("", false, BackendChoice::Speaker),
            ("tortie", false, BackendChoice::Speaker),
            ("bird", false, BackendChoice::Speaker),
            ("bird", true, BackendChoice::Bird),
            ("", true, BackendChoice::Bird),
            ("none", true, BackendChoice::Off),
            ("vxlan", false, BackendChoice::Off),
        ] {
            assert_eq!(BackendChoice::of(value, by_bird), choice, "{value:?} {by_bird}");
        }
    }
}
