//! The running hub: applies the store's feed to the ledger, accepts clients and sends each of them the data of its
//! session.

mod accept;
mod buffer_budget;
mod client_registry;
mod client_warnings;
mod connection;
mod drain;
mod frame_queue;
mod metrics;
mod source_counts;

pub use metrics::HubMetrics;

use crate::ledger::{self, HubLedger};
use crate::tls::ServerTls;
use buffer_budget::BufferBudget;
use client_registry::ClientRegistry;
use client_warnings::ClientWarnings;
use source_counts::SourceCounts;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tortie_http::liveness::Liveness;
use tortie_model::{KeyRange, Kind};
use tortie_sync::FeedMessage;

/// Maximum number of feed events applied in one batch.
const MAX_EVENT_BATCH: usize = 1024;
/// Interval between heartbeats of an idle component.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Limits and timeouts of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct HubServerOptions {
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum number of clients per source address: several nodes may share one behind NAT.
    pub connections_per_source: usize,
    /// Maximum number of bytes in flight to all clients together.
    pub buffers: usize,
    /// Maximum number of connections without a hello, in total and per source address.
    pub handshakes: usize,
    pub handshakes_per_source: usize,
    /// Time within which a client must send its hello.
    pub handshake: Duration,
    /// Time after which a write that the client does not read fails.
    pub write: Duration,
    pub ping: Duration,
    /// Time after which a silent client is disconnected.
    pub pong: Duration,
    /// How long the hub waits to catch up with a client that has seen newer revisions.
    pub catch_up: Duration,
    /// Delay per client between two batches of changes. It is the cost of sending to one client, so that sending uses
    /// a bounded part of one core however many clients there are.
    pub pace: Duration,
    /// Time after which a component without a heartbeat fails the liveness probe.
    pub silence: Duration,
    pub log: ledger::ChangeLogLimits,
}

impl Default for HubServerOptions {
    fn default() -> HubServerOptions {
        HubServerOptions {
            connections: 10_000,
            connections_per_source: 256,
            buffers: 256 << 20,
            handshakes: 4096,
            handshakes_per_source: 1024,
            handshake: Duration::from_secs(10),
            write: Duration::from_secs(120),
            ping: Duration::from_secs(10),
            pong: Duration::from_secs(60),
            catch_up: Duration::from_secs(10),
            pace: Duration::from_micros(20),
            silence: Duration::from_secs(90),
            log: ledger::ChangeLogLimits::default(),
        }
    }
}

/// Handle of a hub; cheap to clone.
#[derive(Clone, Debug)]
pub struct HubServer(Arc<HubState>);

#[derive(Debug)]
struct HubState {
    options: HubServerOptions,
    ledger: RwLock<HubLedger>,
    /// Sequence number of the ledger; sessions wait for it to advance.
    sequence: watch::Sender<u64>,
    in_sync: watch::Sender<bool>,
    clients: ClientRegistry,
    sources: Arc<SourceCounts>,
    budget: BufferBudget,
    warnings: ClientWarnings,
    metrics: HubMetrics,
    liveness: Liveness,
    /// The hub is shutting down: new clients are rejected.
    draining: AtomicBool,
}

impl HubServer {
    pub fn new(ranges: &[KeyRange], options: HubServerOptions) -> HubServer {
        let ledger = HubLedger::new(rand::random(), ranges, options.log);
        HubServer(Arc::new(HubState {
            liveness: Liveness::new(options.silence),
            sources: SourceCounts::new(options.connections, options.connections_per_source),
            budget: BufferBudget::new(options.buffers),
            options,
            ledger: RwLock::new(ledger),
            sequence: watch::Sender::new(0),
            in_sync: watch::Sender::new(false),
            clients: ClientRegistry::default(),
            warnings: ClientWarnings::default(),
            metrics: HubMetrics::new(),
            draining: AtomicBool::new(false),
        }))
    }

    pub fn metrics(&self) -> &HubMetrics {
        &self.0.metrics
    }

    /// Returns the heartbeats of the components.
    pub fn liveness(&self) -> &Liveness {
        &self.0.liveness
    }

    /// Returns whether the datastore has been read completely. Clients are served only then.
    pub fn is_in_sync(&self) -> bool {
        *self.0.in_sync.borrow()
    }

    /// Waits until the datastore has been read completely.
    pub async fn in_sync(&self) {
        // Fails only when the sender is dropped, which `self` keeps alive.
        let _ = self.0.in_sync.subscribe().wait_for(|in_sync| *in_sync).await;
    }

