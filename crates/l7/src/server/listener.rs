//! The Unix socket of the server: accepts connections up to a limit.

use super::connection::{OpenConnection, ProxyConnection};
use crate::metrics::L7Metrics;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tortie_http::{AuthorityRewriter, UnixSocket};

/// Maximum number of accepted connections that the server has not taken over yet.
const MAX_PENDING_CONNECTIONS: usize = 16;
/// Delay after `accept` fails, for example because file descriptors are exhausted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

pub type IncomingConnection = Result<AuthorityRewriter<ProxyConnection>, io::Error>;

#[derive(Debug)]
pub struct ProxyListener {
    socket: UnixSocket,
}

impl ProxyListener {
    /// Binds the socket with these permissions.
    pub fn bind(path: &Path, mode: u32) -> io::Result<ProxyListener> {
        Ok(ProxyListener { socket: UnixSocket::bind(path, mode)? })
    }

    /// Returns a stream of connections. Accepting ends when the stream is dropped.
    pub fn accept_connections(
        self,
        max_connections: usize,
        metrics: Arc<L7Metrics>,
    ) -> ReceiverStream<IncomingConnection> {
        let (sender, receiver) = mpsc::channel(MAX_PENDING_CONNECTIONS);
        let limit = Arc::new(Semaphore::new(max_connections));
        tokio::spawn(async move {
            tokio::select! {
                () = self.forward(&limit, &metrics, &sender) => {}
                () = sender.closed() => {}
            }
        });
        ReceiverStream::new(receiver)
    }

    async fn forward(
        &self,
        limit: &Arc<Semaphore>,
        metrics: &L7Metrics,
        connections: &mpsc::Sender<IncomingConnection>,
    ) {
        let mut is_full = false;
        loop {
            let stream = match self.socket.accept().await {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection; trying again");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let Ok(permit) = limit.clone().try_acquire_owned() else {
                metrics.refused_connections.inc();
                if !std::mem::replace(&mut is_full, true) {
                    tracing::warn!("too many connections: new ones are closed until others end");
                }
                continue;
            };
            is_full = false;
            let open = OpenConnection::new(metrics.connections.clone(), permit);
            if connections.send(Ok(wrap_stream(stream, open))).await.is_err() {
                return;
            }
        }
    }
}

fn wrap_stream(stream: UnixStream, open: OpenConnection) -> AuthorityRewriter<ProxyConnection> {
    // Envoy and Go clients send authorities that HTTP/2 does not allow, such as the name of a cluster or a path.
    AuthorityRewriter::new(ProxyConnection::new(stream, open))
}
