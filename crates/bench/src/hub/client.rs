//! Hub clients that follow the protocol and record when each change arrives. Only the first one decodes the changes:
//! thousands of real nodes would have thousands of CPUs for it.

use crate::namespace::BenchResult;
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
    ClientMessage, HelloMessage, HubMessage, HubPosition, MAX_HUB_FRAME_BYTES, NEWEST_PROTOCOL_VERSION,
    OLDEST_PROTOCOL_VERSION, PROTOCOL_MAGIC, unframe,
};

/// Time limit for any wait.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum number of change frames that can be recorded.
const MAX_RECORDED_CHANGES: usize = 100_000;
/// Connections opened concurrently, limited so that the listen queue does not overflow.
const CONCURRENT_CONNECTS: usize = 100;

pub struct HubClients {
    count: usize,
    shared: Arc<ArrivalRecords>,
    tasks: JoinSet<()>,
}

struct ArrivalRecords {
    start: Instant,
    /// Number of clients that have received the complete snapshot.
    following: AtomicUsize,
    received: AtomicU64,
    /// By sequence number: how many clients received it, and when the last one did, in nanoseconds from the start.
    arrivals: Vec<(AtomicUsize, AtomicU64)>,
    /// Sequence number by revision, from the client that decodes.
    sequences: Mutex<HashMap<u64, u64>>,
    positions: Vec<Mutex<Option<HubPosition>>>,
}

impl HubClients {
    pub async fn connect(hub: SocketAddr, count: usize) -> BenchResult<HubClients> {
        let shared = Arc::new(ArrivalRecords {
            start: Instant::now(),
            following: AtomicUsize::new(0),
            received: AtomicU64::new(0),
            arrivals: (0..MAX_RECORDED_CHANGES).map(|_| Default::default()).collect(),
            sequences: Mutex::default(),
            positions: (0..count).map(|_| Mutex::default()).collect(),
        });
        let mut clients = HubClients { count, shared, tasks: JoinSet::new() };
        clients.open(hub);
        Ok(clients)
    }

    fn open(&mut self, hub: SocketAddr) {
        let room = Arc::new(tokio::sync::Semaphore::new(CONCURRENT_CONNECTS));
        for number in 0..self.count {
            let (shared, room) = (self.shared.clone(), room.clone());
            self.tasks.spawn(async move {
                // A client that fails to connect never follows, which `follow` reports.
                let _ = converse(&shared, number, hub, room).await;
            });
        }
    }

    /// Waits until all clients have received the complete snapshot.
    pub async fn follow(&self) -> BenchResult<()> {
        self.wait("follow", || self.shared.following.load(Ordering::Relaxed) == self.count).await
    }

    /// Disconnects all clients and reconnects them at once.
    pub async fn reconnect(&mut self, hub: SocketAddr) -> BenchResult<()> {
        self.tasks.shutdown().await;
        self.shared.following.store(0, Ordering::Relaxed);
        self.open(hub);
        Ok(())
    }

    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Waits until all clients have received the change with this revision and returns the last arrival time.
    pub async fn last_arrival(&self, revision: u64) -> BenchResult<Instant> {
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

    async fn wait(&self, what: &str, so: impl Fn() -> bool) -> BenchResult<()> {
        let deadline = Instant::now() + CLIENT_TIMEOUT;
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
pub fn hello(number: usize, position: Option<HubPosition>) -> Bytes {
    let hello = HelloMessage {
        magic: PROTOCOL_MAGIC,
        oldest: OLDEST_PROTOCOL_VERSION,
        newest: NEWEST_PROTOCOL_VERSION,
        node: format!("client-{number}"),
        position,
        empty: position.is_none(),
        ..HelloMessage::default()
    };
    ClientMessage::Hello(hello).frame()
}

async fn converse(
    shared: &ArrivalRecords,
    number: usize,
    hub: SocketAddr,
    room: Arc<tokio::sync::Semaphore>,
) -> BenchResult<()> {
    let permit = room.acquire().await?;
    let mut stream = TcpStream::connect(hub).await?;
    drop(permit);
    let position = || shared.positions[number].lock().unwrap_or_else(PoisonError::into_inner);
    let known = *position();
    stream.write_all(&hello(number, known)).await?;
    let mut buffer = BytesMut::new();
    let (mut epoch, mut begun) = (0, 0);
    loop {
        let Some(frame) = unframe(&mut buffer, MAX_HUB_FRAME_BYTES)? else {
            buffer.reserve(16 << 10);
            match stream.read_buf(&mut buffer).await? {
                0 => return Ok(()),
                bytes => drop(shared.received.fetch_add(bytes as u64, Ordering::Relaxed)),
            }
            continue;
        };
        match HubMessage::decode(frame)? {
            HubMessage::Welcome(welcome) => epoch = welcome.epoch,
            HubMessage::Begin(begin) => begun = begin.sequence,
            HubMessage::Resume(_) => {
                shared.following.fetch_add(1, Ordering::Relaxed);
            }
            HubMessage::End(_) => {
                *position() = Some(HubPosition { epoch, sequence: begun });
                shared.following.fetch_add(1, Ordering::Relaxed);
            }
            HubMessage::Changes(changes) => {
                *position() = Some(HubPosition { epoch, sequence: changes.sequence });
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
            HubMessage::Ping(()) => stream.write_all(&ClientMessage::Pong(()).frame()).await?,
            HubMessage::Bucket(_) => {}
            HubMessage::Compare(()) | HubMessage::Refused(_) | HubMessage::Leave(()) => {
                return Err("the hub does not serve this client".into());
            }
        }
    }
}
