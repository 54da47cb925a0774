//! Accepts connections of kubelet on a Unix socket, up to a limit.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tortie_http::{AuthorityRewriter, LimitedConnection, UnixSocket};

/// Maximum number of connections to one socket. kubelet opens one for each request.
const MAX_CONNECTIONS: usize = 64;
/// Maximum number of accepted connections that the server has not taken over yet.
const MAX_PENDING_CONNECTIONS: usize = 4;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

pub type IncomingConnection = Result<AuthorityRewriter<LimitedConnection>, io::Error>;

/// Returns a stream of connections. Accepting ends and the socket is removed when the stream is dropped.
pub fn accept_connections(socket: UnixSocket) -> ReceiverStream<IncomingConnection> {
    let (sender, receiver) = mpsc::channel(MAX_PENDING_CONNECTIONS);
    tokio::spawn(async move {
        tokio::select! {
            () = forward_connections(&socket, &sender) => {}
            () = sender.closed() => {}
        }
    });
    ReceiverStream::new(receiver)
}

async fn forward_connections(socket: &UnixSocket, connections: &mpsc::Sender<IncomingConnection>) {
    let limit = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let stream = match socket.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; trying again");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Ok(permit) = limit.clone().try_acquire_owned() else {
            tracing::warn!("closed a connection: {MAX_CONNECTIONS} are open");
            continue;
        };
        // Go clients send the path of the socket as the authority, which HTTP/2 does not allow.
        let connection = AuthorityRewriter::new(LimitedConnection::new(stream, permit));
        if connections.send(Ok(connection)).await.is_err() {
            return;
        }
    }
}
