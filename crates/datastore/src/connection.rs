//! A client connection over TCP, TLS or a Unix socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tortie_tls::common_name;

pub struct DatastoreConnection {
    stream: ClientStream,
    peer: ClientIdentity,
    /// Counts against the limit of connections.
    _permit: OwnedSemaphorePermit,
}

enum ClientStream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// The identity of a client.
#[derive(Clone, Debug, Default)]
pub struct ClientIdentity {
    /// The common name of its certificate, which is signed by a trusted CA.
    pub common_name: Option<String>,
}

impl DatastoreConnection {
    pub fn tcp(stream: TcpStream, permit: OwnedSemaphorePermit) -> DatastoreConnection {
        DatastoreConnection {
            stream: ClientStream::Tcp(stream),
            peer: ClientIdentity::default(),
            _permit: permit,
        }
    }

    pub fn unix(stream: UnixStream, permit: OwnedSemaphorePermit) -> DatastoreConnection {
        DatastoreConnection {
            stream: ClientStream::Unix(stream),
            peer: ClientIdentity::default(),
            _permit: permit,
        }
    }

    pub fn tls(stream: TlsStream<TcpStream>, permit: OwnedSemaphorePermit) -> DatastoreConnection {
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let peer =
            ClientIdentity { common_name: certificate.and_then(|certificate| common_name(certificate)) };
        DatastoreConnection { stream: ClientStream::Tls(Box::new(stream)), peer, _permit: permit }
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
        match &mut self.get_mut().stream {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_read(context, out),
            ClientStream::Tls(stream) => Pin::new(stream).poll_read(context, out),
            ClientStream::Unix(stream) => Pin::new(stream).poll_read(context, out),
        }
    }
}

impl AsyncWrite for DatastoreConnection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            ClientStream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            ClientStream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            ClientStream::Tls(stream) => Pin::new(stream).poll_flush(context),
            ClientStream::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            ClientStream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            ClientStream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            ClientStream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            ClientStream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            ClientStream::Tcp(stream) => stream.is_write_vectored(),
            ClientStream::Tls(stream) => stream.is_write_vectored(),
            ClientStream::Unix(stream) => stream.is_write_vectored(),
        }
    }
}
