//! The hub at work: it takes in the store's feed, accepts clients and sends each of them what it still has to get.

mod accept;
mod buffer_budget;
mod complaints;
mod drain;
mod frame_queue;
mod metrics;
mod registry;
mod serve;
mod sources;

pub use metrics::Metrics;

use crate::ledger::{self, Ledger};
use crate::tls::ServerTls;
use buffer_budget::BufferBudget;
use complaints::Complaints;
use registry::Registry;
use sources::SourceCounts;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tortie_http::liveness::Liveness;
use tortie_model::{KeyRange, Kind};
use tortie_sync::Heard;

/// Words of the store that are taken in at once.
const BATCH: usize = 1024;
/// Between signs of life of a part that has nothing to do.
const BEAT: Duration = Duration::from_secs(1);

/// Limits and deadlines.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Connections in all.
    pub connections: usize,
    /// Clients of one source address: several nodes may share one behind NAT.
    pub connections_of_one: usize,
    /// Bytes that are on their way to all clients together.
    pub buffers: usize,
    /// Connections that have not said who they are, in all and of one source.
    pub handshakes: usize,
    pub handshakes_of_one: usize,
    /// Until when a client must have said who it is.
    pub handshake: Duration,
    /// For how long a client may take nothing of what is sent.
    pub write: Duration,
    pub ping: Duration,
    /// For how long a client may say nothing.
    pub pong: Duration,
    /// For how long a client that knows more than this hub waits for it to catch up.
    pub catch_up: Duration,
    /// Between two rounds of sending changes, for each client: what a round costs, so that sending takes a part of one core however
    /// many there are.
    pub pace: Duration,
    /// For how long a part of the hub may give no sign of life.
    pub silence: Duration,
    pub log: ledger::Limits,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: 10_000,
            connections_of_one: 256,
            buffers: 256 << 20,
            handshakes: 4096,
            handshakes_of_one: 1024,
            handshake: Duration::from_secs(10),
            write: Duration::from_secs(120),
            ping: Duration::from_secs(10),
            pong: Duration::from_secs(60),
            catch_up: Duration::from_secs(10),
            pace: Duration::from_micros(20),
            silence: Duration::from_secs(90),
            log: ledger::Limits::default(),
        }
    }
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Hub(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    ledger: RwLock<Ledger>,
    /// The ledger's, for whoever waits for it to move on.
    sequence: watch::Sender<u64>,
    in_sync: watch::Sender<bool>,
    clients: Registry,
    sources: Arc<SourceCounts>,
    budget: BufferBudget,
    complaints: Complaints,
    metrics: Metrics,
    liveness: Liveness,
    /// The hub is about to end: nobody new is served.
    draining: AtomicBool,
}

impl Hub {
    pub fn new(ranges: &[KeyRange], options: Options) -> Hub {
        let ledger = Ledger::new(rand::random(), ranges, options.log);
        Hub(Arc::new(Shared {
            liveness: Liveness::new(options.silence),
            sources: SourceCounts::new(options.connections, options.connections_of_one),
            budget: BufferBudget::new(options.buffers),
            options,
            ledger: RwLock::new(ledger),
            sequence: watch::Sender::new(0),
            in_sync: watch::Sender::new(false),
            clients: Registry::default(),
            complaints: Complaints::default(),
            metrics: Metrics::new(),
            draining: AtomicBool::new(false),
        }))
    }

    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Signs of life of the parts.
    pub fn liveness(&self) -> &Liveness {
        &self.0.liveness
    }

    /// Whether the datastore has been read completely: only then clients are served.
    pub fn is_in_sync(&self) -> bool {
        *self.0.in_sync.borrow()
    }

    /// Returns when it is.
    pub async fn in_sync(&self) {
        // Fails only if the hub is gone, which is borrowed here.
        let _ = self.0.in_sync.subscribe().wait_for(|in_sync| *in_sync).await;
    }

    /// Why the datastore cannot be reached, if it cannot.
    pub fn trouble(&self) -> Option<String> {
        self.0.ledger().status().trouble.clone()
    }

    /// Clients that have said who they are.
    pub fn clients(&self) -> usize {
        self.0.clients.len()
    }

    /// Nodes of the cluster, as the datastore knows them.
    pub fn nodes(&self) -> usize {
        self.0.ledger().count(Kind::Node)
    }

    /// Takes in what the store says until its feed ends.
    pub async fn follow(&self, mut feed: mpsc::Receiver<Heard>) {
        let (mut batch, mut tick) = (Vec::with_capacity(BATCH), tokio::time::interval(BEAT));
        let heartbeat = self.0.liveness.part("felix-cache");
        loop {
            heartbeat.beat();
            tokio::select! {
                heard = feed.recv_many(&mut batch, BATCH) => if heard == 0 { return },
                _ = tick.tick() => continue,
            }
            let (sequence, in_sync) = {
                let mut ledger = self.0.ledger.write().unwrap_or_else(PoisonError::into_inner);
                ledger.hear(batch.drain(..));
                self.0.metrics.ledger(&ledger);
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

    /// Accepts clients until it is dropped, and all of them with it.
    pub async fn serve(&self, listener: TcpListener, tls: Option<ServerTls>) {
        accept::accept(&self.0, listener, tls.map(Arc::new)).await;
    }

    /// Asks the clients to leave, one after the other, so that other hubs get them over this time.
    pub async fn drain(&self, within: Duration, longest_pause: Duration) {
        drain::drain(&self.0, within, longest_pause).await;
    }

    /// Asks one client, picked at random, to leave while there are more than this.
    pub async fn shed(&self, limit: watch::Receiver<usize>, pause: Duration) {
        drain::shed(&self.0, limit, pause).await;
    }
}

impl Shared {
    fn ledger(&self) -> RwLockReadGuard<'_, Ledger> {
        self.ledger.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;
    use tortie_model::FeedEvent;

    /// Waits until the page is as it should be.
    async fn page(hub: &Hub, code: StatusCode) -> String {
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
    async fn a_cache_that_is_stuck_fails_liveness_by_name() {
        let options = Options { silence: Duration::from_secs(3), ..Options::default() };
        let hub = Hub::new(&[KeyRange::all(Kind::Tier)], options);
        let (sender, feed) = mpsc::channel(1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (following, serving) = (hub.clone(), hub.clone());
        let following = tokio::spawn(async move { following.follow(feed).await });
        let serving = tokio::spawn(async move { serving.serve(listener, None).await });
        while hub.liveness().parts().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(page(&hub, StatusCode::OK).await, "SyncServer: alive\nfelix-cache: alive\n");

        // Somebody does not let go of the ledger, and there is news for it.
        let (release, released) = std::sync::mpsc::channel::<()>();
        let holder = hub.clone();
        let (held, is_held) = std::sync::mpsc::channel();
        let holder = std::thread::spawn(move || {
            let _ledger = holder.0.ledger.write().unwrap();
            held.send(()).unwrap();
            let _ = released.recv();
        });
        is_held.recv().unwrap();
        sender.send(Heard::Event(FeedEvent::InSync)).await.unwrap();
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
