//! Which API group has Calico's objects, asked until the API server answers.
//!
//! A client that guessed would find every kind of the other group empty, so none is made before the group is known.

use super::api::Api;
use super::failure::Failure;
use super::group::ApiGroup;
use crate::backend::ConnectPatience;
use crate::watch::Backoff;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tortie_model::Kind;

/// Between two attempts. A daemon often starts before the address of the API server is reachable.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);
/// The first attempt of a daemon is short, later ones are longer: packets to a service address that is not programmed yet are
/// lost, and the connection that they belong to never opens.
const FIRST_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// For how long a command tries.
const COMMAND_DEADLINE: Duration = Duration::from_secs(5);
/// Causes that are reported; a server that gives a new one each time is not.
const MAX_REPORTED_CAUSES: usize = 32;

/// Returns the group that the cluster serves.
pub async fn discover_group(api: &Api, patience: ConnectPatience<'_>) -> Result<ApiGroup> {
    let began = Instant::now();
    let mut backoff = Backoff::capped(MAX_RETRY_DELAY);
    let mut reported = BTreeSet::new();
    let mut attempt_timeout = FIRST_ATTEMPT_TIMEOUT;
    match patience {
        ConnectPatience::Command => loop {
            match find_served_group(api).await {
                // Commands work on what Kubernetes has itself, and explain how to install the rest.
                Ok(served) => return Ok(served.unwrap_or(ApiGroup::V1)),
                Err(Failure::Unreachable { unasked: true, .. }) if began.elapsed() < COMMAND_DEADLINE => {
                    tokio::time::sleep(backoff.pause()).await;
                }
                Err(failure) => return Err(failure.into_collection_error("/apis")),
            }
        },
        ConnectPatience::Daemon(report) => loop {
            let answer = timeout(attempt_timeout, find_served_group(api)).await;
            let cause = match answer {
                Ok(Ok(Some(group))) => return Ok(group),
                Ok(Ok(None)) => Error::Datastore(format!(
                    "the API server serves clusterinformations neither in {} nor in {}: install the definitions (`tortie crds`)",
                    ApiGroup::V3.api_version(),
                    ApiGroup::V1.api_version()
                )),
                Ok(Err(failure)) => failure.into_collection_error("/apis"),
                Err(_) => Failure::silent(attempt_timeout.as_secs_f64()).into_collection_error("/apis"),
            };
            attempt_timeout = (attempt_timeout * 2).min(api.limits.request);
            if reported.len() < MAX_REPORTED_CAUSES && reported.insert(cause.to_string()) {
                report(&cause);
            }
            tokio::time::sleep(backoff.pause()).await;
        },
    }
}

/// Returns the group that has the kind which every installation of Calico has. Its name alone proves nothing: one definition
/// that an earlier installation left behind is enough for the server to serve the group.
async fn find_served_group(api: &Api) -> std::result::Result<Option<ApiGroup>, Failure> {
    for group in ApiGroup::BY_PREFERENCE {
        if api.is_served(&group.collection(Kind::ClusterInformation, None)).await? {
            return Ok(Some(group));
        }
    }
    Ok(None)
}
