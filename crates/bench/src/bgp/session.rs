//! Peers of the speaker: they send what they are given and count what they are sent, and do as little else as possible.

use super::place::{ASN, SPEAKER};
use crate::namespace::Result;
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

const HEADER: usize = 19;
/// How long a speaker may take to listen, or to be ready for a session again.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(50);
/// How long an answer may take. A speaker that is called by many at once loses some calls.
const ANSWER: Duration = Duration::from_secs(2);
/// Nothing but updates keeps a session up that is busy for long.
pub const LONG_HOLD: u16 = 240;

/// A session that is up. It ends, without a word, when dropped.
pub struct Peer {
    write: Arc<Mutex<OwnedWriteHalf>>,
    heard: Arc<Heard>,
    tasks: [JoinHandle<()>; 2],
}

/// Routes that were announced and withdrawn, repetitions included.
#[derive(Default)]
struct Heard {
    announced: AtomicUsize,
    withdrawn: AtomicUsize,
    more: Notify,
}

impl Peer {
    pub async fn connect(source: Ipv4Addr, hold: u16) -> Result<Peer> {
        let (read, write) = establish(source, hold).await?.into_split();
        let (write, heard) = (Arc::new(Mutex::new(write)), Arc::new(Heard::default()));
        let reader = tokio::spawn(listen(read, heard.clone()));
        let keeper = tokio::spawn(keep_up(write.clone(), hold));
        Ok(Peer { write, heard, tasks: [reader, keeper] })
    }

    pub async fn send(&self, bytes: &[u8]) -> std::io::Result<()> {
        self.write.lock().await.write_all(bytes).await
    }

    /// How many routes have been announced so far, and withdrawn.
    pub fn heard(&self) -> (usize, usize) {
        (self.heard.announced.load(Ordering::Relaxed), self.heard.withdrawn.load(Ordering::Relaxed))
    }

    /// Waits until so many routes have been announced. Says whether that happened in time.
    pub async fn announced(&self, routes: usize, deadline: Instant) -> bool {
        self.until(|heard| heard.announced.load(Ordering::Relaxed) >= routes, deadline).await
    }

    pub async fn withdrawn(&self, routes: usize, deadline: Instant) -> bool {
        self.until(|heard| heard.withdrawn.load(Ordering::Relaxed) >= routes, deadline).await
    }

    async fn until(&self, enough: impl Fn(&Heard) -> bool, deadline: Instant) -> bool {
        let wait = async {
            while !enough(&self.heard) {
                self.heard.more.notified().await;
            }
        };
        tokio::time::timeout_at(deadline.into(), wait).await.is_ok()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn listen(mut read: OwnedReadHalf, heard: Arc<Heard>) {
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
        // Who is sending needs no keepalive.
        if let Ok(mut write) = write.try_lock()
            && write.write_all(&message(4, &[])).await.is_err()
        {
            return;
        }
    }
}

/// How many IPv4 routes the whole messages announce and withdraw, and how many bytes those are.
fn count(buffer: &[u8]) -> (usize, usize, usize) {
    let (mut announced, mut withdrawn, mut used) = (0, 0, 0);
    while let Some(rest) = buffer.get(used..).filter(|rest| rest.len() >= HEADER) {
        let length = usize::from(u16::from_be_bytes([rest[16], rest[17]]));
        let Some(body) = rest.get(HEADER..length) else { break };
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

async fn establish(source: Ipv4Addr, hold: u16) -> Result<TcpStream> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let attempt = tokio::time::timeout(ANSWER, attempt(source, hold)).await;
        match attempt.unwrap_or_else(|_| Err("the speaker does not answer".into())) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => return Err(format!("{source}: {error}").into()),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

async fn attempt(source: Ipv4Addr, hold: u16) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(source.into(), 0))?;
    let mut stream = socket.connect(SocketAddr::new(SPEAKER.into(), 179)).await?;
    stream.set_nodelay(true)?;
    let open = OpenMessage {
        version: 4,
        my_as: ASN as u16,
        hold_time: hold,
        bgp_identifier: source,
        capabilities: vec![
            Capability::MultiProtocol { afi: Afi::Ipv4, safi: Safi::Unicast },
            Capability::FourOctetAs { asn: ASN },
            Capability::RouteRefresh,
        ],
    };
    stream.write_all(&encode_message(&Message::Open(open))?).await?;
    // Its OPEN and its KEEPALIVE say that it has taken ours.
    for expected in [1, 4] {
        let mut header = [0; HEADER];
        stream.read_exact(&mut header).await?;
        let mut body = vec![0; usize::from(u16::from_be_bytes([header[16], header[17]])) - HEADER];
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
    message.extend(((HEADER + body.len()) as u16).to_be_bytes());
    message.push(kind);
    message.extend(body);
    message
}
