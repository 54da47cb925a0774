//! The addresses at which the API server is found, and who we are there.
//!
//! One address is used until it cannot be reached. When the server does not know us any more, the settings are read again:
//! a kubeconfig or a token may have been replaced by one that is still good.

use super::connection;
use crate::config::KubernetesTarget;
use crate::{Limits, Result};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Between two readings of the settings: whoever is refused for good must not read files all the time.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct Servers {
    target: Arc<KubernetesTarget>,
    limits: Limits,
    state: Arc<RwLock<State>>,
}

struct State {
    clients: Vec<kube::Client>,
    current: usize,
    /// How often the settings have been read.
    generation: u64,
    read_at: Instant,
}

/// A server that was asked, and on what grounds.
pub struct Asked {
    pub client: kube::Client,
    index: usize,
    generation: u64,
}

impl Servers {
    pub async fn connect(target: &KubernetesTarget, limits: &Limits) -> Result<Servers> {
        let clients = connection::connect(target, limits).await?;
        let state = State { clients, current: 0, generation: 0, read_at: Instant::now() };
        Ok(Servers {
            target: Arc::new(target.clone()),
            limits: limits.clone(),
            state: Arc::new(RwLock::new(state)),
        })
    }

    pub fn len(&self) -> usize {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clients.len()
    }

    /// The server in use.
    pub fn current(&self) -> Option<Asked> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let State { current: index, generation, .. } = *state;
        state.clients.get(index).map(|client| Asked { client: client.clone(), index, generation })
    }

    /// One could not be reached: the next is used, unless somebody else has moved on already.
    pub fn leave(&self, asked: &Asked) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.current == asked.index {
            state.current = (asked.index + 1) % state.clients.len().max(1);
        }
    }

    /// The server does not know us, or its connections are dead: whether the settings have been read and the connections
    /// opened again since it was asked.
    pub async fn renew(&self, asked: &Asked) -> bool {
        {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if state.generation != asked.generation {
                return true;
            }
            if state.read_at.elapsed() < PAUSE {
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
                tracing::warn!(%error, "cannot read the settings of the API server again; the old ones are used");
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
        let servers = Servers::connect(&target, &Limits::default()).await.unwrap();
        assert_eq!(servers.len(), 2);
        let first = servers.current().unwrap();
        servers.leave(&first);
        servers.leave(&first);
        let second = servers.current().unwrap();
        assert_eq!((first.index, second.index), (0, 1));
        servers.leave(&second);
        assert_eq!(servers.current().unwrap().index, 0);
        // Just read: not again so soon.
        assert!(!servers.renew(&first).await);
        servers.state.write().unwrap().read_at -= PAUSE;
        assert!(servers.renew(&first).await);
        assert!(servers.renew(&first).await, "somebody else has read them");
    }
}
