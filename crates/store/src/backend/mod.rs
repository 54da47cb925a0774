//! The stores a client can speak to. Each keeps the names of its protocol to itself: what crosses this line are typed
//! keys and values, opaque revisions, lists in pages and watches from a revision.

pub mod etcd;
mod kubernetes;

use crate::config::Target;
use crate::{Config, Result};
pub use etcd::Limits;
pub(crate) use kubernetes::Kubernetes;
pub use kubernetes::orchestrator;
#[cfg(fuzzing)]
pub use kubernetes::read_objects;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Etcd(etcd::Etcd),
    Kubernetes(Arc<Kubernetes>),
}

impl Backend {
    pub async fn connect(config: &Config, limits: Limits) -> Result<Backend> {
        Ok(match config.target()? {
            Target::Etcd(target) => Backend::Etcd(etcd::Etcd::connect(&target, limits).await?),
            Target::Kubernetes(target) => {
                Backend::Kubernetes(Arc::new(Kubernetes::connect(&target, limits).await?))
            }
        })
    }
}
