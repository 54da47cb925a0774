//! Accepts TLS connections with a client certificate, up to a limit, and passes them to the server.

use crate::collector::FlowCollector;
use crate::metrics::CollectorMetrics;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use tortie_tls::{TlsError, TlsFiles, TlsReloader};

/// Maximum number of connections: one for each node, and those of readers.
const MAX_CONNECTIONS: usize = 8192;
/// Maximum number of accepted connections that the server has not taken over yet.
const MAX_PENDING_CONNECTIONS: usize = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay after `accept` fails, for example because file descriptors are exhausted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

pub type ListenerTls = TlsReloader<TlsAcceptor>;

/// Returns the TLS of the listener; renewed files take effect without a restart.
pub fn load_tls(files: TlsFiles) -> Result<ListenerTls, TlsError> {
    TlsReloader::new(files, |files| {
        let mut config = files.server()?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    })
}

/// Address of the client of a request.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub IpAddr);

pub struct FlowConnection {
    stream: TlsStream<TcpStream>,
    peer: PeerAddress,
    /// Counts against the limit of connections.
    _permit: OwnedSemaphorePermit,
}

/// Returns a stream of connections. Accepting ends when the stream is dropped.
pub fn accept_connections(
    listener: TcpListener,
    tls: ListenerTls,
    collector: Arc<FlowCollector>,
) -> ReceiverStream<io::Result<FlowConnection>> {
    let (sender, receiver) = mpsc::channel(MAX_PENDING_CONNECTIONS);
    tokio::spawn(async move {
        tokio::select! {
            () = forward_connections(&listener, &tls, collector.metrics(), &sender) => {}
            () = sender.closed() => {}
        }
    });
    ReceiverStream::new(receiver)
}

async fn forward_connections(
    listener: &TcpListener,
    tls: &ListenerTls,
    metrics: &CollectorMetrics,
    connections: &mpsc::Sender<io::Result<FlowConnection>>,
) {
    let limit = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; trying again");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Ok(permit) = limit.clone().try_acquire_owned() else {
            metrics.refused_connections.inc();
            continue;
        };
        // If the connection is already closed, reading it reports the error.
        let _ = stream.set_nodelay(true);
        let (acceptor, connections) = (tls.get(), connections.clone());
        let failed = metrics.failed_handshakes.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let peer = PeerAddress(from.ip().to_canonical());
                    let _ = connections.send(Ok(FlowConnection { stream, peer, _permit: permit })).await;
                }
                Ok(Err(error)) => {
                    failed.inc();
                    tracing::debug!(%from, %error, "a TLS handshake failed");
                }
                Err(_) => {
                    failed.inc();
                }
            }
        });
    }
}

impl Connected for FlowConnection {
    type ConnectInfo = PeerAddress;

    fn connect_info(&self) -> PeerAddress {
        self.peer
    }
}

impl AsyncRead for FlowConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, out)
    }
}

impl AsyncWrite for FlowConnection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
