//! The server: opens the store, listens, and serves until it is stopped.

use super::acknowledged::AcknowledgedFile;
use super::core::{StoreCore, WriteRequest};
use super::directory::OpenError;
use super::lessor::Lessor;
use super::limits::ResponseBudget;
use super::listener::{StoreListener, connection_limit};
use super::options::{AutoCompaction, ListenAddress, StoreOptions};
use super::service::{RequestIntake, StoreService};
use super::storage_fault::StorageFault;
use super::tls::ListenerTls;
use super::watch::WatchHub;
use super::writer::{StoreWriter, WriterLoop};
use futures::StreamExt;
use redb::Database;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::service::Routes;
use tower::util::MapRequestLayer;

/// Interval of the check for expired leases, as in etcd.
const LEASE_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of leases that are revoked concurrently.
const MAX_CONCURRENT_REVOCATIONS: usize = 64;
/// Sync interval of the record of acknowledged commits: after a power cut, the record may be this much out of date.
const ACKNOWLEDGED_SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of concurrent requests and watch streams of one connection; further ones wait.
const MAX_STREAMS_PER_CONNECTION: u32 = 1024;
/// How long connections may take to finish when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the store stopped: {0}")]
    Storage(#[from] StorageFault),
    #[error("{0}")]
    Network(#[from] io::Error),
    #[error("{0}")]
    Transport(#[from] tonic::transport::Error),
}

pub struct StoreServer {
    service: StoreService,
    writer_loop: WriterLoop,
    lifetime: Weak<Database>,
    listeners: Vec<StoreListener>,
    auto_compaction: AutoCompaction,
    acknowledged: Option<Arc<AcknowledgedFile>>,
    stop: watch::Sender<bool>,
}

impl StoreServer {
    /// Opens or creates the data directory and starts to listen; no request is answered before `serve`.
    pub fn open(options: &StoreOptions) -> Result<StoreServer, OpenError> {
        let core = StoreCore::open(&options.data_dir, options.quota_bytes)?;
        let tls = options.tls.clone().map(ListenerTls::new).transpose()?.map(Arc::new);
        let mut listeners = Vec::with_capacity(options.listen.len());
        for address in &options.listen {
            listeners.push(StoreListener::bind(address, options, tls.as_ref())?);
        }
        let latest = core.latest().clone();
        let lifetime = core.lifetime();
        let acknowledged = core.acknowledged().cloned();
        let leases = latest.get().leases().map_err(|fault| OpenError::Corrupt {
            dir: options.data_dir.clone(),
            reason: fault.to_string(),
        })?;
        let lessor = Arc::new(Lessor::new(leases, Instant::now()));
        let hub = Arc::new(WatchHub::new(latest.clone()));
        let (stop, stopped) = watch::channel(false);
        let (writer, writer_loop) = WriterLoop::new(core, lessor.clone(), hub.clone());
        let service = StoreService {
            writer,
            identity: latest.get().identity,
            latest,
            lessor,
            hub,
            answers: ResponseBudget::default(),
            tokens: Arc::default(),
            checking: Arc::new(Semaphore::new(1)),
            hashing: Arc::new(Semaphore::new(2)),
            dir: Some(options.data_dir.clone()),
            client_urls: listeners.iter().map(|listener| listener.url().to_string()).collect(),
            stop: stopped,
        };
        Ok(StoreServer {
            service,
            writer_loop,
            lifetime,
            listeners,
            auto_compaction: options.auto_compaction,
            acknowledged,
            stop,
        })
    }

    /// Returns the addresses on which it listens, with the ports that were assigned.
    pub fn local_addrs(&self) -> Vec<ListenAddress> {
        self.listeners.iter().map(StoreListener::url).collect()
    }

    /// Serves until `shutdown` completes. Afterwards everything acknowledged is on disk and the directory is
    /// unlocked.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let StoreServer { service, writer_loop, lifetime, listeners, auto_compaction, acknowledged, stop } =
            self;
        let writer = service.writer.clone();
        let (ended, mut has_ended) = watch::channel(false);
        let writing: JoinHandle<Result<(), StorageFault>> =
            std::thread::Builder::new().name("store-writer".to_owned()).spawn(move || {
                let result = writer_loop.run();
                let _ = ended.send(true);
                result
            })?;
        let mut chores = JoinSet::new();
        chores.spawn(revoke_expired(service.lessor.clone(), writer.clone()));
        if let Some(acknowledged) = acknowledged {
            chores.spawn(sync_acknowledged(acknowledged));
        }
        chores.spawn(compact_automatically(service.clone(), auto_compaction));
        let intake = Arc::new(RequestIntake::default());
        chores.spawn(intake.clone().sweep());

        let mut stopping = stop.subscribe();
        let routes = service.routes();
        let limit = Arc::new(Semaphore::new(connection_limit()));
        let mut serving = JoinSet::new();
        for listener in listeners {
            let stopped = stop.subscribe();
            serving.spawn(serve_on(listener, routes.clone(), limit.clone(), intake.clone(), stopped));
        }
        drop(routes);
        let mut outcome = Ok(());
        tokio::select! {
            () = shutdown => {}
            _ = has_ended.changed() => {}
            Some(result) = serving.join_next() => outcome = flatten_join(result),
        }
        let _ = stop.send(true);
        let _ = stopping.changed().await;
        chores.shutdown().await;
        let drained = async {
            while let Some(result) = serving.join_next().await {
                if outcome.is_ok() {
                    outcome = flatten_join(result);
                }
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            serving.shutdown().await;
        }
        writer.stop().await;
        let written = tokio::task::spawn_blocking(move || writing.join()).await;
        match written {
            Ok(Ok(result)) => result?,
            _ => return Err(io::Error::other("the writer thread panicked or could not be joined").into()),
        }
        let unused = async {
            while lifetime.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, unused).await.is_err() {
            tracing::warn!(
                "a client still uses the store; its directory stays locked until the process ends"
            );
        }
        outcome
    }
}

fn flatten_join(result: Result<Result<(), ServeError>, tokio::task::JoinError>) -> Result<(), ServeError> {
    result.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}

async fn serve_on(
    listener: StoreListener,
    routes: Routes,
    limit: Arc<Semaphore>,
    intake: Arc<RequestIntake>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ServeError> {
    let server = tonic::transport::Server::builder()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .layer(MapRequestLayer::new(move |request: http::Request<Body>| intake.receive(request)))
        .add_routes(routes);
    let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
    Ok(server.serve_with_incoming_shutdown(listener.incoming(limit)?, stopped).await?)
}

async fn revoke_expired(lessor: Arc<Lessor>, writer: StoreWriter) {
    let mut interval = tokio::time::interval(LEASE_CHECK_INTERVAL);
    loop {
        interval.tick().await;
        // Concurrent revocations share a commit; their number is limited so that they do not delay other writes.
        futures::stream::iter(lessor.expired(Instant::now()))
            .for_each_concurrent(MAX_CONCURRENT_REVOCATIONS, async |id| {
                if let Err(rejection) = writer.write(WriteRequest::Revoke { id }).await {
                    tracing::debug!("cannot revoke lease {id:x}: {rejection}");
                }
            })
            .await;
    }
}

async fn sync_acknowledged(acknowledged: Arc<AcknowledgedFile>) {
    let mut interval = tokio::time::interval(ACKNOWLEDGED_SYNC_INTERVAL);
    loop {
        interval.tick().await;
        let acknowledged = acknowledged.clone();
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || acknowledged.sync()).await {
            tracing::debug!("cannot sync the record of acknowledged commits: {error}");
        }
    }
}

async fn compact_automatically(service: StoreService, mode: AutoCompaction) {
    /// The period is divided into this many steps, so that only slightly more history than configured is kept.
    const PERIOD_STEPS: u32 = 10;
    const REVISION_CHECK_INTERVAL: Duration = Duration::from_secs(300);
    let (pause, steps) = match mode {
        AutoCompaction::Off => return,
        AutoCompaction::Age(age) => {
            ((age / PERIOD_STEPS).max(Duration::from_millis(100)), PERIOD_STEPS as usize)
        }
        AutoCompaction::Revisions(_) => (REVISION_CHECK_INTERVAL, 0),
    };
    let mut seen = VecDeque::new();
    loop {
        tokio::time::sleep(pause).await;
        let state = service.latest.get().state;
        seen.push_back(match mode {
            AutoCompaction::Revisions(keep) => state.revision.saturating_sub(keep),
            _ => state.revision,
        });
        if seen.len() <= steps {
            continue;
        }
        let Some(revision) = seen.pop_front().filter(|revision| *revision > state.compacted.max(1)) else {
            continue;
        };
        match service.writer.write(WriteRequest::Compact { revision }).await {
            Ok(_) => tracing::debug!("compacted revisions before {revision}"),
            Err(refusal) => tracing::debug!("cannot compact revision {revision}: {refusal}"),
        }
    }
}
