//! A connection of a proxy, within the limits of the server.

use prometheus_client::metrics::gauge::Gauge;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

/// Time within which a client must send the beginning of its HTTP/2 connection.
const OPENING_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of the connection preface and of the first frame header.
const OPENING_BYTES: usize = 24 + 9;

pub struct ProxyConnection {
    stream: UnixStream,
    /// Present until the client has sent the opening.
    opening: Option<ConnectionOpening>,
    _open: OpenConnection,
}

struct ConnectionOpening {
    received: usize,
    deadline: Pin<Box<Sleep>>,
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
        let opening = ConnectionOpening { received: 0, deadline: Box::pin(sleep(OPENING_TIMEOUT)) };
        ProxyConnection { stream, opening: Some(opening), _open: open }
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
        let connection = self.get_mut();
        let before = out.filled().len();
        let polled = Pin::new(&mut connection.stream).poll_read(context, out);
        let Some(opening) = &mut connection.opening else { return polled };
        opening.received += out.filled().len() - before;
        if opening.received >= OPENING_BYTES {
            connection.opening = None;
        } else if polled.is_pending() && opening.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
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
