//! What can go wrong between the plan and the kernel, in words that say where to look.

use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("network namespace {path}: there is none at that path; the sandbox is gone")]
    NamespaceGone { path: PathBuf },
    #[error("network namespace {path}: {reason}")]
    Namespace { path: PathBuf, reason: String },
    #[error("{object}: {reason}")]
    Kernel { object: String, reason: String },
    #[error("sysctl {key}={value}: {reason}")]
    Sysctl { key: String, value: String, reason: String },
    #[error("{field}: {reason}")]
    Invalid { field: &'static str, reason: String },
    #[error("the dataplane has stopped")]
    Stopped,
}

impl Error {
    pub(crate) fn kernel(object: impl Into<String>, error: &nlink::Error) -> Error {
        Error::Kernel { object: object.into(), reason: error.to_string() }
    }
}

/// One thing the kernel did not take; everything else went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// `route 10.0.0.0/26`, `neighbour 10.0.0.1 on cali1`, ...
    pub object: String,
    pub reason: String,
}
