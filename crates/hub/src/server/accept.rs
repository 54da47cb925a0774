//! Accepts connections, within a total limit and a limit per source address, and logs how they end.

use super::connection::{ClientDisconnect, serve_client};
use super::source_counts::{SourceCounts, SourceSlot};
use super::{HEARTBEAT_INTERVAL, HubState};
use crate::tls::ServerTls;
use socket2::SockRef;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// First and longest delay after a failed accept: the process may be out of file descriptors.
const MIN_ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(10);
const MAX_ACCEPT_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Limit of unsent bytes in the kernel for a client that does not read (TCP_NOTSENT_LOWAT), beside the client's
/// receive window.
const MAX_UNSENT_BYTES: u32 = 128 << 10;

pub async fn accept(shared: &Arc<HubState>, listener: TcpListener, tls: Option<Arc<ServerTls>>) {
    let options = &shared.options;
    let strangers = SourceCounts::new(options.handshakes, options.handshakes_per_source);
    let mut tasks = JoinSet::new();
    let mut pause = None;
    let mut tick = tokio::time::interval(HEARTBEAT_INTERVAL);
    let heartbeat = shared.liveness.part("SyncServer");
    loop {
        heartbeat.beat();
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = tick.tick() => continue,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            // The client aborted the connection before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                if pause.is_none() {
                    tracing::error!(%error, "cannot accept connections; trying again");
                }
                let next: Duration =
                    pause.map_or(MIN_ACCEPT_RETRY_DELAY, |pause| MAX_ACCEPT_RETRY_DELAY.min(pause * 2));
                pause = Some(next);
                tokio::time::sleep(next).await;
                continue;
            }
        };
        pause = None;
        while tasks.try_join_next().is_some() {}
        let source = from.ip().to_canonical();
        shared.metrics.accepted.inc();
        let has_room = tasks.len() < options.connections;
        let Some(stranger) = has_room.then(|| strangers.count(source)).flatten() else {
            shared.metrics.count_refusal("full");
            let kind = "too many connections: a new one was closed";
            shared.warnings.warn(kind, source, &"the limit is reached");
            continue;
        };
        tasks.spawn(serve_connection(shared.clone(), stream, tls.clone(), source, stranger));
    }
}

async fn serve_connection(
    shared: Arc<HubState>,
    stream: TcpStream,
    tls: Option<Arc<ServerTls>>,
    source: IpAddr,
    stranger: SourceSlot,
) {
    // Errors are ignored: if the connection is already closed, the first read reports it.
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(MAX_UNSENT_BYTES);
    shared.metrics.active.inc();
    let ended = match tls {
        None => serve_client(&shared, stream, source, stranger).await,
        Some(tls) => match timeout(shared.options.handshake, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve_client(&shared, stream, source, stranger).await,
            Ok(Err(error)) => ClientDisconnect::Untrusted(error),
            Err(_) => ClientDisconnect::NoHello,
        },
    };
    shared.metrics.active.dec();
    let metrics = &shared.metrics;
    let (label, warning) = match &ended {
        ClientDisconnect::Closed => return,
        ClientDisconnect::AskedToLeave => return tracing::debug!(%source, "a client was asked to leave"),
        ClientDisconnect::Slow
        | ClientDisconnect::NoResponse
        | ClientDisconnect::Evicted
        | ClientDisconnect::NoBufferSpace => {
            if let ClientDisconnect::Evicted = ended {
                metrics.evicted.inc();
            }
            metrics.dropped.inc();
            return shared.warnings.warn("a client was disconnected", source, &ended);
        }
        ClientDisconnect::Protocol(_) => {
            ("protocol", "a connection that does not speak the hub's protocol was closed")
        }
        ClientDisconnect::Untrusted(_) => {
            ("certificate", "a connection without a valid node certificate was closed")
        }
        ClientDisconnect::NoHello => ("handshake", "a connection that sent no hello in time was closed"),
        ClientDisconnect::Refused(_) => ("unserved", "a client cannot be served"),
        ClientDisconnect::TooManyFromSource => ("source", "a client cannot be served"),
    };
    metrics.count_refusal(label);
    shared.warnings.warn(warning, source, &ended);
}
