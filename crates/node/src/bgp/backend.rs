//! The BGP backend of the node, our own speaker or BIRD, with a common interface for queries.

use std::path::PathBuf;
use tortie_bgp::bird::Control;
use tortie_bgp::core::{RouteStatus, Status};
use tortie_bgp::{Family, Speaker};

/// The backend that the operator selects with `CALICO_NETWORKING_BACKEND` and `TORTIE_BIRD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Our own speaker.
    Speaker,
    /// A BIRD that runs beside the node.
    Bird,
    /// BGP is disabled.
    Off,
}

impl Choice {
    /// Selects the backend. `bird`, the usual value in Calico's manifests, only enables BGP; `by_bird` selects the
    /// implementation.
    pub fn of(backend: &str, by_bird: bool) -> Choice {
        match backend {
            "none" | "vxlan" => Choice::Off,
            _ if by_bird => Choice::Bird,
            _ => Choice::Speaker,
        }
    }

    pub fn speaks(self) -> bool {
        self != Choice::Off
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
pub enum Backend {
    Speaker(Speaker),
    Bird { control: Control, asn: u32 },
}

impl Backend {
    pub async fn status(&self) -> Result<Status, String> {
        match self {
            Backend::Speaker(speaker) => speaker.status().map_err(|error| error.to_string()),
            Backend::Bird { control, asn } => control.status(*asn).await.map_err(|error| error.to_string()),
        }
    }

    /// Returns all paths to all prefixes of a family.
    pub async fn routes(&self, family: Family) -> Result<Vec<RouteStatus>, String> {
        match self {
            Backend::Speaker(speaker) => speaker.routes(family).await.map_err(|error| error.to_string()),
            Backend::Bird { control, .. } => control.routes(family).await.map_err(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_is_ours_unless_somebody_asks_for_another() {
        for (value, by_bird, choice) in [
            ("", false, Choice::Speaker),
            ("tortie", false, Choice::Speaker),
            ("bird", false, Choice::Speaker),
            ("bird", true, Choice::Bird),
            ("", true, Choice::Bird),
            ("none", true, Choice::Off),
            ("vxlan", false, Choice::Off),
        ] {
            assert_eq!(Choice::of(value, by_bird), choice, "{value:?} {by_bird}");
        }
    }
}