    /// Returns why the datastore is unreachable, if it is.
    pub fn trouble(&self) -> Option<String> {
        self.0.ledger().status().trouble.clone()
    }

    /// Returns the number of clients that have sent a valid hello.
    pub fn clients(&self) -> usize {
        self.0.clients.len()
    }

    /// Returns the number of nodes of the cluster according to the datastore.
    pub fn nodes(&self) -> usize {
        self.0.ledger().count(Kind::Node)
    }

    /// Applies the store's feed until it ends.
    pub async fn follow(&self, mut feed: mpsc::Receiver<FeedMessage>) {
        let mut batch = Vec::with_capacity(MAX_EVENT_BATCH);
        let mut tick = tokio::time::interval(HEARTBEAT_INTERVAL);
        let heartbeat = self.0.liveness.part("felix-cache");
        loop {
            heartbeat.beat();
            tokio::select! {
                received = feed.recv_many(&mut batch, MAX_EVENT_BATCH) => if received == 0 { return },
                _ = tick.tick() => continue,
            }
            let (sequence, in_sync) = {
                let mut ledger = self.0.ledger.write().unwrap_or_else(PoisonError::into_inner);
                ledger.apply_feed(batch.drain(..));
                self.0.metrics.set_ledger(&ledger);
                (ledger.sequence(), ledger.is_in_sync())
            };
            let moved =
                self.0.sequence.send_if_modified(|known| std::mem::replace(known, sequence) != sequence);
            self.0.in_sync.send_if_modified(|known| std::mem::replace(known, in_sync) != in_sync);
            if moved {
                let clients = u32::try_from(self.clients()).unwrap_or(u32::MAX);
                tokio::time::sleep(self.0.options.pace * clients).await;
            }
        }
    }

    /// Accepts clients. Dropping the future disconnects all of them.
    pub async fn serve(&self, listener: TcpListener, tls: Option<ServerTls>) {
        accept::accept(&self.0, listener, tls.map(Arc::new)).await;
    }

    /// Asks all clients to leave, one after the other within this time, so that other hubs do not receive them all at
    /// once.
    pub async fn drain(&self, within: Duration, longest_pause: Duration) {
        drain::drain(&self.0, within, longest_pause).await;
    }

    /// Asks a random client to leave whenever there are more than `limit`.
    pub async fn shed_clients(&self, limit: watch::Receiver<usize>, pause: Duration) {
        drain::shed_clients(&self.0, limit, pause).await;
    }
}

impl HubState {
    fn ledger(&self) -> RwLockReadGuard<'_, HubLedger> {
        self.ledger.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;
    use tortie_model::FeedEvent;

    /// Waits until the liveness page has this status code and returns its text.
    async fn page(hub: &HubServer, code: StatusCode) -> String {
        let patience = Duration::from_secs(60);
        let looking = async {
            loop {
                let (found, page) = hub.liveness().page();
                if found == code {
                    return page;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(patience, looking).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_stuck_cache_fails_liveness_by_name() {
        let options = HubServerOptions { silence: Duration::from_secs(3), ..HubServerOptions::default() };
        let hub = HubServer::new(&[KeyRange::all(Kind::Tier)], options);
        let (sender, feed) = mpsc::channel(1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (following, serving) = (hub.clone(), hub.clone());
        let following = tokio::spawn(async move { following.follow(feed).await });
        let serving = tokio::spawn(async move { serving.serve(listener, None).await });
        while hub.liveness().parts().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(page(&hub, StatusCode::OK).await, "SyncServer: alive\nfelix-cache: alive\n");

        // A thread holds the ledger's lock while an event arrives for it.
        let (release, released) = std::sync::mpsc::channel::<()>();
        let holder = hub.clone();
        let (held, is_held) = std::sync::mpsc::channel();
        let holder = std::thread::spawn(move || {
            let _ledger = holder.0.ledger.write().unwrap();
            held.send(()).unwrap();
            let _ = released.recv();
        });
        is_held.recv().unwrap();
        sender.send(FeedMessage::Event(FeedEvent::InSync)).await.unwrap();
        let stuck = page(&hub, StatusCode::SERVICE_UNAVAILABLE).await;
        assert!(stuck.contains("felix-cache: no sign of life for "), "{stuck}");
        assert!(stuck.contains("SyncServer: alive"), "{stuck}");
        drop(release);
        holder.join().unwrap();
        page(&hub, StatusCode::OK).await;
        hub.in_sync().await;
        serving.abort();
        drop(sender);
        following.await.unwrap();
    }
}
