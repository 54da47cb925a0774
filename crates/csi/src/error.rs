//! Errors of the drivers.

use crate::publisher::MAX_VOLUMES;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;
use tonic::Status;

/// Maximum number of characters of a rejected value in an error.
const MAX_SHOWN_CHARACTERS: usize = 128;

/// The reason why a volume was not published or not removed.
#[derive(Debug, Error)]
pub enum VolumeError {
    #[error("{field}: {value:?} is not {expected}")]
    Field { field: &'static str, value: String, expected: &'static str },
    #[error("volume_id: {id} is a volume of the pod {pod}; remove it first")]
    Conflict { id: String, pod: String },
    #[error("this node has {MAX_VOLUMES} volumes with policy-sync sockets, the maximum")]
    TooMany,
    #[error("another process holds the lock {}", .path.display())]
    Locked { path: PathBuf },
    #[error("cannot {action} {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl VolumeError {
    pub fn field(field: &'static str, value: &str, expected: &'static str) -> VolumeError {
        VolumeError::Field { field, value: value.chars().take(MAX_SHOWN_CHARACTERS).collect(), expected }
    }

    /// Returns a function that adds the attempted action to an I/O error.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
        let path = path.to_owned();
        move |source| VolumeError::Io { action, path, source }
    }
}

impl From<VolumeError> for Status {
    /// Selects the code that the CSI specification gives for the condition.
    fn from(error: VolumeError) -> Status {
        let message = error.to_string();
        match error {
            VolumeError::Field { .. } => Status::invalid_argument(message),
            VolumeError::Conflict { .. } => Status::already_exists(message),
            VolumeError::TooMany => Status::resource_exhausted(message),
            VolumeError::Locked { .. } => Status::aborted(message),
            VolumeError::Io { .. } => Status::internal(message),
        }
    }
}

/// The reason why the CSI driver ended.
#[derive(Debug, Error)]
pub enum CsiError {
    #[error("--{option}: {value:?} is not {expected}")]
    Option { option: &'static str, value: String, expected: &'static str },
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    #[error("cannot install signal handlers: {0}")]
    Signal(io::Error),
    #[error("cannot install the FlexVolume driver {}: {source}", .path.display())]
    FlexVolumeProgram { path: PathBuf, source: io::Error },
    #[error("cannot listen on {}: {source}", .path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("the server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    #[error("kubelet did not register the driver: {reason}")]
    Registration { reason: String },
}
