//! Who speaks BGP for this node, and what it answers.

use std::path::PathBuf;
use tortie_bgp::bird::Control;
use tortie_bgp::core::{RouteStatus, Status};
use tortie_bgp::{Family, Speaker};

/// What an operator chooses with `CALICO_NETWORKING_BACKEND` and `TORTIE_BIRD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Our own speaker.
    Speaker,
    /// A BIRD that somebody else runs.
    Bird,
    /// Nobody.
    Off,
}

impl Choice {
    /// `bird`, which manifests of Calico say, means that BGP is spoken: who does is asked for separately.
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

/// Where BIRD finds its configuration and listens for commands.
#[derive(Clone, Debug)]
pub struct BirdPaths {
    pub config: PathBuf,
    pub socket: PathBuf,
}

/// Both answer alike.
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

    /// All paths to all prefixes of a family.
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
