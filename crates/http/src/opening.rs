//! Connections whose clients must send the connection preface of HTTP/2 in time. Without a limit, a client that connects
//! and sends nothing, or only a part of the preface, would occupy a connection of its socket for ever: the pings of the
//! server begin only after the preface.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

/// Time within which a client must send the beginning of its HTTP/2 connection.
const OPENING_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of the connection preface and of the first frame header.
const OPENING_BYTES: usize = 24 + 9;

/// A connection that fails with `TimedOut` if its client does not open it in time.
#[derive(Debug)]
pub struct TimedOpening<T> {
    io: T,
    /// Present until the client has sent the opening.
    opening: Option<ConnectionOpening>,
}

#[derive(Debug)]
struct ConnectionOpening {
    received: usize,
    deadline: Pin<Box<Sleep>>,
}

impl<T> TimedOpening<T> {
    pub fn new(io: T) -> TimedOpening<T> {
        let opening = ConnectionOpening { received: 0, deadline: Box::pin(sleep(OPENING_TIMEOUT)) };
        TimedOpening { io, opening: Some(opening) }
    }
}

impl<T> Connected for TimedOpening<T> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl<T: AsyncRead + Unpin> AsyncRead for TimedOpening<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        let before = out.filled().len();
        let polled = Pin::new(&mut connection.io).poll_read(context, out);
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

impl<T: AsyncWrite + Unpin> AsyncWrite for TimedOpening<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test(start_paused = true)]
    async fn incomplete_openings_time_out() {
        for sent in [0, 1, OPENING_BYTES - 1] {
            let (mut client, server) = duplex(1024);
            let mut server = TimedOpening::new(server);
            client.write_all(&vec![b'P'; sent]).await.unwrap();
            let error = server.read_to_end(&mut Vec::new()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "after {sent} bytes");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn opened_connections_may_be_silent() {
        let (mut client, server) = duplex(1024);
        let mut server = TimedOpening::new(server);
        client.write_all(&[b'P'; OPENING_BYTES]).await.unwrap();
        let mut received = [0; OPENING_BYTES + 1];
        server.read_exact(&mut received[1..]).await.unwrap();
        tokio::spawn(async move {
            sleep(2 * OPENING_TIMEOUT).await;
            client.write_all(b"x").await.unwrap();
            client
        });
        server.read_exact(&mut received[..1]).await.unwrap();
        assert_eq!(received[0], b'x');
    }
}
