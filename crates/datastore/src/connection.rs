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

pub struct Connection {
    stream: Stream,
    peer: Peer,
    /// Counts against the limit of connections.
    _permit: OwnedSemaphorePermit,
}

enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// The identity of a client.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The common name of its certificate, which is signed by a trusted CA.
    pub common_name: Option<String>,
}

impl Connection {
    pub fn tcp(stream: TcpStream, permit: OwnedSemaphorePermit) -> Connection {
        Connection { stream: Stream::Tcp(stream), peer: Peer::default(), _permit: permit }
    }

    pub fn unix(stream: UnixStream, permit: OwnedSemaphorePermit) -> Connection {
        Connection { stream: Stream::Unix(stream), peer: Peer::default(), _permit: permit }
    }

    pub fn tls(stream: TlsStream<TcpStream>, permit: OwnedSemaphorePermit) -> Connection {
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let peer = Peer { common_name: certificate.and_then(|certificate| common_name(certificate)) };
        Connection { stream: Stream::Tls(Box::new(stream)), peer, _permit: permit }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, out),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, out),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, out),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
            Stream::Unix(stream) => stream.is_write_vectored(),
        }
    }
}
