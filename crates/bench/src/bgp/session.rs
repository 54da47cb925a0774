//! Minimal BGP peers that send prepared messages and count the routes they receive.

use super::place::{BENCH_ASN, SPEAKER_ADDRESS};
use crate::namespace::BenchResult;
use rustbgpd_wire::{Afi, Capability, Message, OpenMessage, Safi, encode_message};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinHandle;

const BGP_HEADER_SIZE: usize = 19;
/// Time limit for a speaker to listen, or to accept a new session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Time limit for a single attempt. A speaker that receives many connections at once drops some.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Hold time for sessions on which a busy speaker sends only UPDATE messages for a long time.
pub const LONG_HOLD: u16 = 240;

/// An established session. Dropping it closes the connection without a NOTIFICATION.
pub struct BenchPeer {
    write: Arc<Mutex<OwnedWriteHalf>>,
    heard: Arc<RouteCounters>,
    tasks: [JoinHandle<()>; 2],
}

/// Number of announced and withdrawn routes, including repetitions.
#[derive(Default)]
struct RouteCounters {
    announced: AtomicUsize,
    withdrawn: AtomicUsize,
    more: Notify,
}

impl BenchPeer {
    pub async fn connect(source: Ipv4Addr, hold: u16) -> BenchResult<BenchPeer> {
        let (read, write) = establish(source, hold).await?.into_split();
        let (write, heard) = (Arc::new(Mutex::new(write)), Arc::new(RouteCounters::default()));
        let reader = tokio::spawn(listen(read, heard.clone()));
        let keeper = tokio::spawn(keep_up(write.clone(), hold));
        Ok(BenchPeer { write, heard, tasks: [reader, keeper] })
    }

    pub async fn send(&self, bytes: &[u8]) -> std::io::Result<()> {
        self.write.lock().await.write_all(bytes).await
    }

    /// Returns the numbers of announced and withdrawn routes so far.
    pub fn heard(&self) -> (usize, usize) {
        (self.heard.announced.load(Ordering::Relaxed), self.heard.withdrawn.load(Ordering::Relaxed))
    }

    /// Waits until `routes` routes have been announced. Returns false if the deadline passes first.
    pub async fn announced(&self, routes: usize, deadline: Instant) -> bool {
        self.until(|heard| heard.announced.load(Ordering::Relaxed) >= routes, deadline).await
    }

    pub async fn withdrawn(&self, routes: usize, deadline: Instant) -> bool {
        self.until(|heard| heard.withdrawn.load(Ordering::Relaxed) >= routes, deadline).await
    }

    async fn until(&self, enough: impl Fn(&RouteCounters) -> bool, deadline: Instant) -> bool {
        let wait = async {
            while !enough(&self.heard) {
                self.heard.more.notified().await;
            }
        };
        tokio::time::timeout_at(deadline.into(), wait).await.is_ok()
    }
}

impl Drop for BenchPeer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn listen(mut read: OwnedReadHalf, heard: Arc<RouteCounters>) {
    let mut buffer = Vec::with_capacity(1 << 16);
    while matches!(read.read_buf(&mut buffer).await, Ok(1..)) {
        let (announced, withdrawn, used) = count(&buffer);
        buffer.drain(..used);
        if announced + withdrawn > 0 {
            heard.announced.fetch_add(announced, Ordering::Relaxed);
            heard.withdrawn.fetch_add(withdrawn, Ordering::Relaxed);
            heard.more.notify_one();
        }
    }
}

async fn keep_up(write: Arc<Mutex<OwnedWriteHalf>>, hold: u16) {
    loop {
        tokio::time::sleep(Duration::from_secs(u64::from(hold / 3))).await;
        // A locked writer is sending UPDATE messages, which replace the keepalive.
        if let Ok(mut write) = write.try_lock()
            && write.write_all(&message(4, &[])).await.is_err()
        {
            return;
        }
    }
}

/// Returns the numbers of announced and withdrawn IPv4 routes in the complete messages, and the length of those
/// messages.
fn count(buffer: &[u8]) -> (usize, usize, usize) {
    let (mut announced, mut withdrawn, mut used) = (0, 0, 0);
    while let Some(rest) = buffer.get(used..).filter(|rest| rest.len() >= BGP_HEADER_SIZE) {
        let length = usize::from(u16::from_be_bytes([rest[16], rest[17]]));
        let Some(body) = rest.get(BGP_HEADER_SIZE..length) else { break };
        if rest[18] == 2 && body.len() >= 4 {
            let at = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
            let attributes = usize::from(u16::from_be_bytes([body[at], body[at + 1]]));
            withdrawn += prefixes(&body[2..at]);
            announced += prefixes(&body[at + 2 + attributes..]);
        }
        used += length;
    }
    (announced, withdrawn, used)
}

fn prefixes(mut nlri: &[u8]) -> usize {
    let mut count = 0;
    while let Some(bits) = nlri.first() {
        nlri = &nlri[1 + usize::from(bits.div_ceil(8))..];
        count += 1;
    }
    count
}

async fn establish(source: Ipv4Addr, hold: u16) -> BenchResult<TcpStream> {
    let deadline = Instant::now() + SESSION_TIMEOUT;
    loop {
        let attempt = tokio::time::timeout(ATTEMPT_TIMEOUT, attempt(source, hold)).await;
        match attempt.unwrap_or_else(|_| Err("the speaker does not answer".into())) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => return Err(format!("{source}: {error}").into()),
            Err(_) => tokio::time::sleep(CONNECT_RETRY_DELAY).await,
        }
    }
}

async fn attempt(source: Ipv4Addr, hold: u16) -> BenchResult<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(source.into(), 0))?;
    let mut stream = socket.connect(SocketAddr::new(SPEAKER_ADDRESS.into(), 179)).await?;
    stream.set_nodelay(true)?;
    let open = OpenMessage {
        version: 4,
        my_as: BENCH_ASN as u16,
        hold_time: hold,
        bgp_identifier: source,
        capabilities: vec![
            Capability::MultiProtocol { afi: Afi::Ipv4, safi: Safi::Unicast },
            Capability::FourOctetAs { asn: BENCH_ASN },
            Capability::RouteRefresh,
        ],
    };
    stream.write_all(&encode_message(&Message::Open(open))?).await?;
    // The speaker's OPEN and KEEPALIVE confirm that it accepted the session.
    for expected in [1, 4] {
        let mut header = [0; BGP_HEADER_SIZE];
        stream.read_exact(&mut header).await?;
        let mut body = vec![0; usize::from(u16::from_be_bytes([header[16], header[17]])) - BGP_HEADER_SIZE];
        stream.read_exact(&mut body).await?;
        if header[18] != expected {
            return Err(format!("message {} with {body:?} instead of {expected}", header[18]).into());
        }
        if expected == 1 {
            stream.write_all(&message(4, &[])).await?;
        }
    }
    Ok(stream)
}

pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![0xff; 16];
    message.extend(((BGP_HEADER_SIZE + body.len()) as u16).to_be_bytes());
    message.push(kind);
    message.extend(body);
    message
}
