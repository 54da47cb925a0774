//! The start-up of a node: determines its name and addresses, registers it in the datastore, and creates the default
//! objects of a cluster.

mod defaults;
mod detect;
mod felix;
mod interfaces;
mod name;
mod pools;
mod register;
mod variables;
#[cfg(test)]
mod variables_page;

use detect::DetectionError;
pub use felix::FelixSettings;
pub use interfaces::list_local_interfaces;
pub use name::read_node_name;
pub use register::{ComparedInterfaces, refresh_addresses, register};
pub use variables::{NODE_VARIABLES, NodeVariable, VariableGroup, is_node_variable};

use std::collections::BTreeMap;

/// The environment variables. Passed as a value, so that tests can set them.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentVariables(pub BTreeMap<String, String>);

impl EnvironmentVariables {
    pub fn of_process() -> EnvironmentVariables {
        EnvironmentVariables(std::env::vars().collect())
    }

    /// Returns the trimmed value, or an empty string if the variable is unset. Debug builds panic if the variable is
    /// missing in the table from which its documentation is generated.
    pub fn get(&self, name: &str) -> &str {
        debug_assert!(is_node_variable(name), "add {name} to NODE_VARIABLES");
        self.0.get(name).map(|value| value.trim()).unwrap_or_default()
    }

    /// Returns the value of a variable that is set and not empty.
    pub fn given(&self, name: &str) -> Option<&str> {
        Some(self.get(name)).filter(|value| !value.is_empty())
    }

    /// Returns the value of a variable, or a default if it is unset or empty.
    pub fn get_or(&self, name: &str, default: &str) -> String {
        self.given(name).unwrap_or(default).to_owned()
    }

    /// Parses a boolean as Calico does: every value that is not explicitly negative is true.
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
    Store(#[from] tortie_store::StoreError),
    #[error("{0}")]
    Detection(String),
    #[error(transparent)]
    Autodetection(#[from] DetectionError),
    #[error("{family} address conflict: node {other} has {address} already; set IP or remove that node")]
    Conflict { family: &'static str, address: String, other: String },
    #[error("{0}")]
    Setting(String),
    #[error("{path}: {error}")]
    File { path: String, error: std::io::Error },
}

impl StartupError {
    /// Returns whether the error may go away without intervention.
    pub fn is_worth_waiting(&self) -> bool {
        match self {
            StartupError::Store(error) => {
                error.is_outage() || matches!(error, tortie_store::StoreError::Conflict { .. })
            }
            _ => false,
        }
    }
}
