//! HTTP connections: never more than there is room for, and none for longer than it takes to answer. And what daemons say
//! there of themselves: whether each of their parts is alive, and what pages of metrics are made of.

pub mod liveness;
pub mod process;
mod summary;
mod tls;

pub use summary::Summary;
pub use tls::{Clients, TlsFiles};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Connections of one listener, of all sources and of one.
const AT_MOST: usize = 64;
const AT_MOST_OF_ONE: usize = 16;
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
    let (mut open, mut tasks) = (Vec::new(), JoinSet::new());
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
        open.retain(|connection: &Connection| !connection.task.is_finished());
        let source = from.ip().to_canonical();
        if let Some(position) = in_the_way(&open, source) {
            open.remove(position).task.abort();
            closed.inc();
        }
        let task = tasks.spawn(converse(stream, router.clone(), tls.clone()));
        open.push(Connection { source, task });
    }
}

struct Connection {
    source: IpAddr,
    task: AbortHandle,
}

/// The connection that has to go so that another one of this source has room: the oldest, since whoever sends a request
/// at once has long been answered.
fn in_the_way(open: &[Connection], source: IpAddr) -> Option<usize> {
    let same = |connection: &Connection| connection.source == source;
    if open.iter().filter(|connection| same(connection)).count() >= AT_MOST_OF_ONE {
        return open.iter().position(same);
    }
    (open.len() >= AT_MOST).then_some(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_makes_room() {
        let mut tasks: JoinSet<()> = JoinSet::new();
        let mut connection = |source: &str| Connection {
            source: source.parse().unwrap(),
            task: tasks.spawn(std::future::pending()),
        };
        let mut open: Vec<Connection> = vec![connection("10.0.0.1")];
        open.extend((1..AT_MOST_OF_ONE).map(|_| connection("10.0.0.2")));
        let (one, two, three) =
            ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), "10.0.0.3".parse().unwrap());
        assert_eq!(in_the_way(&open, two), None);
        open.push(connection("10.0.0.2"));
        assert_eq!(in_the_way(&open, two), Some(1));
        assert_eq!(in_the_way(&open, one), None);
        for number in 0..AT_MOST - open.len() {
            open.push(connection(&format!("10.0.1.{number}")));
        }
        assert_eq!(in_the_way(&open, three), Some(0));
    }
}
