//! The stores a client can speak to. Each keeps the names of its protocol to itself: what crosses this line are typed
//! keys and values, opaque revisions, lists in pages and watches from a revision.

pub mod etcd;
pub(crate) mod kubernetes;

use crate::config::Target;
use crate::{Config, Error, Result};
pub use etcd::Limits;
pub(crate) use kubernetes::Kubernetes;
#[cfg(fuzzing)]
pub use kubernetes::read_objects;
pub use kubernetes::{ResponseError, orchestrator, rejected_responses};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Etcd(etcd::Etcd),
    Kubernetes(Arc<Kubernetes>),
}

/// For how long a connection is tried whose backend must be asked something first.
pub(crate) enum ConnectPatience<'a> {
    /// For some seconds, then the command fails.
    Command,
    /// For ever; each cause of failure is reported once.
    Daemon(&'a mut (dyn FnMut(&Error) + Send)),
}

impl Backend {
    pub async fn connect(config: &Config, limits: Limits, patience: ConnectPatience<'_>) -> Result<Backend> {
        Ok(match config.target()? {
            Target::Etcd(target) => Backend::Etcd(etcd::Etcd::connect(&target, limits).await?),
            Target::Kubernetes(target) => {
                Backend::Kubernetes(Arc::new(Kubernetes::connect(&target, limits, patience).await?))
            }
        })
    }
}
