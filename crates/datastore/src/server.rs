//! The server: opens the store, listens, serves until told to stop.

use super::authority::Lenient;
use super::core::{Core, Write};
use super::directory::OpenError;
use super::fault::Fault;
use super::lessor::Lessor;
use super::options::{AutoCompaction, Listen, Options};
use super::service::Service;
use super::watch::Hub;
use super::writer::{Writer, WriterLoop};
use futures::StreamExt;
use redb::Database;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;

/// How often leases are looked over, as in etcd.
const LEASE_INTERVAL: Duration = Duration::from_millis(500);
/// How long connections may take to finish what they do when the server stops.
const DRAIN: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the store stopped: {0}")]
    Storage(#[from] Fault),
    #[error("{0}")]
    Network(#[from] io::Error),
    #[error("{0}")]
    Transport(#[from] tonic::transport::Error),
}

pub struct Server {
    service: Service,
    writer: Writer,
    writer_loop: WriterLoop,
    lifetime: Weak<Database>,
    listeners: Vec<Listener>,
    auto_compaction: AutoCompaction,
    stop: watch::Sender<bool>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Removes the socket when it is no longer listened on.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Server {
    /// Opens the data directory, or makes it, and starts to listen; nothing is answered before `serve`.
    pub fn open(options: &Options) -> Result<Server, OpenError> {
        let core = Core::open(&options.data_dir, options.quota_bytes)?;
        let listeners = options.listen.iter().map(Listener::bind).collect::<Result<Vec<_>, _>>()?;
        let corrupt =
            |fault: Fault| OpenError::Corrupt { dir: options.data_dir.clone(), reason: fault.to_string() };
        let latest = core.latest().clone();
        let lifetime = core.lifetime();
        let leases = latest.get().leases().map_err(corrupt)?;
        let lessor = Arc::new(Lessor::new(leases, Instant::now()));
        let hub = Arc::new(Hub::new(latest.clone()));
        let (stop, stopped) = watch::channel(false);
        let (writer, writer_loop) = WriterLoop::new(core, lessor.clone(), hub.clone());
        let service = Service {
            writer: writer.clone(),
            identity: latest.get().identity,
            latest,
            lessor,
            hub,
            dir: Some(options.data_dir.clone()),
            client_urls: listeners.iter().map(|listener| listener.url().to_string()).collect(),
            stop: stopped,
        };
        let auto_compaction = options.auto_compaction;
        Ok(Server { service, writer, writer_loop, lifetime, listeners, auto_compaction, stop })
    }

    /// Where it listens, with the ports that were chosen.
    pub fn local_addrs(&self) -> Vec<Listen> {
        self.listeners.iter().map(Listener::url).collect()
    }

    /// Serves until `shutdown` completes; then everything acknowledged is on disk and the directory is free.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Server { service, writer, writer_loop, lifetime, listeners, auto_compaction, stop } = self;
        let (ended, mut has_ended) = watch::channel(false);
        let writing: JoinHandle<Result<(), Fault>> =
            std::thread::Builder::new().name("store-writer".to_owned()).spawn(move || {
                let result = writer_loop.run();
                let _ = ended.send(true);
                result
            })?;
        let mut chores = JoinSet::new();
        chores.spawn(revoke_expired(service.lessor.clone(), writer.clone()));
        chores.spawn(compact_in_time(service.clone(), auto_compaction));

        let mut stopping = stop.subscribe();
        let routes = service.routes();
        let mut serving = JoinSet::new();
        for listener in listeners {
            let stopped = stop.subscribe();
            serving.spawn(listener.serve(routes.clone(), stopped));
        }
        drop(routes);
        let mut outcome = Ok(());
        tokio::select! {
            () = shutdown => {}
            _ = has_ended.changed() => {}
            Some(result) = serving.join_next() => outcome = joined(result),
        }
        let _ = stop.send(true);
        let _ = stopping.changed().await;
        chores.shutdown().await;
        let drained = async {
            while let Some(result) = serving.join_next().await {
                if outcome.is_ok() {
                    outcome = joined(result);
                }
            }
        };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            serving.shutdown().await;
        }
        writer.stop().await;
        let written = tokio::task::spawn_blocking(move || writing.join()).await;
        match written {
            Ok(Ok(result)) => result?,
            _ => return Err(io::Error::other("the writer did not end as it should").into()),
        }
        let unused = async {
            while lifetime.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(DRAIN, unused).await.is_err() {
            tracing::warn!(
                "a client still holds on to the store; its directory is free when the process ends"
            );
        }
        outcome
    }
}

fn joined(result: Result<Result<(), ServeError>, tokio::task::JoinError>) -> Result<(), ServeError> {
    result.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}

impl Listener {
    fn bind(listen: &Listen) -> Result<Listener, OpenError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => OpenError::AddressInUse { url: listen.to_string() },
            _ => OpenError::Listen { url: listen.to_string(), source },
        };
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Listener::Tcp(listener))
            }
            Listen::Unix(path) => {
                remove_stale_socket(path).map_err(failed)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                let file = SocketFile(path.clone());
                fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Listener::Unix(listener, file))
            }
        }
    }

    fn url(&self) -> Listen {
        match self {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(address) => Listen::Tcp(address),
                Err(_) => Listen::Tcp(([127, 0, 0, 1], 0).into()),
            },
            Listener::Unix(_, file) => Listen::Unix(file.0.clone()),
        }
    }

    async fn serve(self, routes: Routes, mut stop: watch::Receiver<bool>) -> Result<(), ServeError> {
        let server = tonic::transport::Server::builder()
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .add_routes(routes);
        let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
        match self {
            Listener::Tcp(listener) => {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                let incoming = incoming.map(|connection| connection.map(Lenient::new));
                server.serve_with_incoming_shutdown(incoming, stopped).await?;
            }
            Listener::Unix(listener, _file) => {
                let incoming = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener)?);
                let incoming = incoming.map(|connection| connection.map(Lenient::new));
                server.serve_with_incoming_shutdown(incoming, stopped).await?;
            }
        }
        Ok(())
    }
}

