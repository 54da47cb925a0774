//! Asks clients to leave: all of them before the hub ends, or some of them when other hubs have room.

use super::HubState;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// Share of the available time used for draining, so that the last client still receives its message.
const DRAIN_TIME_SHARE: f64 = 0.95;

/// Asks all clients to leave, spread over `within` but at most `longest_pause` apart.
pub async fn drain(shared: &HubState, within: Duration, longest_pause: Duration) {
    shared.draining.store(true, Ordering::Relaxed);
    let clients = u32::try_from(shared.clients.len()).unwrap_or(u32::MAX);
    if clients == 0 {
        return;
    }
    let pause = longest_pause.min(within.mul_f64(DRAIN_TIME_SHARE) / clients);
    tracing::info!(clients, ?pause, "asking the clients to leave, one after the other");
    while shared.clients.ask_random_client() {
        tokio::time::sleep(pause).await;
    }
}

/// Asks one client at a time to leave while there are more than `limit`. Never returns.
pub async fn shed_clients(shared: &HubState, limit: watch::Receiver<usize>, pause: Duration) {
    loop {
        tokio::time::sleep(pause).await;
        let limit = *limit.borrow();
        if shared.clients.len() > limit && shared.clients.ask_random_client() {
            shared.metrics.dropped.inc();
            tracing::debug!(limit, "asked a client to leave: other hubs have room");
        }
    }
}
