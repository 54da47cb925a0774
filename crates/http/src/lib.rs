//! HTTP connections: never more than there is room for, and none for longer than it takes to answer. And what daemons say
//! there of themselves: whether each of their parts is alive, and what pages of metrics are made of.

mod connections;
pub mod liveness;
pub mod process;
mod summary;
mod tls;

pub use connections::{Admission, ConnectionActivity, ConnectionLimits, ConnectionTable, RequestGuard};
pub use summary::Summary;
pub use tls::{Clients, TlsFiles};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Connections of one listener, of all sources and of one.
const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits { total: 64, per_source: 16 };
/// A request has to be sent within this time; a connection that is kept alive for the next one is closed after it.
const HEADERS: Duration = Duration::from_secs(5);
/// Also the slowest reader is done by then, or is not waited for.
const LIFETIME: Duration = Duration::from_secs(60);
const BUFFER: usize = 16 << 10;
/// After a failure to accept: descriptors may be short.
const PAUSE: Duration = Duration::from_millis(100);

/// On all addresses unless a host is named: of both families, or of IPv4 where the kernel has no other.
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

/// Serves until it is dropped, and all connections with it.
pub async fn serve(listener: TcpListener, router: Router, tls: Option<TlsFiles>, closed: Counter) {
    let (mut table, mut tasks) = (ConnectionTable::new(CONNECTION_LIMITS), JoinSet::new());
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        let source = from.ip().to_canonical();
        if table.make_room(source) != Admission::Free {
            closed.inc();
        }
        // Never busy, so that the oldest gives way: whoever sends a request at once has long been answered.
        let activity = ConnectionActivity::default();
        let task = tasks.spawn(converse(stream, router.clone(), tls.clone()));
        table.insert(source, activity, task);
    }
}

async fn converse(stream: TcpStream, router: Router, tls: Option<TlsFiles>) {
    let Some(tls) = tls else { return answer(stream, router).await };
    match tokio::time::timeout(HEADERS, tls.accept(stream)).await {
        Ok(Ok(stream)) => answer(stream, router).await,
        Ok(Err(error)) => tracing::warn!(%error, "an HTTP connection is refused: TLS"),
        Err(_) => {}
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS).max_buf_size(BUFFER);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // Whoever asked went away, or took too long.
    let _ = tokio::time::timeout(LIFETIME, connection).await;
}
