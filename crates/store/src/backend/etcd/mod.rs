//! Backend for etcd, or for the embedded server with the same protocol.
//!
//! `keys` maps keys to paths, `entries` and `transactions` implement the operations of the client, `source` and
//! `position` its watches. The other modules implement the etcd v3 protocol: connections, failover, credentials. No
//! other module uses gRPC.

mod auth;
mod channel;
mod cluster;
mod compaction;
#[doc(hidden)]
pub mod discovery;
mod entries;
mod failure;
pub mod keys;
mod kv;
mod member;
mod position;
mod source;
mod tls;
mod transactions;
mod watch;

use crate::backend::BackendCapabilities;
use crate::config::{EndpointSource, EtcdTarget};
use crate::{Revision, StoreLimits, StoreResult};
use cluster::{EtcdCluster, EtcdRetryPolicy};
use std::sync::Arc;

pub(crate) const CAPABILITIES: BackendCapabilities = BackendCapabilities {
    ordered_revisions: true,
    expiring_entries: true,
    derived_kinds: &[],
    includes_kubernetes: false,
    checks_namespaces: false,
    is_api_server: false,
};

#[derive(Clone, Debug)]
pub(crate) struct EtcdBackend {
    cluster: Arc<EtcdCluster>,
}

impl EtcdBackend {
    pub async fn connect(target: &EtcdTarget, limits: StoreLimits) -> StoreResult<EtcdBackend> {
        let endpoints = match &target.endpoints {
            EndpointSource::Given(endpoints) => endpoints.clone(),
            EndpointSource::Srv(domain) => discovery::endpoints(domain, limits.dial).await?,
        };
        Ok(EtcdBackend { cluster: Arc::new(EtcdCluster::new(target, &endpoints, limits)?) })
    }
}

/// Converts an etcd revision, which is a positive signed number.
fn convert_revision(revision: i64) -> Revision {
    u64::try_from(revision).unwrap_or_default().into()
}

/// Converts a revision to the number used by etcd. A revision that is not from etcd matches no entry.
fn number(revision: &Revision) -> i64 {
    revision.number().and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX)
}
