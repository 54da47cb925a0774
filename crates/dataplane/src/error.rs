//! Errors between the plan and the kernel. Each names the object or setting to check.

use crate::failure::{FailureReason, KernelObject};
use std::path::PathBuf;

pub type DataplaneResult<T> = std::result::Result<T, DataplaneError>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataplaneError {
    #[error("network namespace {path}: does not exist; the sandbox is gone")]
    NamespaceGone { path: PathBuf },
    #[error("network namespace {path}: {reason}")]
    Namespace { path: PathBuf, reason: String },
    #[error("{object}: {reason}")]
    Kernel { object: KernelObject, reason: String },
    #[error("sysctl {key}={value}: {reason}")]
    Sysctl { key: String, value: String, reason: String },
    #[error("{field}: {reason}")]
    Invalid { field: &'static str, reason: String },
    #[error("the dataplane has stopped")]
    Stopped,
}

impl DataplaneError {
    pub(crate) fn kernel(object: impl Into<KernelObject>, error: &nlink::Error) -> DataplaneError {
        DataplaneError::Kernel { object: object.into(), reason: error.to_string() }
    }
}

/// Returns a function that converts an error about this state of the kernel, for `map_err`.
pub(crate) fn kernel_error(object: &'static str) -> impl FnOnce(nlink::Error) -> DataplaneError {
    move |error| DataplaneError::kernel(object, &error)
}

impl From<DataplaneError> for (KernelObject, FailureReason) {
    /// Splits an error into the object that it is about and the reason.
    fn from(error: DataplaneError) -> (KernelObject, FailureReason) {
        match error {
            DataplaneError::Kernel { object, reason } => (object, reason.into()),
            DataplaneError::Sysctl { key, value, reason } => {
                (KernelObject::Sysctl { key }, format!("cannot be set to {value}: {reason}").into())
            }
            other => (KernelObject::KernelState("state of the kernel"), other.to_string().into()),
        }
    }
}
