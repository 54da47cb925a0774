//! Health of the node by component, for probes, for `tortie` commands and for the CNI STATUS command.

use crate::bgp;
use crate::state::State;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tortie_http::liveness;
use tortie_store::printable::escape_controls;

/// Timeout for the status request to the BGP speaker.
const PATIENCE: Duration = Duration::from_secs(5);

/// Health levels, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Ok,
    /// The node works, but the operator should look at the message.
    Warning,
    /// The node does not do all of its work.
    NotReady,
    /// The node cannot recover without a restart.
    NotLive,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub name: String,
    pub level: Level,
    pub message: String,
}

/// The health of every component of the node, including the healthy ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    pub parts: Vec<Part>,
}

impl Health {
    pub fn worst(&self) -> Level {
        self.parts.iter().map(|part| part.level).max().unwrap_or(Level::Ok)
    }

    /// Returns one line per component, including the healthy ones.
    pub fn text(&self) -> String {
        self.parts.iter().map(|part| format!("{}: {}\n", part.name, part.message)).collect()
    }

    pub async fn of(state: &State) -> Health {
        let mut parts = Parts::default();
        parts.daemon(state);
        parts.datastore(state);
        parts.dataplane(state);
        parts.policy(state);
        parts.mtu(state);
        parts.bgp(state).await;
        for (part, message) in state.warnings() {
            parts.add(part, Level::Warning, message);
        }
        for (object, reason) in state.problems() {
            parts.add(object, Level::Warning, format!("is not used as it is written: {reason}"));
        }
        Health { parts: parts.0 }
    }
}

#[derive(Default)]
struct Parts(Vec<Part>);

impl Parts {
    fn add(&mut self, name: impl Into<String>, level: Level, message: impl Into<String>) {
        let printable = |text: String| escape_controls(&text).into_owned();
        self.0.push(Part { name: printable(name.into()), level, message: printable(message.into()) });
    }

    fn daemon(&mut self, state: &State) {
        let silent = state.liveness.silent(&state.health_timeouts());
        for part in state.liveness.parts() {
            match silent.get(part) {
                Some(silence) => {
                    let message = format!("{}; restart the node", liveness::describe(*silence));
                    self.add(part, Level::NotLive, message);
                }
                None => self.add(part, Level::Ok, "alive"),
            }
        }
    }

    /// Adds the state of the datastore. An outage after the first sync does not make the node unready: the node
    /// continues with the objects that it has.
    fn datastore(&mut self, state: &State) {
        let trouble = state.troubles().remove("datastore");
        match (state.is_in_sync(), trouble) {
            (true, None) if state.is_datastore_locked() => {
                self.add("datastore", Level::Warning, "locked by ClusterInformation; CNI has to wait");
            }
            (true, None) => self.add("datastore", Level::Ok, "in sync"),
            (true, Some(trouble)) => self.add("datastore", Level::Warning, trouble),
            (false, Some(trouble)) => self.add("datastore", Level::NotReady, trouble),
            (false, None) => self.add("datastore", Level::NotReady, "not read completely yet"),
        }
    }

    fn dataplane(&mut self, state: &State) {
        match (state.troubles().remove("dataplane"), state.is_in_sync()) {
            (Some(trouble), _) => self.add("dataplane", Level::NotReady, trouble),
            (None, true) => self.add("dataplane", Level::Ok, "the kernel has the plan"),
            (None, false) => self.add("dataplane", Level::NotReady, "not started yet"),
        }
    }

    fn policy(&mut self, state: &State) {
        let refused = state.refused();
        match state.troubles().remove(POLICY) {
            Some(trouble) => self.add(POLICY, Level::NotReady, trouble),
            None if refused.is_empty() && state.is_in_sync() => self.add(POLICY, Level::Ok, "in force"),
            None => {}
        }
        for (object, reason) in refused {
            let message = format!("closed, the kernel refuses it: {reason}");
            self.add(object, Level::Warning, message);
        }
    }

    fn mtu(&mut self, state: &State) {
        if let Some(choice) = state.mtu() {
            self.add(MTU, Level::Ok, choice.to_string());
        }
    }

    /// Adds the state of BGP, unless BGP is disabled.
    async fn bgp(&mut self, state: &State) {
        let mut troubles = state.troubles();
        let trouble = troubles.remove(bgp::BIRD).or_else(|| troubles.remove("bgp"));
        let Some(running) = state.running_bgp().filter(|_| trouble.is_none()) else {
            if let Some(trouble) = trouble {
                self.add("bgp", Level::NotReady, trouble);
            }
            return;
        };
        let judged = match tokio::time::timeout(PATIENCE, running.backend.status()).await {
            Ok(status) => status.and_then(|status| {
                bgp::ready(&status, None, bgp::PATIENCE).map(|()| bgp::near_limit(&status))
            }),
            Err(_) => Err(format!("the BGP speaker has not answered for {} s", PATIENCE.as_secs())),
        };
        match judged {
            Ok(None) => self.add("bgp", Level::Ok, "ready"),
            Ok(Some(warning)) => self.add("bgp", Level::Warning, warning),
            Err(reason) => self.add("bgp", Level::NotReady, reason),
        }
    }
}

/// The component that enforces policy.
pub const POLICY: &str = "policy";
/// The component that chooses the MTU of workload interfaces.
pub const MTU: &str = "mtu";
/// The component that answers ARP and ND requests for addresses of workloads.
pub const PROXIED: &str = "proxied addresses";
/// The component that creates tunnels to other nodes.
pub const TUNNELS: &str = "tunnels";
pub const OVERRULED: &str = "allowed traffic";
pub const OFFLOAD: &str = "flow table";
/// A Calico Felix that runs beside the node.
pub const FELIX: &str = "felix";
