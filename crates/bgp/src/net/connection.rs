//! One TCP connection: a task that reads and a task that writes, so that neither waits for the other.

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

/// How much is read at once.
const READ: usize = 64 * 1024;
/// How long a last message may take.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// What the tasks of all connections tell the one that owns the core.
pub enum Input {
    Connected(ConnectionId, TcpStream, SocketAddr),
    /// It was not made, as asked for.
    GivenUp(ConnectionId),
    Accepted(TcpStream, SocketAddr, SocketAddr),
    Received(ConnectionId, Bytes),
    /// What was given to write has been written.
    Written(ConnectionId),
    Closed(ConnectionId, String),
}

enum Output {
    Bytes(Bytes),
    Last(Bytes),
}

/// How many reads of one connection may wait to be worked on: one in hand and one to follow it. A peer that sends faster
/// than we work is slowed down by TCP, and takes no room from the others.
const READS_WAITING: usize = 2;
/// The write in progress and the last one: more is never given, so nothing overflows.
const WRITES_WAITING: usize = 2;

/// The owner's hold on a connection. Dropping it cuts the connection.
pub struct Connection {
    outputs: mpsc::Sender<Output>,
    reads: Arc<Semaphore>,
    reader: AbortHandle,
    writer: Option<JoinHandle<()>>,
    /// Bytes have been given to write and are not yet written.
    pub busy: bool,
    /// The core has not finished with what it was given.
    pub unfinished: bool,
    /// Reads that came meanwhile.
    pub waiting: VecDeque<Bytes>,
}

impl Connection {
    pub fn new(conn: ConnectionId, stream: TcpStream, inputs: mpsc::Sender<Input>) -> Connection {
        let (read, write) = stream.into_split();
        let (outputs, from) = mpsc::channel(WRITES_WAITING);
        let reads = Arc::new(Semaphore::new(READS_WAITING));
        let reader = tokio::spawn(reader(conn, read, reads.clone(), inputs.clone())).abort_handle();
        let writer = Some(tokio::spawn(writer(conn, write, from, inputs)));
        let waiting = VecDeque::with_capacity(READS_WAITING);
        Connection { outputs, reads, reader, writer, busy: false, unfinished: false, waiting }
    }

    /// Gives bytes to write. At most one such write is in progress at any time.
    pub fn write(&mut self, bytes: Bytes) {
        self.busy = self.outputs.try_send(Output::Bytes(bytes)).is_ok();
    }

    /// What was read is worked on: the reader may go on.
    pub fn read_done(&self) {
        self.reads.add_permits(1);
    }

    /// Writes the last bytes, then closes. What comes back ends when that is done.
    pub fn close(mut self, last: Bytes) -> JoinHandle<()> {
        // A writer that is gone has closed already.
        let _ = self.outputs.try_send(Output::Last(last));
        self.writer.take().unwrap_or_else(|| tokio::spawn(async {}))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn reader(
    conn: ConnectionId,
    stream: OwnedReadHalf,
    reads: Arc<Semaphore>,
    inputs: mpsc::Sender<Input>,
) {
    let reason = loop {
        match reads.acquire().await {
            Ok(permit) => permit.forget(),
            Err(_) => return,
        }
        match read(&stream).await {
            Ok(None) => break "closed by the peer".to_owned(),
            Ok(Some(bytes)) => {
                if inputs.send(Input::Received(conn, bytes)).await.is_err() {
                    return;
                }
            }
            Err(error) => break error.to_string(),
        }
    };
    let _ = inputs.send(Input::Closed(conn, reason)).await;
}

/// Memory is taken only once there is something to read: idle sessions have none.
async fn read(stream: &OwnedReadHalf) -> io::Result<Option<Bytes>> {
    loop {
        stream.readable().await?;
        let mut buffer = BytesMut::with_capacity(READ);
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
    mut outputs: mpsc::Receiver<Output>,
    inputs: mpsc::Sender<Input>,
) {
    while let Some(output) = outputs.recv().await {
        let (mut bytes, mut last) = match output {
            Output::Bytes(bytes) => (bytes, None),
            Output::Last(bytes) => (Bytes::new(), Some(bytes)),
        };
        while last.is_none() && bytes.has_remaining() {
            tokio::select! {
                written = stream.write_buf(&mut bytes) => if let Err(error) = written {
                    let _ = inputs.send(Input::Closed(conn, error.to_string())).await;
                    return;
                },
                next = outputs.recv() => match next {
                    Some(Output::Last(bytes)) => last = Some(bytes),
                    Some(Output::Bytes(_)) | None => return,
                },
            }
        }
        if let Some(mut last) = last {
            // A peer that does not read is not waited for.
            let _ = tokio::time::timeout(LAST_WRITE_TIMEOUT, async {
                stream.write_all_buf(&mut bytes).await?;
                stream.write_all_buf(&mut last).await?;
                stream.shutdown().await
            })
            .await;
            return;
        }
        if inputs.send(Input::Written(conn)).await.is_err() {
            return;
        }
    }
}
