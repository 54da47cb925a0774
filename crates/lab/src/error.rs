//! Errors of the lab, with advice where there is any.

use std::io;
use std::path::Path;

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("{0}")]
    Refused(String),
    #[error("{what}: {source}{}", advice(source))]
    Io { what: String, source: io::Error },
    /// Failure of a kernel operation on a namespace, link, address or route.
    #[error("{object}: {reason}")]
    Kernel { object: String, reason: String },
    #[error(transparent)]
    Store(#[from] tortie_store::StoreError),
    #[error("{what} {why}; the end of {log}:\n{tail}")]
    Daemon { what: String, why: String, log: String, tail: String },
    #[error("CNI {command} of pod {pod} failed (code {code}): {message}")]
    Cni { command: &'static str, pod: String, code: u64, message: String },
    #[error("not everything could be removed:\n  {}", .0.join("\n  "))]
    Leftovers(Vec<String>),
    #[error("interrupted")]
    Interrupted,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run as root",
        _ => "",
    }
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
