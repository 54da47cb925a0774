//! How many nodes this hub should serve, so that all hubs of a service have about the same number.

use crate::server::Hub;
use std::time::Duration;
use tokio::sync::watch;
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::Orchestrator;
use tortie_store::{Limits, Result};

/// `ConnectionRebalancingMode: kubernetes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    pub namespace: String,
    pub service: String,
    pub port_name: String,
    /// Between looks at how many hubs there are.
    pub look: Duration,
    /// Between two nodes that are asked to leave.
    pub pause: Duration,
    pub lowest: usize,
    pub highest: usize,
}

impl Balance {
    /// A fifth more than an equal share of what would be if one hub were missing.
    fn limit(&self, hubs: usize, nodes: usize) -> usize {
        match hubs {
            0 | 1 => self.highest,
            _ => (1 + nodes * 120 / (hubs - 1) / 100).max(self.lowest).min(self.highest),
        }
    }

    /// Never ends.
    pub async fn keep(&self, hub: &Hub, kubernetes: &KubernetesTarget) {
        let limit = watch::Sender::new(self.highest);
        let look = async {
            loop {
                match self.hubs(kubernetes).await {
                    Ok(hubs) => {
                        let nodes = hub.nodes();
                        let now = self.limit(hubs, nodes);
                        if limit.send_replace(now) != now {
                            tracing::info!(hubs, nodes, limit = now, "how many clients are served");
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot find out how many hubs there are; trying again")
                    }
                }
                tokio::time::sleep(self.look).await;
            }
        };
        tokio::select! {
            () = look => {}
            () = hub.shed(limit.subscribe(), self.pause) => {}
        }
    }

    async fn hubs(&self, kubernetes: &KubernetesTarget) -> Result<usize> {
        let kubernetes = Orchestrator::connect(kubernetes, Limits::default()).await?;
        let found = kubernetes.service_endpoints(&self.namespace, &self.service, &self.port_name).await?;
        Ok(found.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_typhas() {
        let balance = Balance {
            namespace: String::new(),
            service: String::new(),
            port_name: String::new(),
            look: Duration::ZERO,
            pause: Duration::ZERO,
            lowest: 400,
            highest: 10_000,
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
