//! Accepts connections, up to a number in all and, of those that have not said who they are, of each source.

use super::serve::{self, Ended};
use super::{BEAT, Shared};
use crate::tls::ServerTls;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// After a connection could not be accepted, at first and at most: descriptors may be short.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub async fn accept(shared: &Arc<Shared>, listener: TcpListener, tls: Option<Arc<ServerTls>>) {
    let (mut tasks, strangers) = (JoinSet::new(), Arc::new(Strangers::default()));
    let (mut pause, mut tick) = (None, tokio::time::interval(BEAT));
    let heartbeat = shared.liveness.part("SyncServer");
    loop {
        heartbeat.beat();
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = tick.tick() => continue,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            // The client gave up before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                if pause.is_none() {
                    tracing::error!(%error, "cannot accept connections; trying again");
                }
                let next: Duration = pause.map_or(FIRST_PAUSE, |pause| LONGEST_PAUSE.min(pause * 2));
                pause = Some(next);
                tokio::time::sleep(next).await;
                continue;
            }
        };
        pause = None;
        while tasks.try_join_next().is_some() {}
        let source = from.ip().to_canonical();
        shared.metrics.accepted.inc();
        let options = &shared.options;
        let stranger = match tasks.len() < options.connections {
            true => strangers.clone().enter(source, options.handshakes, options.handshakes_of_one),
            false => None,
        };
        let Some(stranger) = stranger else {
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
    shared: Arc<Shared>,
    stream: TcpStream,
    tls: Option<Arc<ServerTls>>,
    source: IpAddr,
    stranger: Stranger,
) {
    // A connection that is gone again already says so when it is read.
    let _ = stream.set_nodelay(true);
    shared.metrics.active.inc();
    let ended = match tls {
        None => serve::serve(&shared, stream, stranger).await,
        Some(tls) => match timeout(shared.options.handshake, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve::serve(&shared, stream, stranger).await,
            Ok(Err(error)) => Ended::Untrusted(error),
            Err(_) => Ended::Silent,
        },
    };
    shared.metrics.active.dec();
    match &ended {
        Ended::Closed => {}
        Ended::Asked => tracing::debug!(%source, "a client was asked to leave"),
        Ended::Foreign(error) => {
            shared.metrics.refused("protocol");
            shared.complaints.note(
                "a connection that does not speak the hub's protocol was closed",
                source,
                error,
            );
        }
        Ended::Untrusted(error) => {
            shared.metrics.refused("certificate");
            shared.complaints.note("a connection with no certificate of a node was closed", source, error);
        }
        Ended::Silent => {
            shared.metrics.refused("handshake");
            shared.complaints.note("a connection that did not say who it is was closed", source, &ended);
        }
        Ended::Refused(reason) => {
            shared.metrics.refused("unserved");
            shared.complaints.note("a client cannot be served", source, reason);
        }
        Ended::Slow | Ended::Dead => {
            shared.metrics.dropped.inc();
            shared.complaints.note("a client was disconnected", source, &ended);
        }
    }
}

/// Connections that have not said who they are.
#[derive(Debug, Default)]
struct Strangers(Mutex<HashMap<IpAddr, usize>>);

/// One of them; known or gone when this is dropped.
#[derive(Debug)]
pub struct Stranger {
    strangers: Arc<Strangers>,
    source: IpAddr,
}

impl Strangers {
    fn enter(self: Arc<Strangers>, source: IpAddr, most: usize, most_of_one: usize) -> Option<Stranger> {
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_source = sources.get(&source).copied().unwrap_or_default();
        if of_source >= most_of_one || sources.values().sum::<usize>() >= most {
            return None;
        }
        sources.insert(source, of_source + 1);
        drop(sources);
        Some(Stranger { strangers: self, source })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut sources = self.strangers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = sources.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                sources.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_of_one_source_leave_room_for_others() {
        let strangers = Arc::new(Strangers::default());
        let [one, two]: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let enter = |source| strangers.clone().enter(source, 5, 3);
        let mut held: Vec<Stranger> = (0..3).map(|_| enter(one).unwrap()).collect();
        assert!(enter(one).is_none());
        held.extend((0..2).map(|_| enter(two).unwrap()));
        assert!(enter(two).is_none(), "five in all");
        held.remove(0);
        assert!(enter(one).is_some());
        drop(held);
        assert!(strangers.0.lock().unwrap().is_empty());
    }
}
