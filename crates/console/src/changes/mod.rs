//! Follows the datastore and records the changes in a ring.

mod ring;

pub use ring::{ChangeRing, ChangeTopic, ClusterChange, MissedChanges, RingPosition};

use jiff::Timestamp;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tortie_model::{FeedEvent, KeyRange, Kind, StoreKey};
use tortie_store::StoreClient;

/// Delay before the feed is opened again if it has ended.
const FEED_RETRY_DELAY: Duration = Duration::from_secs(5);
const FOLLOWED_KINDS: [Kind; 18] = [
    Kind::Node,
    Kind::IPPool,
    Kind::IPReservation,
    Kind::WorkloadEndpoint,
    Kind::HostEndpoint,
    Kind::FelixConfiguration,
    Kind::BGPConfiguration,
    Kind::BGPPeer,
    Kind::BGPFilter,
    Kind::Tier,
    Kind::Profile,
    Kind::GlobalNetworkPolicy,
    Kind::NetworkPolicy,
    Kind::StagedGlobalNetworkPolicy,
    Kind::StagedNetworkPolicy,
    Kind::StagedKubernetesNetworkPolicy,
    Kind::GlobalNetworkSet,
    Kind::NetworkSet,
];

/// Whether the datastore is being followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FeedState {
    pub connected: bool,
    /// Since when the state lasts.
    pub since: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The changes and the state of the feed, shared by all clients.
#[derive(Debug)]
pub struct ClusterFeed {
    ring: Mutex<ChangeRing>,
    position: watch::Sender<RingPosition>,
    state: watch::Sender<FeedState>,
}

impl ClusterFeed {
    pub fn new() -> Arc<ClusterFeed> {
        let ring = ChangeRing::new(rand::random());
        let state = FeedState {
            connected: false,
            since: Timestamp::now(),
            reason: Some("the console is reading the datastore".to_owned()),
        };
        let position = watch::Sender::new(ring.end());
        Arc::new(ClusterFeed { ring: Mutex::new(ring), position, state: watch::Sender::new(state) })
    }

    pub fn position(&self) -> RingPosition {
        *self.position.borrow()
    }

    pub fn watch_position(&self) -> watch::Receiver<RingPosition> {
        self.position.subscribe()
    }

    pub fn state(&self) -> FeedState {
        self.state.borrow().clone()
    }

    pub fn watch_state(&self) -> watch::Receiver<FeedState> {
        self.state.subscribe()
    }

    /// Returns the changes after a position, and the position after them.
    pub fn since(&self, position: RingPosition) -> (MissedChanges, RingPosition) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        (ring.since(position), ring.end())
    }

    fn change_ring(&self, change: impl FnOnce(&mut ChangeRing)) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut ring);
        self.position.send_replace(ring.end());
    }

    fn set_state(&self, connected: bool, reason: Option<String>) {
        self.state.send_if_modified(|state| {
            if state.connected == connected {
                state.reason = reason;
                return false;
            }
            *state = FeedState { connected, since: Timestamp::now(), reason };
            true
        });
    }

    /// Follows the datastore until the future is dropped.
    pub async fn follow(&self, client: &StoreClient) {
        loop {
            self.follow_once(client).await;
            self.set_state(false, Some("the feed of the datastore ended and is opened again".to_owned()));
            tokio::time::sleep(FEED_RETRY_DELAY).await;
        }
    }

    async fn follow_once(&self, client: &StoreClient) {
        let blocks = KeyRange::Blocks { ip_version: None };
        let ranges = FOLLOWED_KINDS.map(KeyRange::all).into_iter().chain([blocks]).collect();
        let mut feed = tortie_sync::follow(client, ranges, || {});
        let mut is_complete = false;
        while let Some(event) = feed.recv().await {
            match event {
                FeedEvent::Put { key, .. } | FeedEvent::Unreadable { key, .. } if is_complete => {
                    self.record(&key, false);
                }
                FeedEvent::Delete { key, .. } if is_complete => self.record(&key, true),
                FeedEvent::Put { .. } | FeedEvent::Unreadable { .. } | FeedEvent::Delete { .. } => {}
                FeedEvent::InSync => {
                    is_complete = true;
                    // Changes before the snapshot are unknown.
                    self.change_ring(ChangeRing::reset);
                    self.set_state(true, None);
                }
                FeedEvent::ConnectionLost { reason } => {
                    tracing::warn!(reason, "cannot follow the datastore");
                    self.set_state(false, Some(reason));
                }
                FeedEvent::ConnectionBack { .. } => self.set_state(true, None),
            }
        }
    }

    fn record(&self, key: &StoreKey, deleted: bool) {
        if let Some(change) = describe_change(key, deleted) {
            self.change_ring(|ring| ring.push(change));
        }
    }
}

fn describe_change(key: &StoreKey, deleted: bool) -> Option<ClusterChange> {
    let (topic, object) = match key {
        StoreKey::Resource { kind, namespace, name } => (topic_of(*kind)?, kind.identify(namespace, name)),
        StoreKey::Block { cidr } => (ChangeTopic::Addresses, format!("IPAMBlock({cidr})")),
        _ => return None,
    };
    Some(ClusterChange { topic, object, deleted })
}

fn topic_of(kind: Kind) -> Option<ChangeTopic> {
    Some(match kind {
        Kind::Node => ChangeTopic::Nodes,
        Kind::IPPool | Kind::IPReservation => ChangeTopic::Addresses,
        Kind::WorkloadEndpoint | Kind::HostEndpoint => ChangeTopic::Endpoints,
        Kind::BGPConfiguration | Kind::BGPPeer | Kind::BGPFilter => ChangeTopic::Routing,
        Kind::FelixConfiguration => ChangeTopic::Settings,
        Kind::Tier
        | Kind::Profile
        | Kind::GlobalNetworkPolicy
        | Kind::NetworkPolicy
        | Kind::StagedGlobalNetworkPolicy
        | Kind::StagedNetworkPolicy
        | Kind::StagedKubernetesNetworkPolicy
        | Kind::GlobalNetworkSet
        | Kind::NetworkSet => ChangeTopic::Policy,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_followed_kind_has_a_topic() {
        for kind in FOLLOWED_KINDS {
            assert!(topic_of(kind).is_some(), "{kind}");
        }
    }

    #[test]
    fn states_and_changes_reach_their_watchers() {
        let feed = ClusterFeed::new();
        let (start, mut state) = (feed.position(), feed.watch_state());
        assert!(!state.borrow_and_update().connected);
        feed.set_state(true, None);
        assert!(state.has_changed().unwrap());
        feed.record(&StoreKey::resource(Kind::NetworkPolicy, "shop", "db"), true);
        feed.record(&StoreKey::IpamConfig, false);
        let (missed, end) = feed.since(start);
        let change = ClusterChange {
            topic: ChangeTopic::Policy,
            object: "NetworkPolicy(shop/db)".to_owned(),
            deleted: true,
        };
        assert_eq!(missed, MissedChanges::Known(vec![change]));
        assert_eq!(feed.position(), end);
    }
}
