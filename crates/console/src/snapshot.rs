//! The state of the cluster that the pages show, read from the datastore at most twice a second and shared by all
//! requests. While the datastore cannot be read, the last state is served and marked as stale.

use crate::changes::{ClusterFeed, RingPosition};
use crate::error::ApiError;
use jiff::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;
use tortie_ctl::analyze::{AnalysisFinding, find_mistakes, load_cluster};
use tortie_ctl::ipam::{UsageList, list_usage};
use tortie_ctl::policy::PolicyCluster;
use tortie_model::Kind;
use tortie_plan::PolicyId;
use tortie_store::ResourceClient;

/// Minimum interval between two reads of the datastore.
const READ_INTERVAL: Duration = Duration::from_millis(500);
/// Age after which the datastore is read again without a reported change, for kinds that the feed does not follow.
const MAX_SNAPSHOT_AGE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct ClusterSnapshot {
    pub cluster: PolicyCluster,
    pub findings: Vec<AnalysisFinding>,
    pub addresses: UsageList,
    /// Number of endpoints that each policy applies to.
    pub endpoints: BTreeMap<PolicyId, usize>,
    pub taken: Timestamp,
    position: RingPosition,
    read: Instant,
}

/// How current a response is.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Freshness {
    pub as_of: Timestamp,
    /// The reason why the state may be outdated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<String>,
}

#[derive(Debug)]
pub struct SnapshotCache {
    store: ResourceClient,
    feed: Arc<ClusterFeed>,
    current: Arc<Mutex<Option<Arc<ClusterSnapshot>>>>,
}

impl SnapshotCache {
    pub fn new(store: ResourceClient, feed: Arc<ClusterFeed>) -> SnapshotCache {
        SnapshotCache { store, feed, current: Arc::default() }
    }

    pub fn store(&self) -> &ResourceClient {
        &self.store
    }

    /// Returns the state after all changes that have been reported so far.
    pub async fn get(self: &Arc<Self>) -> Result<(Arc<ClusterSnapshot>, Freshness), ApiError> {
        // Requests wait here for one read, and then share it.
        let current = self.current.clone().lock_owned().await;
        let state = self.feed.state();
        if let Some(known) = &*current {
            if !state.connected {
                let reason = state.reason.unwrap_or_default();
                return Ok(known.with_freshness(Some(reason)));
            }
            if known.position == self.feed.position() && known.read.elapsed() < MAX_SNAPSHOT_AGE {
                return Ok(known.with_freshness(None));
            }
        }
        // In a task, so that the read goes on if the client disconnects. Otherwise a client that does this again and again
        // would start a read each time, and none would end.
        let reading = tokio::spawn(self.clone().replace(current));
        reading.await.map_err(|_| ApiError::Internal)?
    }

    /// Reads the datastore and replaces the state.
    async fn replace(
        self: Arc<Self>,
        mut current: OwnedMutexGuard<Option<Arc<ClusterSnapshot>>>,
    ) -> Result<(Arc<ClusterSnapshot>, Freshness), ApiError> {
        if let Some(known) = &*current {
            tokio::time::sleep_until(known.read + READ_INTERVAL).await;
        }
        match self.read().await {
            Ok(snapshot) => {
                let snapshot = Arc::new(snapshot);
                *current = Some(snapshot.clone());
                Ok(snapshot.with_freshness(None))
            }
            Err(error) => match &*current {
                Some(known) => Ok(known.with_freshness(Some(error.to_string()))),
                None => Err(error),
            },
        }
    }

    async fn read(&self) -> Result<ClusterSnapshot, ApiError> {
        // Before the data: a change during the read makes the snapshot outdated.
        let position = self.feed.position();
        let mut cluster = load_cluster(&self.store).await?;
        cluster.load_kind(&self.store, Kind::CalicoNodeStatus).await?;
        let addresses = list_usage(&self.store).await?;
        let evaluated = cluster.clone();
        let evaluated = tokio::task::spawn_blocking(move || {
            let endpoints = count_endpoints(&evaluated);
            (find_mistakes(evaluated), endpoints)
        });
        let (findings, endpoints) = evaluated.await.map_err(|_| ApiError::Internal)?;
        let (taken, read) = (Timestamp::now(), Instant::now());
        Ok(ClusterSnapshot { cluster, findings, addresses, endpoints, taken, position, read })
    }
}

impl ClusterSnapshot {
    fn with_freshness(self: &Arc<Self>, stale: Option<String>) -> (Arc<ClusterSnapshot>, Freshness) {
        (self.clone(), Freshness { as_of: self.taken, stale })
    }
}

fn count_endpoints(cluster: &PolicyCluster) -> BTreeMap<PolicyId, usize> {
    let enforced = cluster.enforced_everywhere();
    let mut counts = BTreeMap::new();
    let workloads = enforced.plan.workload_policies.values().map(|endpoint| vec![&endpoint.tiers]);
    let hosts =
        enforced.plan.host_endpoints.values().map(|endpoint| {
            vec![&endpoint.tiers, &endpoint.untracked, &endpoint.pre_dnat, &endpoint.forward]
        });
    for lists in workloads.chain(hosts) {
        let tiers = lists.into_iter().flatten();
        let mut applied: Vec<&PolicyId> =
            tiers.flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter())).collect();
        applied.sort();
        applied.dedup();
        for policy in applied {
            *counts.entry(policy.clone()).or_default() += 1;
        }
    }
    counts
}
