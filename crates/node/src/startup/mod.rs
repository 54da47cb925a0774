//! What a node does before it carries workloads: it finds out who it is, says so in the store, and makes sure that what
//! every cluster has is there.

mod defaults;
mod detect;
mod felix;
mod interfaces;
mod name;
mod pools;
mod register;

pub use felix::FelixSettings;
pub use name::node_name;
pub use register::{Compared, refresh_addresses, register};

use std::collections::BTreeMap;

/// The environment, given rather than read, so that tests can say what it is.
#[derive(Clone, Debug, Default)]
pub struct Variables(pub BTreeMap<String, String>);

impl Variables {
    pub fn of_process() -> Variables {
        Variables(std::env::vars().collect())
    }

    /// The value, trimmed; empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map(|value| value.trim()).unwrap_or_default()
    }

    /// As the reference reads switches: anything that is not clearly no means yes.
    pub fn flag(&self, name: &str, default: bool) -> bool {
        match self.get(name).to_lowercase().as_str() {
            "" => default,
            "false" | "0" | "no" | "n" | "f" => false,
            _ => true,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartupError {
    #[error(transparent)]
    Store(#[from] tortie_store::Error),
    #[error("{0}")]
    Detection(String),
    #[error("{family} address conflict: node {other} has {address} already; set IP or remove that node")]
    Conflict { family: &'static str, address: String, other: String },
    #[error("{0}")]
    Setting(String),
    #[error("{path}: {error}")]
    File { path: String, error: std::io::Error },
}

impl StartupError {
    /// Whether it may pass by itself.
    pub fn is_worth_waiting(&self) -> bool {
        match self {
            StartupError::Store(error) => {
                error.is_outage() || matches!(error, tortie_store::Error::Conflict { .. })
            }
            _ => false,
        }
    }
}
