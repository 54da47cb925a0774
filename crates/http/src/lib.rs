#![doc = include_str!("../README.md")]

pub mod authority;
mod connections;
pub mod liveness;
mod metrics;
mod opening;
pub mod process;
mod signals;
mod summary;
mod tls;
mod unix_socket;

pub use authority::AuthorityRewriter;
pub use connections::{
    ConnectionActivity, ConnectionAdmission, ConnectionLimits, ConnectionTable, RequestGuard,
};
pub use metrics::{MetricsPage, render_calico_registry, render_registry};
pub use opening::TimedOpening;
#[doc(hidden)]
pub use prometheus_client;
pub use signals::shutdown_signal;
pub use summary::SummaryMetric;
pub use tls::{ListenerTlsError, ListenerTlsFiles, TlsClientPolicy};
pub use unix_socket::{LimitedConnection, UnixSocket};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Connection limits of one listener, in total and per source address.
const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits { total: 64, per_source: 16 };
const DEFAULT_LIMITS: ListenerLimits =
    ListenerLimits { connections: CONNECTION_LIMITS, lifetime: Some(MAX_CONNECTION_LIFETIME) };
/// Time limit for the TLS handshake and for the headers of each request. It also bounds how long a kept-alive
/// connection may wait for its next request.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum lifetime of a connection, so that a slow reader cannot hold it open.
const MAX_CONNECTION_LIFETIME: Duration = Duration::from_secs(60);
const MAX_BUFFER_BYTES: usize = 16 << 10;
/// Delay after `accept` fails, for example because file descriptors are exhausted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    pub connections: ConnectionLimits,
    /// Maximum lifetime of a connection. Responses that never end need `None`.
    pub lifetime: Option<Duration>,
}

/// Binds a listener to `host`, or to all addresses if `host` is empty: dual-stack, or IPv4 only if the kernel has no
/// IPv6.
pub async fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    if !host.is_empty() {
        return TcpListener::bind((host, port)).await;
    }
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}

/// Accepts and serves connections until the future is dropped, which also closes all connections.
pub async fn serve(listener: TcpListener, router: Router, tls: Option<ListenerTlsFiles>, closed: Counter) {
    serve_with_limits(listener, router, tls, closed, DEFAULT_LIMITS).await;
}

/// Accepts and serves connections like `serve`, with other limits.
pub async fn serve_with_limits(
    listener: TcpListener,
    router: Router,
    tls: Option<ListenerTlsFiles>,
    closed: Counter,
    limits: ListenerLimits,
) {
    let mut table = ConnectionTable::new(limits.connections);
    let mut tasks = JoinSet::new();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        let source = from.ip().to_canonical();
        if table.make_room(source) != ConnectionAdmission::Free {
            closed.inc();
        }
        // Connections are never marked busy, so the oldest one is closed: its client had the most time to get a
        // response.
        let activity = ConnectionActivity::default();
        let task = tasks.spawn(serve_connection(stream, router.clone(), tls.clone(), limits.lifetime));
        table.insert(source, activity, task);
    }
}

/// Accepts and serves connections of a Unix socket until the future is dropped. Connections beyond the limit are closed
/// at once and counted.
pub async fn serve_unix_socket(
    socket: &UnixSocket,
    router: Router,
    max_connections: usize,
    refused: &AtomicU64,
) {
    let permits = Arc::new(Semaphore::new(max_connections));
    let mut tasks = JoinSet::new();
    loop {
        let stream = match socket.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection of a Unix socket");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            refused.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        tasks.spawn(serve_requests(LimitedConnection::new(stream, permit), router.clone(), None));
    }
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    tls: Option<ListenerTlsFiles>,
    lifetime: Option<Duration>,
) {
    let Some(tls) = tls else { return serve_requests(stream, router, lifetime).await };
    match tokio::time::timeout(HEADER_READ_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_requests(stream, router, lifetime).await,
        Ok(Err(error)) => tracing::warn!(%error, "TLS handshake of an HTTP connection failed"),
        Err(_) => {}
    }
}

async fn serve_requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    lifetime: Option<Duration>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_READ_TIMEOUT).max_buf_size(MAX_BUFFER_BYTES);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // An error means that the client disconnected; a timeout, that the connection reached its maximum lifetime.
    let _ = match lifetime {
        Some(lifetime) => tokio::time::timeout(lifetime, connection).await,
        None => Ok(connection.await),
    };
}
