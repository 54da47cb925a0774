//! Discovery of the API group that contains Calico's objects. It is repeated until kube-apiserver responds.
//!
//! A client with the wrong group would find all kinds empty, so no client is created before the group is known.

use super::api::KubernetesApi;
use super::failure::KubernetesFailure;
use super::group::CalicoApiGroup;
use crate::backend::ConnectRetryMode;
use crate::watch::Backoff;
use crate::{StoreError, StoreResult};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tortie_model::Kind;

/// Maximum delay between two attempts. A daemon often starts before the address of kube-apiserver is reachable.
const MAX_DISCOVERY_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Timeout of the first attempt of a daemon; doubled for each further one. It starts short because packets to a service
/// address that is not programmed yet are lost, and such a connection never opens.
const FIRST_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which a command stops retrying.
const COMMAND_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of distinct causes to report, in case a server returns a new one each time.
const MAX_REPORTED_CAUSES: usize = 32;

/// Returns the group that the cluster serves.
pub async fn discover_group(
    api: &KubernetesApi,
    patience: ConnectRetryMode<'_>,
) -> StoreResult<CalicoApiGroup> {
    let began = Instant::now();
    let mut backoff = Backoff::capped(MAX_DISCOVERY_RETRY_DELAY);
    let mut reported = BTreeSet::new();
    let mut attempt_timeout = FIRST_DISCOVERY_TIMEOUT;
    match patience {
        ConnectRetryMode::Command => loop {
            match find_served_group(api).await {
                // Commands still work on Kubernetes' own objects, and explain how to install the definitions.
                Ok(served) => return Ok(served.unwrap_or(CalicoApiGroup::V1)),
                Err(KubernetesFailure::Unreachable { unasked: true, .. })
                    if began.elapsed() < COMMAND_DISCOVERY_TIMEOUT =>
                {
                    tokio::time::sleep(backoff.pause()).await;
                }
                Err(failure) => return Err(failure.into_collection_error("/apis")),
            }
        },
        ConnectRetryMode::Daemon(report) => loop {
            let answer = timeout(attempt_timeout, find_served_group(api)).await;
            let cause = match answer {
                Ok(Ok(Some(group))) => return Ok(group),
                Ok(Ok(None)) => StoreError::Datastore(format!(
                    "the API server serves clusterinformations neither in {} nor in {}: install the definitions (`tortie crds`)",
                    CalicoApiGroup::V3.api_version(),
                    CalicoApiGroup::V1.api_version()
                )),
                Ok(Err(failure)) => failure.into_collection_error("/apis"),
                Err(_) => {
                    KubernetesFailure::silent(attempt_timeout.as_secs_f64()).into_collection_error("/apis")
                }
            };
            attempt_timeout = (attempt_timeout * 2).min(api.limits.request);
            if reported.len() < MAX_REPORTED_CAUSES && reported.insert(cause.to_string()) {
                report(&cause);
            }
            tokio::time::sleep(backoff.pause()).await;
        },
    }
}

/// Returns the group that serves ClusterInformation, which every installation of Calico has. The presence of the group
/// alone proves nothing: a single definition left by an earlier installation is enough for the server to serve it.
async fn find_served_group(
    api: &KubernetesApi,
) -> std::result::Result<Option<CalicoApiGroup>, KubernetesFailure> {
    for group in CalicoApiGroup::BY_PREFERENCE {
        if api.is_served(&group.collection(Kind::ClusterInformation, None)).await? {
            return Ok(Some(group));
        }
    }
    Ok(None)
}
