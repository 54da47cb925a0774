//! Errors of the daemon.

use crate::translate::TranslateError;
use std::io;
use std::path::PathBuf;
use tortie_store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum OpenStackError {
    #[error("region {0:?} is invalid: expected a DNS label of at most {max} characters", max = crate::names::MAX_REGION_CHARS)]
    Region(String),
    #[error("the datastore is the Kubernetes API, which cannot hold OpenStack's entries: configure etcd")]
    NoExpiringEntries,
    #[error("cannot listen on the Unix socket {}: {source}; check the directory and that no other daemon runs", .path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("cannot wait for signals: {0}")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Translate(#[from] TranslateError),
    #[error("resync {0} does not exist: it was finished, or replaced after {limit} later ones; start a new one", limit = crate::resync::MAX_SESSIONS)]
    UnknownResync(u64),
    #[error("resync {0} has no open phase: start a phase before sending objects")]
    NoPhase(u64),
}
