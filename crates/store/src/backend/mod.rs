//! Backends of the client. Each hides its protocol: the interface consists of typed keys and values, opaque revisions,
//! paged lists, and watches from a revision.

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

/// How long connecting retries, for backends that need a response first.
pub(crate) enum ConnectPatience<'a> {
    /// Retries for a few seconds, then the command fails.
    Command,
    /// Retries indefinitely; each cause of failure is reported once.
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
