//! Accepts connections, within a total limit and a limit per source address, and logs how they end.

use super::serve::{self, ClientDisconnect};
use super::sources::{SourceCounts, SourceSlot};
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
    let strangers = SourceCounts::new(options.handshakes, options.handshakes_of_one);
    let mut tasks = JoinSet::new();
    let (mut pause, mut tick) = (None, tokio::time::interval(HEARTBEAT_INTERVAL));
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
        let Some(stranger) = has_room.then(|| strangers.enter(source)).flatten() else {
            shared.metrics.refused("full");
            shared.complaints.note(
                "too many connections: a new one was closed",
                source,
                &"the limit is reached",
            );
            continue;
        };
        tasks.spawn(attend(shared.clone(), stream, tls.clone(), source, stranger));
    }
}

async fn attend(
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
        None => serve::serve(&shared, stream, source, stranger).await,
        Some(tls) => match timeout(shared.options.handshake, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve::serve(&shared, stream, source, stranger).await,
            Ok(Err(error)) => ClientDisconnect::Untrusted(error),
            Err(_) => ClientDisconnect::Silent,
        },
    };
    shared.metrics.active.dec();
    match &ended {
        ClientDisconnect::Closed => {}
        ClientDisconnect::Asked => tracing::debug!(%source, "a client was asked to leave"),
        ClientDisconnect::Foreign(error) => {
            shared.metrics.refused("protocol");
            shared.complaints.note(
                "a connection that does not speak the hub's protocol was closed",
                source,
                error,
            );
        }
        ClientDisconnect::Untrusted(error) => {
            shared.metrics.refused("certificate");
            shared.complaints.note("a connection without a valid node certificate was closed", source, error);
        }
        ClientDisconnect::Silent => {
            shared.metrics.refused("handshake");
            shared.complaints.note("a connection that sent no hello in time was closed", source, &ended);
        }
        ClientDisconnect::Refused(reason) => {
            shared.metrics.refused("unserved");
            shared.complaints.note("a client cannot be served", source, reason);
        }
        ClientDisconnect::Crowded => {
            shared.metrics.refused("source");
            shared.complaints.note("a client cannot be served", source, &ended);
        }
        ClientDisconnect::Slow
        | ClientDisconnect::Dead
        | ClientDisconnect::Evicted
        | ClientDisconnect::NoRoom => {
            if let ClientDisconnect::Evicted = ended {
                shared.metrics.evicted.inc();
            }
            shared.metrics.dropped.inc();
            shared.complaints.note("a client was disconnected", source, &ended);
        }
    }
}
