//! Hub clients that follow the protocol and record when each change arrives. Only the first one decodes the changes:
//! thousands of real nodes would have thousands of CPUs for it.

use crate::namespace::Result;
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tortie_hub::protocol::{
    FromHub, Hello, MAGIC, MOST_FROM_HUB, NEWEST, OLDEST, Position, from_client, from_hub, unframe,
};

/// Time limit for any wait.
const LIMIT: Duration = Duration::from_secs(300);
/// Maximum number of change frames that can be recorded.
const MOST: usize = 100_000;
/// Connections opened concurrently, limited so that the listen queue does not overflow.
const AT_ONCE: usize = 100;

pub struct Clients {
    count: usize,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

struct Shared {
    start: Instant,
    /// Number of clients that have received the complete snapshot.
    following: AtomicUsize,
    received: AtomicU64,
    /// By sequence number: how many clients received it, and when the last one did, in nanoseconds from the start.
    arrivals: Vec<(AtomicUsize, AtomicU64)>,
    /// Sequence number by revision, from the client that decodes.
    sequences: Mutex<HashMap<u64, u64>>,
    positions: Vec<Mutex<Option<Position>>>,
}

impl Clients {
    pub async fn connect(hub: SocketAddr, count: usize) -> Result<Clients> {
        let shared = Arc::new(Shared {
            start: Instant::now(),
            following: AtomicUsize::new(0),
            received: AtomicU64::new(0),
            arrivals: (0..MOST).map(|_| Default::default()).collect(),
            sequences: Mutex::default(),
            positions: (0..count).map(|_| Mutex::default()).collect(),
        });
        let mut clients = Clients { count, shared, tasks: JoinSet::new() };
        clients.open(hub);
        Ok(clients)
    }

    fn open(&mut self, hub: SocketAddr) {
        let room = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
        for number in 0..self.count {
            let (shared, room) = (self.shared.clone(), room.clone());
            self.tasks.spawn(async move {
                // A client that fails to connect never follows, which `follow` reports.
                let _ = converse(&shared, number, hub, room).await;
            });
        }
    }

    /// Waits until all clients have received the complete snapshot.
    pub async fn follow(&self) -> Result<()> {
        self.wait("follow", || self.shared.following.load(Ordering::Relaxed) == self.count).await
    }

    /// Disconnects all clients and reconnects them at once.
    pub async fn reconnect(&mut self, hub: SocketAddr) -> Result<()> {
        self.tasks.shutdown().await;
        self.shared.following.store(0, Ordering::Relaxed);
        self.open(hub);
        Ok(())
    }

    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Waits until all clients have received the change with this revision and returns the last arrival time.
    pub async fn last_arrival(&self, revision: u64) -> Result<Instant> {
        let sequence =
            || self.shared.sequences.lock().unwrap_or_else(PoisonError::into_inner).get(&revision).copied();
        let arrivals = |sequence: u64| self.shared.arrivals.get(sequence as usize);
        self.wait("have a change", || {
            sequence()
                .and_then(arrivals)
                .is_some_and(|(count, _)| count.load(Ordering::Relaxed) >= self.count)
        })
        .await?;
        let (_, last) = sequence().and_then(arrivals).ok_or("too many changes to note")?;
        Ok(self.shared.start + Duration::from_nanos(last.load(Ordering::Relaxed)))
    }

    async fn wait(&self, what: &str, so: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !so() {
            if Instant::now() > deadline {
                let following = self.shared.following.load(Ordering::Relaxed);
                return Err(format!("not all clients {what} ({following} of {} follow)", self.count).into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

/// Builds the first message of a client.
pub fn hello(number: usize, position: Option<Position>) -> Bytes {
    let hello = Hello {
        magic: MAGIC,
        oldest: OLDEST,
        newest: NEWEST,
        node: format!("client-{number}"),
        position,
        empty: position.is_none(),
        ..Hello::default()
    };
    from_client::What::Hello(hello).frame()
}

async fn converse(
    shared: &Shared,
    number: usize,
    hub: SocketAddr,
    room: Arc<tokio::sync::Semaphore>,
) -> Result<()> {
    let permit = room.acquire().await?;
    let mut stream = TcpStream::connect(hub).await?;
    drop(permit);
    let position = || shared.positions[number].lock().unwrap_or_else(PoisonError::into_inner);
    let known = *position();
    stream.write_all(&hello(number, known)).await?;
    let mut buffer = BytesMut::new();
    let (mut epoch, mut begun) = (0, 0);
    loop {
        let Some(frame) = unframe(&mut buffer, MOST_FROM_HUB)? else {
            buffer.reserve(16 << 10);
            match stream.read_buf(&mut buffer).await? {
                0 => return Ok(()),
                bytes => drop(shared.received.fetch_add(bytes as u64, Ordering::Relaxed)),
            }
            continue;
        };
        match FromHub::read(frame)? {
            from_hub::What::Welcome(welcome) => epoch = welcome.epoch,
            from_hub::What::Begin(begin) => begun = begin.sequence,
            from_hub::What::Resume(_) => {
                shared.following.fetch_add(1, Ordering::Relaxed);
            }
            from_hub::What::End(_) => {
                *position() = Some(Position { epoch, sequence: begun });
                shared.following.fetch_add(1, Ordering::Relaxed);
            }
            from_hub::What::Changes(changes) => {
                *position() = Some(Position { epoch, sequence: changes.sequence });
                if let Some((count, last)) = shared.arrivals.get(changes.sequence as usize) {
                    let now = shared.start.elapsed().as_nanos() as u64;
                    last.fetch_max(now, Ordering::Relaxed);
                    count.fetch_add(1, Ordering::Relaxed);
                }
                if number == 0 {
                    let mut sequences = shared.sequences.lock().unwrap_or_else(PoisonError::into_inner);
                    for record in changes.records.records()? {
                        sequences.insert(record.revision.parse()?, changes.sequence);
                    }
                }
            }
            from_hub::What::Ping(()) => stream.write_all(&from_client::What::Pong(()).frame()).await?,
            from_hub::What::Bucket(_) => {}
            from_hub::What::Compare(()) | from_hub::What::Refused(_) | from_hub::What::Leave(()) => {
                return Err("the hub does not serve this client".into());
            }
        }
    }
}