/// A socket nobody listens on was left by a crash; anything else under that name is not ours to remove.
fn remove_stale_socket(path: &PathBuf) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
            Err(error) => Err(error),
        },
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket has this name")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

async fn revoke_expired(lessor: Arc<Lessor>, writer: Writer) {
    let mut interval = tokio::time::interval(LEASE_INTERVAL);
    loop {
        interval.tick().await;
        for id in lessor.expired(Instant::now()) {
            if let Err(refusal) = writer.write(Write::Revoke { id }).await {
                tracing::debug!("lease {id:x} was not revoked: {refusal}");
            }
        }
    }
}

async fn compact_in_time(service: Service, how: AutoCompaction) {
    /// A period is looked at in this many steps, so that little more than it is kept.
    const STEPS: u32 = 10;
    const CHECK: Duration = Duration::from_secs(300);
    let (pause, steps) = match how {
        AutoCompaction::Off => return,
        AutoCompaction::Age(age) => ((age / STEPS).max(Duration::from_millis(100)), STEPS as usize),
        AutoCompaction::Revisions(_) => (CHECK, 0),
    };
    let mut seen = VecDeque::new();
    loop {
        tokio::time::sleep(pause).await;
        let state = service.latest.get().state;
        seen.push_back(match how {
            AutoCompaction::Revisions(keep) => state.revision.saturating_sub(keep),
            _ => state.revision,
        });
        if seen.len() <= steps {
            continue;
        }
        let Some(revision) = seen.pop_front().filter(|revision| *revision > state.compacted.max(1)) else {
            continue;
        };
        match service.writer.write(Write::Compact { revision }).await {
            Ok(_) => tracing::debug!("compacted revisions before {revision}"),
            Err(refusal) => tracing::debug!("revision {revision} was not compacted: {refusal}"),
        }
    }
}
