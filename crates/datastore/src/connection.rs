//! A client connection over TCP, TLS or a Unix socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tortie_tls::common_name;

pub struct DatastoreConnection {
    stream: Box<dyn ByteStream>,
    peer: ClientIdentity,
    /// Counts against the limit of connections.
    _permit: OwnedSemaphorePermit,
}

/// A stream of any transport.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// The identity of a client.
#[derive(Clone, Debug, Default)]
pub struct ClientIdentity {
    /// The common name of its certificate, which is signed by a trusted CA.
    pub common_name: Option<String>,
}

impl DatastoreConnection {
    /// Wraps a connection over TCP or a Unix socket.
    pub fn plain(stream: impl ByteStream + 'static, permit: OwnedSemaphorePermit) -> DatastoreConnection {
        DatastoreConnection { stream: Box::new(stream), peer: ClientIdentity::default(), _permit: permit }
    }

    pub fn tls(stream: TlsStream<TcpStream>, permit: OwnedSemaphorePermit) -> DatastoreConnection {
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let common_name = certificate.and_then(|certificate| common_name(certificate));
        DatastoreConnection {
            stream: Box::new(stream),
            peer: ClientIdentity { common_name },
            _permit: permit,
        }
    }
}

impl Connected for DatastoreConnection {
    type ConnectInfo = ClientIdentity;

    fn connect_info(&self) -> ClientIdentity {
        self.peer.clone()
    }
}

impl AsyncRead for DatastoreConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, out)
    }
}

impl AsyncWrite for DatastoreConnection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
