//! A connection of a proxy, within the limits of the server.

use prometheus_client::metrics::gauge::Gauge;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tonic::transport::server::Connected;
use tortie_http::TimedOpening;

pub struct ProxyConnection {
    stream: TimedOpening<UnixStream>,
    _open: OpenConnection,
}

/// Counts a connection as open until it is dropped.
pub struct OpenConnection {
    gauge: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl OpenConnection {
    pub fn new(gauge: Gauge, permit: OwnedSemaphorePermit) -> OpenConnection {
        gauge.inc();
        OpenConnection { gauge, _permit: permit }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

impl ProxyConnection {
    pub fn new(stream: UnixStream, open: OpenConnection) -> ProxyConnection {
        ProxyConnection { stream: TimedOpening::new(stream), _open: open }
    }
}

impl Connected for ProxyConnection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for ProxyConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, out)
    }
}

impl AsyncWrite for ProxyConnection {
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
