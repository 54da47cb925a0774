//! The registry of served clients, which asks random clients to connect to another hub.

use rand::seq::IteratorRandom as _;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub struct ClientRegistry(Mutex<ClientRegistryState>);

#[derive(Debug, Default)]
struct ClientRegistryState {
    next: u64,
    clients: BTreeMap<u64, Arc<Notify>>,
}

/// Registration of a client; removed on drop.
#[derive(Debug)]
pub struct ClientRegistration<'a> {
    registry: &'a ClientRegistry,
    id: u64,
    asked: Arc<Notify>,
}

impl ClientRegistry {
    fn state(&self) -> MutexGuard<'_, ClientRegistryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn register(&self) -> ClientRegistration<'_> {
        let mut state = self.state();
        let id = state.next;
        let asked = Arc::new(Notify::new());
        state.next += 1;
        state.clients.insert(id, asked.clone());
        ClientRegistration { registry: self, id, asked }
    }

    pub fn len(&self) -> usize {
        self.state().clients.len()
    }

    /// Asks a random client to leave, and removes it so that it is not asked again. Returns false if there are no
    /// clients.
    pub fn ask_random_client(&self) -> bool {
        let mut state = self.state();
        let Some(id) = state.clients.keys().copied().choose(&mut rand::rng()) else { return false };
        if let Some(asked) = state.clients.remove(&id) {
            asked.notify_one();
        }
        true
    }
}

impl ClientRegistration<'_> {
    /// Waits until this client is asked to leave.
    pub async fn wait_until_asked(&self) {
        self.asked.notified().await;
    }
}

impl Drop for ClientRegistration<'_> {
    fn drop(&mut self) {
        self.registry.state().clients.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_client_is_asked_to_leave_once() {
        let registry = ClientRegistry::default();
        let registered: Vec<ClientRegistration> = (0..3).map(|_| registry.register()).collect();
        assert_eq!(registry.len(), 3);
        assert!(registry.ask_random_client() && registry.ask_random_client() && registry.ask_random_client());
        assert!(!registry.ask_random_client());
        for registration in &registered {
            registration.wait_until_asked().await;
        }
        drop(registered);
        let registration = registry.register();
        assert_eq!(registry.len(), 1);
        drop(registration);
        assert_eq!(registry.len(), 0);
    }
}
