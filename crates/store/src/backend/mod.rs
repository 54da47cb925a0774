//! Backends of the client. Each hides its protocol: the interface consists of typed keys and values, opaque revisions,
//! paged lists, and watches from a revision.

pub mod etcd;
pub(crate) mod kubernetes;

use crate::config::StoreTarget;
use crate::{StoreConfig, StoreError, StoreResult};
pub use etcd::StoreLimits;
pub(crate) use kubernetes::KubernetesBackend;
#[doc(hidden)]
pub use kubernetes::read_objects;
pub use kubernetes::{ResponseError, orchestrator, rejected_responses};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) enum StoreBackend {
    Etcd(etcd::EtcdBackend),
    Kubernetes(Arc<KubernetesBackend>),
}

/// How long connecting retries, for backends that need a response first.
pub(crate) enum ConnectRetryMode<'a> {
    /// Retries for a few seconds, then the command fails.
    Command,
    /// Retries indefinitely; each cause of failure is reported once.
    Daemon(&'a mut (dyn FnMut(&StoreError) + Send)),
}

impl StoreBackend {
    pub async fn connect(
        config: &StoreConfig,
        limits: StoreLimits,
        patience: ConnectRetryMode<'_>,
    ) -> StoreResult<StoreBackend> {
        Ok(match config.target()? {
            StoreTarget::Etcd(target) => {
                StoreBackend::Etcd(etcd::EtcdBackend::connect(&target, limits).await?)
            }
            StoreTarget::Kubernetes(target) => StoreBackend::Kubernetes(Arc::new(
                KubernetesBackend::connect(&target, limits, patience).await?,
            )),
        })
    }
}
