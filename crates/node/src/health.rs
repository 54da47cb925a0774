//! Health of the node by component, for probes, for `tortie` commands and for the CNI STATUS command.

use crate::bgp;
use crate::state::NodeState;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tortie_http::liveness;
use tortie_store::printable::escape_controls;

/// Timeout for the status request to the BGP speaker.
const BGP_STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Health levels, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthLevel {
    Ok,
    /// The node works, but the operator should look at the message.
    Warning,
    /// The node does not do all of its work.
    NotReady,
    /// The node cannot recover without a restart.
    NotLive,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentHealth {
    pub name: String,
    pub level: HealthLevel,
    pub message: String,
}

/// The health of every component of the node, including the healthy ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHealth {
    pub parts: Vec<ComponentHealth>,
}

impl NodeHealth {
    pub fn worst(&self) -> HealthLevel {
        self.parts.iter().map(|part| part.level).max().unwrap_or(HealthLevel::Ok)
    }

    /// Returns one line per component, including the healthy ones.
    pub fn text(&self) -> String {
        self.parts.iter().map(|part| format!("{}: {}\n", part.name, part.message)).collect()
    }

    pub async fn check(state: &NodeState) -> NodeHealth {
        let mut parts = ComponentHealthList::default();
        parts.add_tasks(state);
        parts.add_datastore(state);
        parts.add_dataplane(state);
        parts.add_policy(state);
        parts.add_mtu(state);
        parts.add_bgp(state).await;
        for (part, message) in state.warnings() {
            parts.add(part, HealthLevel::Warning, message);
        }
        for (object, reason) in state.problems() {
            parts.add(object, HealthLevel::Warning, format!("not used as written: {reason}"));
        }
        NodeHealth { parts: parts.0 }
    }
}

#[derive(Default)]
struct ComponentHealthList(Vec<ComponentHealth>);

impl ComponentHealthList {
    fn add(&mut self, name: impl Into<String>, level: HealthLevel, message: impl Into<String>) {
        let name = escape_controls(&name.into()).into_owned();
        let message = escape_controls(&message.into()).into_owned();
        self.0.push(ComponentHealth { name, level, message });
    }

    fn add_tasks(&mut self, state: &NodeState) {
        let silent = state.liveness.silent(&state.health_timeouts());
        for part in state.liveness.parts() {
            match silent.get(part) {
                Some(silence) => {
                    let message = format!("{}; restart the node", liveness::describe(*silence));
                    self.add(part, HealthLevel::NotLive, message);
                }
                None => self.add(part, HealthLevel::Ok, "alive"),
            }
        }
    }

    /// Adds the state of the datastore. An outage after the first sync does not make the node unready: the node
    /// continues with the objects that it has.
    fn add_datastore(&mut self, state: &NodeState) {
        let trouble = state.troubles().remove("datastore");
        match (state.is_in_sync(), trouble) {
            (true, None) if state.is_datastore_locked() => {
                let message = "locked by ClusterInformation (datastoreReady): CNI requests have to wait";
                self.add("datastore", HealthLevel::Warning, message);
            }
            (true, None) => self.add("datastore", HealthLevel::Ok, "in sync"),
            (true, Some(trouble)) => self.add("datastore", HealthLevel::Warning, trouble),
            (false, Some(trouble)) => self.add("datastore", HealthLevel::NotReady, trouble),
            (false, None) => self.add("datastore", HealthLevel::NotReady, "not read completely yet"),
        }
    }

    fn add_dataplane(&mut self, state: &NodeState) {
        match (state.troubles().remove("dataplane"), state.is_in_sync()) {
            (Some(trouble), _) => self.add("dataplane", HealthLevel::NotReady, trouble),
            (None, true) => self.add("dataplane", HealthLevel::Ok, "the kernel has the plan"),
            (None, false) => self.add("dataplane", HealthLevel::NotReady, "not started yet"),
        }
    }

    fn add_policy(&mut self, state: &NodeState) {
        let refused = state.refused();
        match state.troubles().remove(POLICY_COMPONENT) {
            Some(trouble) => self.add(POLICY_COMPONENT, HealthLevel::NotReady, trouble),
            None if refused.is_empty() && state.is_in_sync() => {
                self.add(POLICY_COMPONENT, HealthLevel::Ok, "in force")
            }
            None => {}
        }
        for (object, reason) in refused {
            let message = format!("closed: the kernel rejects it: {reason}");
            self.add(object, HealthLevel::Warning, message);
        }
    }

    fn add_mtu(&mut self, state: &NodeState) {
        if let Some(choice) = state.mtu() {
            self.add(MTU_COMPONENT, HealthLevel::Ok, choice.to_string());
        }
    }

    /// Adds the state of BGP, unless BGP is disabled.
    async fn add_bgp(&mut self, state: &NodeState) {
        if let Some(trouble) = state.bgp_trouble() {
            return self.add("bgp", HealthLevel::NotReady, trouble);
        }
        let Some(running) = state.running_bgp() else { return };
        let status = match tokio::time::timeout(BGP_STATUS_TIMEOUT, running.backend.status()).await {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => return self.add("bgp", HealthLevel::NotReady, error.to_string()),
            Err(_) => {
                let message =
                    format!("the BGP speaker has not answered for {} s", BGP_STATUS_TIMEOUT.as_secs());
                return self.add("bgp", HealthLevel::NotReady, message);
            }
        };
        if let Err(error) = bgp::check_sessions(&status, None, bgp::DEFAULT_SESSION_GRACE_PERIOD) {
            return self.add("bgp", HealthLevel::NotReady, error.to_string());
        }
        let sessions = bgp::SessionSummary::new(&status);
        // A peer that is down, perhaps a router of the operator, is no reason to restart the node or to remove it from
        // services: the other sessions work.
        if sessions.is_complete() {
            self.add("bgp", HealthLevel::Ok, format!("ready, {sessions}"));
        } else {
            self.add("bgp", HealthLevel::Warning, sessions.to_string());
        }
        if let Some(warning) = bgp::describe_near_limit(&status) {
            self.add("bgp", HealthLevel::Warning, warning);
        }
    }
}

/// The component that enforces policy.
pub const POLICY_COMPONENT: &str = "policy";
/// The component that chooses the MTU of workload interfaces.
pub const MTU_COMPONENT: &str = "mtu";
/// The component that answers ARP and ND requests for addresses of workloads.
pub const PROXIED_COMPONENT: &str = "proxied addresses";
/// The component that creates tunnels to other nodes.
pub const TUNNELS_COMPONENT: &str = "tunnels";
/// The routes to the blocks of other nodes.
pub const ROUTES_COMPONENT: &str = "routes";
pub const OVERRULED_COMPONENT: &str = "allowed traffic";
pub const OFFLOAD_COMPONENT: &str = "flow table";
/// The recording of flows.
pub const FLOW_RECORDS_COMPONENT: &str = "flow records";
/// A Calico Felix that runs beside the node.
pub const FELIX_COMPONENT: &str = "felix";
