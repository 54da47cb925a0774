//! Errors of the lab, with advice where there is any.

use std::io;
use std::path::Path;

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("{0}")]
    Refused(String),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// Failure of a kernel operation on a namespace, link, address or route.
    #[error("{object}: {reason}")]
    Kernel { object: String, reason: String },
    #[error(transparent)]
    Store(#[from] tortie_store::StoreError),
    #[error("{what} {why}; the end of {log}:\n{tail}")]
    Daemon { what: String, why: String, log: String, tail: String },
    #[error("CNI {command} of pod {pod} failed (code {}): {}", .source.code, .source.message)]
    Cni { command: &'static str, pod: String, source: CniError },
    /// The reason why a node does not accept pods.
    #[error(transparent)]
    NotReady(CniError),
    /// Standard error of a failed kubectl.
    #[error("{0}")]
    Kubectl(String),
    #[error("output: {0}")]
    Output(io::Error),
    #[error("not everything could be removed:{}", .0.iter().map(|error| format!("\n  {error}")).collect::<String>())]
    Leftovers(Vec<LabError>),
    #[error("interrupted")]
    Interrupted,
}

/// Error that the CNI plugin returned.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct CniError {
    pub code: u64,
    pub message: String,
}

pub type LabResult<T> = std::result::Result<T, LabError>;

impl LabError {
    pub fn refused(text: impl Into<String>) -> LabError {
        LabError::Refused(text.into())
    }

    pub fn kernel(object: impl Into<String>, error: &nlink::Error) -> LabError {
        LabError::Kernel { object: object.into(), reason: error.to_string() }
    }

    /// Returns a closure for `map_err` that adds the file name.
    pub fn file(path: &Path) -> impl FnOnce(io::Error) -> LabError {
        let what = path.display().to_string();
        move |source| LabError::Io { what, source }
    }
}
