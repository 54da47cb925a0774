//! Addresses of kube-apiserver and the clients for them.
//!
//! One address is used until it is unreachable. If the server rejects the credentials, the settings are reloaded: the
//! kubeconfig or the token may have been replaced.

use super::connection;
use crate::config::KubernetesTarget;
use crate::{StoreLimits, StoreResult};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Minimum interval between two reloads of the settings, so that a permanently rejected client does not read files all
/// the time.
const MIN_RELOAD_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct ApiServers {
    target: Arc<KubernetesTarget>,
    limits: StoreLimits,
    state: Arc<RwLock<ApiServersState>>,
}

struct ApiServersState {
    clients: Vec<kube::Client>,
    current: usize,
    /// Number of times the settings were reloaded.
    generation: u64,
    read_at: Instant,
}

/// The server used for a request, and the generation of its settings.
pub struct SelectedServer {
    pub client: kube::Client,
    index: usize,
    generation: u64,
}

impl ApiServers {
    pub async fn connect(target: &KubernetesTarget, limits: &StoreLimits) -> StoreResult<ApiServers> {
        let clients = connection::connect(target, limits).await?;
        let state = ApiServersState { clients, current: 0, generation: 0, read_at: Instant::now() };
        Ok(ApiServers {
            target: Arc::new(target.clone()),
            limits: limits.clone(),
            state: Arc::new(RwLock::new(state)),
        })
    }

    pub fn len(&self) -> usize {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clients.len()
    }

    /// Returns the server in use.
    pub fn current(&self) -> Option<SelectedServer> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let ApiServersState { current: index, generation, .. } = *state;
        state.clients.get(index).map(|client| SelectedServer { client: client.clone(), index, generation })
    }

    /// Switches to the next server after a failure, unless another request has switched already.
    pub fn leave(&self, asked: &SelectedServer) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.current == asked.index {
            state.current = (asked.index + 1) % state.clients.len().max(1);
        }
    }

    /// Reloads the settings and reopens the connections, because the server rejects the credentials or its connections
    /// are dead. Returns whether they were reloaded since the request was sent.
    pub async fn renew(&self, asked: &SelectedServer) -> bool {
        {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if state.generation != asked.generation {
                return true;
            }
            if state.read_at.elapsed() < MIN_RELOAD_INTERVAL {
                return false;
            }
            state.read_at = Instant::now();
        }
        match connection::connect(&self.target, &self.limits).await {
            Ok(clients) => {
                let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
                state.clients = clients;
                state.generation += 1;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "cannot reload the settings of kube-apiserver; using the previous ones");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everybody_moves_on_once() {
        let target = KubernetesTarget {
            endpoint: "http://127.0.0.1:1,http://127.0.0.1:2".into(),
            ..KubernetesTarget::default()
        };
        let servers = ApiServers::connect(&target, &StoreLimits::default()).await.unwrap();
        assert_eq!(servers.len(), 2);
        let first = servers.current().unwrap();
        servers.leave(&first);
        servers.leave(&first);
        let second = servers.current().unwrap();
        assert_eq!((first.index, second.index), (0, 1));
        servers.leave(&second);
        assert_eq!(servers.current().unwrap().index, 0);
        // Loaded just now: not reloaded yet.
        assert!(!servers.renew(&first).await);
        servers.state.write().unwrap().read_at -= MIN_RELOAD_INTERVAL;
        assert!(servers.renew(&first).await);
        assert!(servers.renew(&first).await, "somebody else has read them");
    }
}
