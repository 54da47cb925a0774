//! Connection rebalancing: computes how many clients this hub should serve, so that all hubs of a Service have about
//! the same number, and disconnects the surplus.

use crate::server::HubServer;
use std::time::Duration;
use tokio::sync::watch;
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{StoreLimits, StoreResult};

/// Parameters of `ConnectionRebalancingMode: kubernetes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionBalancer {
    pub namespace: String,
    pub service: String,
    pub port_name: String,
    /// Interval at which the ready endpoints of the Service are counted.
    pub count_interval: Duration,
    /// Delay between two clients that are asked to leave.
    pub leave_interval: Duration,
    pub min_clients: usize,
    pub max_clients: usize,
}

impl ConnectionBalancer {
    /// Returns the client limit of this hub: 120 % of an equal share of all nodes with one hub missing, within the
    /// configured bounds.
    fn limit(&self, hubs: usize, nodes: usize) -> usize {
        match hubs {
            0 | 1 => self.max_clients,
            _ => (1 + nodes * 120 / (hubs - 1) / 100).max(self.min_clients).min(self.max_clients),
        }
    }

    /// Updates the limit and disconnects surplus clients. Never returns.
    pub async fn balance(&self, hub: &HubServer, kubernetes: &KubernetesTarget) {
        let limit = watch::Sender::new(self.max_clients);
        tokio::select! {
            () = self.update_limit(hub, kubernetes, &limit) => {}
            () = hub.shed_clients(limit.subscribe(), self.leave_interval) => {}
        }
    }

    async fn update_limit(
        &self,
        hub: &HubServer,
        kubernetes: &KubernetesTarget,
        limit: &watch::Sender<usize>,
    ) {
        loop {
            match self.count_hubs(kubernetes).await {
                Ok(hubs) => {
                    let nodes = hub.nodes();
                    let now = self.limit(hubs, nodes);
                    if limit.send_replace(now) != now {
                        tracing::info!(hubs, nodes, limit = now, "connection limit changed");
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot count the endpoints of the hub Service; trying again")
                }
            }
            tokio::time::sleep(self.count_interval).await;
        }
    }

    async fn count_hubs(&self, kubernetes: &KubernetesTarget) -> StoreResult<usize> {
        let kubernetes = OrchestratorClient::connect(kubernetes, StoreLimits::default()).await?;
        let found = kubernetes.service_endpoints(&self.namespace, &self.service, &self.port_name).await?;
        Ok(found.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_typhas() {
        let balance = ConnectionBalancer {
            namespace: String::new(),
            service: String::new(),
            port_name: String::new(),
            count_interval: Duration::ZERO,
            leave_interval: Duration::ZERO,
            min_clients: 400,
            max_clients: 10_000,
        };
        for (hubs, nodes, limit) in [
            (0, 5_000, 10_000),
            (1, 5_000, 10_000),
            (2, 5_000, 6_001),
            (3, 5_000, 3_001),
            (3, 10, 400),
            (11, 50_000, 6_001),
            (2, 50_000, 10_000),
        ] {
            assert_eq!(balance.limit(hubs, nodes), limit, "{hubs} hubs, {nodes} nodes");
        }
    }
}
