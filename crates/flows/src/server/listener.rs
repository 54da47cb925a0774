//! Accepts TLS connections with a client certificate, up to a limit, and passes them to the server. Handshakes have
//! separate limits, because they need no certificate: clients without one must not prevent nodes from connecting.

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
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use tortie_http::{ConnectionActivity, ConnectionAdmission, ConnectionLimits, ConnectionTable};
use tortie_tls::{TlsError, TlsFiles, TlsReloader};

/// Maximum number of connections: one for each node, and those of readers.
const MAX_CONNECTIONS: usize = 8192;
/// Maximum number of accepted connections that the server has not taken over yet.
const MAX_PENDING_CONNECTIONS: usize = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Limits of concurrent handshakes; beyond them the oldest one is ended. After a restart all nodes connect at once.
const HANDSHAKE_LIMITS: ConnectionLimits = ConnectionLimits { total: MAX_CONNECTIONS, per_source: 64 };
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
    let mut handshakes = ConnectionTable::new(HANDSHAKE_LIMITS);
    let mut tasks = JoinSet::new();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; trying again");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        let source = from.ip().to_canonical();
        if handshakes.make_room(source) != ConnectionAdmission::Free {
            metrics.refused_connections.inc();
        }
        // If the connection is already closed, reading it reports the error.
        let _ = stream.set_nodelay(true);
        let (acceptor, connections, limit) = (tls.get(), connections.clone(), limit.clone());
        let (refused, failed) = (metrics.refused_connections.clone(), metrics.failed_handshakes.clone());
        let task = tasks.spawn(async move {
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let Ok(permit) = limit.try_acquire_owned() else {
                        refused.inc();
                        return;
                    };
                    let connection = FlowConnection { stream, peer: PeerAddress(source), _permit: permit };
                    let _ = connections.send(Ok(connection)).await;
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
        handshakes.insert(source, ConnectionActivity::default(), task);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::RingOptions;
    use tortie_testkit::CertificateMaker;

    #[tokio::test]
    async fn handshakes_of_one_source_are_limited() {
        let dir = tempfile::tempdir().unwrap();
        let maker = CertificateMaker::new(dir.path());
        let server = maker.issue("server", &["localhost"]);
        let ca = Some(maker.authority_file());
        let tls = load_tls(TlsFiles { certificate: server.certificate, key: server.key, ca }).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let collector = Arc::new(FlowCollector::new(RingOptions { window: 15, max_bytes: 1 << 20 }));
        let _accepted = accept_connections(listener, tls, collector.clone());
        let mut silent = Vec::new();
        for _ in 0..HANDSHAKE_LIMITS.per_source + 3 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let refused = || collector.metrics().refused_connections.get();
        tokio::time::timeout(Duration::from_secs(60), async {
            while refused() < 3 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap();
    }
}
