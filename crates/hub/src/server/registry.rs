//! The registry of served clients, from which clients are picked to be asked to leave.

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

    pub fn enter(&self) -> ClientRegistration<'_> {
        let mut state = self.state();
        let (id, asked) = (state.next, Arc::new(Notify::new()));
        state.next += 1;
        state.clients.insert(id, asked.clone());
        ClientRegistration { registry: self, id, asked }
    }

    pub fn len(&self) -> usize {
        self.state().clients.len()
    }

    /// Asks a random client to leave, and removes it so that it is not asked again. Returns false if there are no
    /// clients.
    pub fn ask_one(&self) -> bool {
        let mut state = self.state();
        if state.clients.is_empty() {
            return false;
        }
        let picked = rand::random_range(0..state.clients.len());
        let Some(id) = state.clients.keys().nth(picked).copied() else { return false };
        if let Some(asked) = state.clients.remove(&id) {
            asked.notify_one();
        }
        true
    }
}

impl ClientRegistration<'_> {
    /// Waits until this client is asked to leave.
    pub async fn asked(&self) {
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
    async fn each_is_asked_once_and_who_left_is_gone() {
        let registry = ClientRegistry::default();
        let places: Vec<ClientRegistration> = (0..3).map(|_| registry.enter()).collect();
        assert_eq!(registry.len(), 3);
        assert!(registry.ask_one() && registry.ask_one() && registry.ask_one());
        assert!(!registry.ask_one());
        for place in &places {
            place.asked().await;
        }
        drop(places);
        let place = registry.enter();
        assert_eq!(registry.len(), 1);
        drop(place);
        assert_eq!(registry.len(), 0);
    }
}
