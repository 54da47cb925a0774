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
mod limits;
mod member;
mod position;
mod source;
mod tls;
mod transactions;
mod watch;

use crate::config::{EndpointSource, EtcdTarget};
use crate::{Revision, StoreError, StoreResult};
use cluster::{EtcdCluster, EtcdRetryPolicy};
pub use compaction::HistoryCompactor;
pub use limits::StoreLimits;
use source::EtcdSource;
use std::sync::Arc;
use tortie_model::{KeyRange, ValidationError};

#[derive(Clone, Debug)]
pub struct EtcdBackend {
    cluster: Arc<EtcdCluster>,
}

impl EtcdBackend {
    pub(crate) async fn connect(target: &EtcdTarget, limits: StoreLimits) -> StoreResult<EtcdBackend> {
        let endpoints = match &target.endpoints {
            EndpointSource::Given(endpoints) => endpoints.clone(),
            EndpointSource::Srv(domain) => discovery::endpoints(domain, limits.dial).await?,
        };
        Ok(EtcdBackend { cluster: Arc::new(EtcdCluster::new(target, &endpoints, limits)?) })
    }

    pub(crate) fn absence_grace(&self) -> std::time::Duration {
        self.cluster.limits.absence_grace
    }

    pub(crate) fn source(&self, range: &KeyRange) -> EtcdSource {
        EtcdSource::new(self.cluster.clone(), range.clone())
    }
}

/// Parses a revision; etcd revisions are numbers.
pub(crate) fn revision(text: &str) -> StoreResult<Revision> {
    text.parse().ok().filter(|revision: &Revision| revision.number().is_some()).ok_or_else(|| {
        StoreError::Validation(ValidationError::one(
            "ResourceVersion",
            text,
            "invalid resource version: not a number",
        ))
    })
}

/// Converts an etcd revision, which is a positive signed number.
fn opaque(revision: i64) -> Revision {
    u64::try_from(revision).unwrap_or_default().into()
}

/// Converts a revision to the number used by etcd. A revision that is not from etcd matches no entry.
fn number(revision: &Revision) -> i64 {
    revision.number().and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX)
}
