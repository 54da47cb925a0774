//! The server: binds the listener, follows the datastore and serves until it is stopped.

use crate::access::{AccessControl, AccessMode, guard};
use crate::assets::serve_asset;
use crate::changes::ClusterFeed;
use crate::events::MAX_STREAMS;
use crate::listen::ConsoleListen;
use crate::snapshot::SnapshotCache;
use crate::views::{self, ConsoleState};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tortie_flows::CollectorTarget;
use tortie_http::{ConnectionLimits, ListenerLimits, ListenerTlsFiles, UnixSocket};
use tortie_store::ResourceClient;

/// Maximum number of connections. On loopback all have the same source.
const MAX_CONNECTIONS: usize = 256;
/// Connections of one user with a certificate.
const MAX_SOURCE_CONNECTIONS: usize = 32;
/// Maximum size of a request body, that is, of the YAML to compare.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Computations of all clients that run at the same time.
pub const MAX_COMPUTATIONS: usize = 2;
/// Owner and group may connect to the socket.
const SOCKET_MODE: u32 = 0o660;

pub struct ConsoleOptions {
    pub listen: ConsoleListen,
    pub store: ResourceClient,
    /// The collector of flow records, if there is one.
    pub collector: Option<CollectorTarget>,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Address { address: SocketAddr, source: io::Error },
    #[error("cannot listen on the socket {}: {source}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("cannot give the socket {} to group {group}: {source}", path.display())]
    Group { path: PathBuf, group: u32, source: io::Error },
    #[error(transparent)]
    Certificate(#[from] tortie_http::ListenerTlsError),
    #[error("cannot handle signals: {0}")]
    Signal(io::Error),
}

/// Serves until SIGTERM or SIGINT.
pub async fn run_console(options: ConsoleOptions) -> Result<(), ServeError> {
    let shutdown = tortie_http::shutdown_signal().map_err(ServeError::Signal)?;
    let client = options.store.client().clone();
    let feed = ClusterFeed::new();
    let shared = ConsoleShared {
        snapshots: Arc::new(SnapshotCache::new(options.store, feed.clone())),
        feed: feed.clone(),
        collector: options.collector,
        streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        computations: Arc::new(Semaphore::new(MAX_COMPUTATIONS)),
    };
    let serving = async {
        match options.listen {
            ConsoleListen::Socket { path, group } => serve_socket(path, group, shared).await,
            ConsoleListen::Loopback(address) => serve_loopback(address, shared).await,
            ConsoleListen::Certificates { address, tls } => serve_tls(address, tls, shared).await,
        }
    };
    tokio::select! {
        () = shutdown => Ok(()),
        result = serving => result,
        () = feed.follow(&client) => Ok(()),
    }
}

/// The parts of the state that do not depend on the listener.
struct ConsoleShared {
    snapshots: Arc<SnapshotCache>,
    feed: Arc<ClusterFeed>,
    collector: Option<CollectorTarget>,
    streams: Arc<Semaphore>,
    computations: Arc<Semaphore>,
}

impl ConsoleShared {
    fn into_router(self, access: Arc<AccessControl>, announce: Option<LinkPrinter>) -> Router {
        let ConsoleShared { snapshots, feed, collector, streams, computations } = self;
        let state = ConsoleState {
            access: access.clone(),
            announce,
            snapshots,
            feed,
            collector,
            streams,
            computations,
            layouts: Mutex::default(),
        };
        views::routes()
            .fallback(axum::routing::get(serve_asset))
            .with_state(Arc::new(state))
            .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
            .layer(middleware::from_fn_with_state(access, guard))
    }
}

/// Prints the link with which a browser signs in.
#[derive(Clone, Copy, Debug)]
pub struct LinkPrinter {
    address: SocketAddr,
}

impl LinkPrinter {
    /// Prints a new link, which replaces the last one.
    pub fn print_link(self, access: &AccessControl) {
        let token = access.sessions.lock().unwrap_or_else(PoisonError::into_inner).issue_token();
        // After `#`, so that no request and no history of a proxy contains it.
        let line = format!("open http://{}/sign-in#{token}\n", self.address);
        let mut out = io::stdout();
        // The console also serves existing sessions when standard output is closed.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }
}

async fn serve_loopback(address: SocketAddr, shared: ConsoleShared) -> Result<(), ServeError> {
    let (listener, address) = bind(address).await?;
    let access = Arc::new(AccessControl::new(AccessMode::Session { port: address.port() }));
    let displaced = access.metrics.displaced_connections.clone();
    let printer = LinkPrinter { address };
    printer.print_link(&access);
    let router = shared.into_router(access, Some(printer));
    let limits = limit_connections(MAX_CONNECTIONS);
    tortie_http::serve_with_limits(listener, router, None, displaced, limits).await;
    Ok(())
}

async fn serve_tls(
    address: SocketAddr,
    tls: ListenerTlsFiles,
    shared: ConsoleShared,
) -> Result<(), ServeError> {
    tls.check()?;
    let (listener, address) = bind(address).await?;
    print_ready(&format!("https://{address}, for clients with a certificate"));
    let access = Arc::new(AccessControl::new(AccessMode::Connection { tls: true }));
    let displaced = access.metrics.displaced_connections.clone();
    let router = shared.into_router(access, None);
    let limits = limit_connections(MAX_SOURCE_CONNECTIONS);
    tortie_http::serve_with_limits(listener, router, Some(tls), displaced, limits).await;
    Ok(())
}

async fn serve_socket(path: PathBuf, group: Option<u32>, shared: ConsoleShared) -> Result<(), ServeError> {
    // The socket is never open to others: only the owner may connect before it has its group.
    let mode = if group.is_some() { 0o600 } else { SOCKET_MODE };
    let socket =
        UnixSocket::bind(&path, mode).map_err(|source| ServeError::Socket { path: path.clone(), source })?;
    if let Some(group) = group {
        std::os::unix::fs::chown(&path, None, Some(group))
            .and_then(|()| {
                std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(SOCKET_MODE))
            })
            .map_err(|source| ServeError::Group { path: path.clone(), group, source })?;
    }
    print_ready(&format!("the socket {}", path.display()));
    let access = Arc::new(AccessControl::new(AccessMode::Connection { tls: false }));
    let refused = access.metrics.refused_connections.clone();
    let router = shared.into_router(access, None);
    tortie_http::serve_unix_socket(&socket, router, MAX_CONNECTIONS, refused.inner()).await;
    Ok(())
}

fn limit_connections(per_source: usize) -> ListenerLimits {
    // Streams of events do not end.
    ListenerLimits { connections: ConnectionLimits { total: MAX_CONNECTIONS, per_source }, lifetime: None }
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    let listener =
        TcpListener::bind(address).await.map_err(|source| ServeError::Address { address, source })?;
    let address = listener.local_addr().map_err(|source| ServeError::Address { address, source })?;
    Ok((listener, address))
}

fn print_ready(place: &str) {
    let mut out = io::stdout();
    // The console also serves when standard output is closed.
    let _ = writeln!(out, "ready: console on {place}").and_then(|()| out.flush());
}
