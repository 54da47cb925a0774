//! Maintains the status of the CalicoNodeStatus objects for this node: immediately when an object appears or changes,
//! and then at the requested interval. An unchanged status is not written.

mod describe;

use crate::queries::RunningBgp;
use crate::state::NodeState;
use describe::{describe_agent, list_families, list_peers, list_routes};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tortie_bgp::BgpFamily;
use tortie_bgp::core::RouteStatus;
use tortie_dataplane::{Netns, RouteLookup};
use tortie_model::kinds::{CalicoNodeStatus, CalicoNodeStatusSpec, CalicoNodeStatusStatus, NodeStatusClass};
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_store::{ResourceClient, StoreError, StoreEvent, StoreWatch};

pub struct NodeStatusReporter {
    state: Arc<NodeState>,
    resources: ResourceClient,
    host: Netns,
    name: String,
    asked: BTreeMap<String, NodeStatusRequest>,
}

struct NodeStatusRequest {
    spec: CalicoNodeStatusSpec,
    /// When to update the status next; None if it is not updated periodically.
    due: Option<Instant>,
}

impl NodeStatusReporter {
    /// Updates the objects as long as the daemon runs.
    pub fn follow(
        state: &Arc<NodeState>,
        resources: &ResourceClient,
        host: &Netns,
        name: &str,
    ) -> impl Future<Output = ()> + use<> {
        let mut watch = resources.client().watch(KeyRange::all(Kind::CalicoNodeStatus), None);
        let mut statuses = NodeStatusReporter {
            state: state.clone(),
            resources: resources.clone(),
            host: host.clone(),
            name: name.to_owned(),
            asked: BTreeMap::new(),
        };
        async move {
            let mut in_sync = statuses.state.in_sync();
            // Before the first sync there is nothing to report. Fails only if the state is dropped.
            let _ = in_sync.wait_for(|in_sync| *in_sync).await;
            while statuses.step(&mut watch).await {}
        }
    }

    async fn step(&mut self, watch: &mut StoreWatch) -> bool {
        let state = self.state.clone();
        let due = self.asked.iter().filter_map(|(name, asked)| Some((asked.due?, name.clone()))).min();
        let waiting = async {
            match &due {
                Some((due, name)) => {
                    tokio::time::sleep_until(*due).await;
                    name.clone()
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = watch.next() => match event {
                Some(event) => self.handle_event(event),
                None => return false,
            },
            () = state.running_bgp_changed() => self.asked.values_mut().for_each(|asked| asked.due = Some(Instant::now())),
            name = waiting => self.update_status(&name).await,
        }
        true
    }

    fn handle_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Put(entry) => {
                let StoreValue::Resource(Resource::CalicoNodeStatus(object)) = entry.value else { return };
                let name = object.metadata.name;
                let spec = object.spec;
                if spec.node != self.name {
                    self.asked.remove(&name);
                } else if self.asked.get(&name).is_none_or(|asked| asked.spec != spec) {
                    self.asked.insert(name, NodeStatusRequest { spec, due: Some(Instant::now()) });
                }
            }
            StoreEvent::Delete { key: StoreKey::Resource { name, .. }, .. } => {
                self.asked.remove(&name);
            }
            StoreEvent::Delete { .. }
            | StoreEvent::InSync(_)
            | StoreEvent::Unreadable { .. }
            | StoreEvent::Reached(_)
            | StoreEvent::Reset => {}
        }
    }

    async fn update_status(&mut self, name: &str) {
        let Some(asked) = self.asked.get_mut(name) else { return };
        let period = asked.spec.update_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let period = period.filter(|seconds| *seconds > 0).map(Duration::from_secs);
        asked.due = period.map(|period| Instant::now() + period);
        let classes = asked.spec.classes.clone();
        let status = self.collect(&classes).await;
        match self.write(name, &status).await {
            // Or the object was deleted.
            Ok(_) | Err(StoreError::DoesNotExist { .. }) => {}
            Err(error) => {
                tracing::warn!(%error, name, "cannot write the CalicoNodeStatus; trying again when it is due");
            }
        }
    }

    async fn write(
        &self,
        name: &str,
        status: &CalicoNodeStatusStatus,
    ) -> Result<Option<Resource>, StoreError> {
        self.resources
            .modify("", name, |stored: Result<CalicoNodeStatus, StoreError>| {
                let mut object = stored?;
                let before = object.status.last_updated.clone();
                let now = CalicoNodeStatusStatus { last_updated: before, ..status.clone() };
                if object.status == now && now.last_updated.is_some() {
                    return Ok(None);
                }
                let last_updated = Some(format!("{:.0}", jiff::Timestamp::now()));
                object.status = CalicoNodeStatusStatus { last_updated, ..now };
                Ok(Some(object))
            })
            .await
    }

    /// Collects the requested parts of the status. A part that is unavailable is reported as empty.
    async fn collect(&self, classes: &[NodeStatusClass]) -> CalicoNodeStatusStatus {
        let running = self.state.running_bgp();
        let status = match &running {
            Some(running) => running.backend.status().await.ok(),
            None => None,
        };
        // A speaker that has just ended counts as absent.
        let running = running.zip(status);
        let mut answer = CalicoNodeStatusStatus::default();
        if classes.contains(&NodeStatusClass::Agent) {
            answer.agent = Some(list_families(|_| describe_agent(running.as_ref())));
        }
        if classes.contains(&NodeStatusClass::BGP) {
            answer.bgp = Some(list_peers(running.as_ref()));
        }
        if classes.contains(&NodeStatusClass::Routes) {
            let known = self.routes(running.as_ref().map(|(running, _)| running)).await;
            let interfaces = self.interfaces(known.iter().flatten()).await;
            answer.routes = Some(list_routes(&known, running.as_ref(), &interfaces));
        }
        answer
    }

    async fn routes(&self, running: Option<&RunningBgp>) -> [Vec<RouteStatus>; 2] {
        let mut known = [Vec::new(), Vec::new()];
        let Some(running) = running else { return known };
        for (family, routes) in BgpFamily::ALL.into_iter().zip(&mut known) {
            *routes = running.backend.routes(family).await.unwrap_or_default();
        }
        known
    }

    /// Returns the outgoing interface of each next hop.
    async fn interfaces(&self, routes: impl Iterator<Item = &RouteStatus>) -> BTreeMap<IpAddr, String> {
        let next_hops: BTreeSet<IpAddr> = routes.filter_map(|route| route.attrs.next_hop).collect();
        let mut interfaces = BTreeMap::new();
        let Ok(lookup) = RouteLookup::open(&self.host) else { return interfaces };
        for next_hop in next_hops {
            if let Ok(hop) = lookup.next_hop(next_hop).await {
                interfaces.insert(next_hop, hop.interface);
            }
        }
        interfaces
    }
}
