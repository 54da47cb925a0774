//! One TCP connection: a reading task and a writing task, so that neither blocks the other.

use crate::core::ConnectionId;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinHandle};

/// Size of the read buffer.
const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Timeout for writing the last message.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Messages from the connection tasks to the task that owns the core.
pub enum ConnectionEvent {
    Connected(ConnectionId, TcpStream, SocketAddr),
    /// The connection was not made because the core abandoned the attempt.
    GivenUp(ConnectionId),
    Accepted(TcpStream, SocketAddr, SocketAddr),
    Received(ConnectionId, Bytes),
    /// The last bytes passed to the writer have been written.
    Written(ConnectionId),
    Closed(ConnectionId, String),
}

enum WriterCommand {
    Bytes(Bytes),
    Last(Bytes),
}

/// Number of reads of one connection that may wait for processing: one in progress and one to follow. A peer that
/// sends faster than we process is slowed down by TCP and takes no capacity from other peers.
const MAX_PENDING_READS: usize = 2;
/// The write in progress and the last one. No more are ever queued, so the channel cannot overflow.
const MAX_PENDING_WRITES: usize = 2;

/// Handle of a connection. Dropping it closes the connection.
pub struct ConnectionHandle {
    outputs: mpsc::Sender<WriterCommand>,
    reads: Arc<Semaphore>,
    reader: AbortHandle,
    writer: Option<JoinHandle<()>>,
    /// Whether bytes were passed to the writer and are not yet written.
    pub busy: bool,
    /// Whether the core has not finished processing the bytes it received.
    pub unfinished: bool,
    /// Reads that arrived while the core was still processing.
    pub waiting: VecDeque<Bytes>,
}

impl ConnectionHandle {
    pub fn new(
        conn: ConnectionId,
        stream: TcpStream,
        inputs: mpsc::Sender<ConnectionEvent>,
    ) -> ConnectionHandle {
        let (read, write) = stream.into_split();
        let (outputs, from) = mpsc::channel(MAX_PENDING_WRITES);
        let reads = Arc::new(Semaphore::new(MAX_PENDING_READS));
        let reader = tokio::spawn(reader(conn, read, reads.clone(), inputs.clone())).abort_handle();
        let writer = Some(tokio::spawn(writer(conn, write, from, inputs)));
        let waiting = VecDeque::with_capacity(MAX_PENDING_READS);
        ConnectionHandle { outputs, reads, reader, writer, busy: false, unfinished: false, waiting }
    }

    /// Passes bytes to the writer. At most one such write is in progress at any time.
    pub fn write(&mut self, bytes: Bytes) {
        self.busy = self.outputs.try_send(WriterCommand::Bytes(bytes)).is_ok();
    }

    /// Allows the reader to continue, because a read has been processed.
    pub fn read_done(&self) {
        self.reads.add_permits(1);
    }

    /// Writes the last bytes, then closes the connection. The returned task ends when that is done.
    pub fn close(mut self, last: Bytes) -> JoinHandle<()> {
        // If the writer has ended, the connection is closed already.
        let _ = self.outputs.try_send(WriterCommand::Last(last));
        self.writer.take().unwrap_or_else(|| tokio::spawn(async {}))
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn reader(
    conn: ConnectionId,
    stream: OwnedReadHalf,
    reads: Arc<Semaphore>,
    inputs: mpsc::Sender<ConnectionEvent>,
) {
    let reason = loop {
        match reads.acquire().await {
            Ok(permit) => permit.forget(),
            Err(_) => return,
        }
        match read(&stream).await {
            Ok(None) => break "closed by the peer".to_owned(),
            Ok(Some(bytes)) => {
                if inputs.send(ConnectionEvent::Received(conn, bytes)).await.is_err() {
                    return;
                }
            }
            Err(error) => break error.to_string(),
        }
    };
    let _ = inputs.send(ConnectionEvent::Closed(conn, reason)).await;
}

/// Allocates the buffer only when there is something to read, so that idle sessions hold none.
async fn read(stream: &OwnedReadHalf) -> io::Result<Option<Bytes>> {
    loop {
        stream.readable().await?;
        let mut buffer = BytesMut::with_capacity(READ_BUFFER_BYTES);
        match stream.try_read_buf(&mut buffer) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(buffer.freeze())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn writer(
    conn: ConnectionId,
    mut stream: OwnedWriteHalf,
    mut outputs: mpsc::Receiver<WriterCommand>,
    inputs: mpsc::Sender<ConnectionEvent>,
) {
    while let Some(output) = outputs.recv().await {
        let (mut bytes, mut last) = match output {
            WriterCommand::Bytes(bytes) => (bytes, None),
            WriterCommand::Last(bytes) => (Bytes::new(), Some(bytes)),
        };
        while last.is_none() && bytes.has_remaining() {
            tokio::select! {
                written = stream.write_buf(&mut bytes) => if let Err(error) = written {
                    let _ = inputs.send(ConnectionEvent::Closed(conn, error.to_string())).await;
                    return;
                },
                next = outputs.recv() => match next {
                    Some(WriterCommand::Last(bytes)) => last = Some(bytes),
                    Some(WriterCommand::Bytes(_)) | None => return,
                },
            }
        }
        if let Some(mut last) = last {
            // A peer that does not read must not delay us.
            let _ = tokio::time::timeout(LAST_WRITE_TIMEOUT, async {
                stream.write_all_buf(&mut bytes).await?;
                stream.write_all_buf(&mut last).await?;
                stream.shutdown().await
            })
            .await;
            return;
        }
        if inputs.send(ConnectionEvent::Written(conn)).await.is_err() {
            return;
        }
    }
}
