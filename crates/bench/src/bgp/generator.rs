//! A peer that sends many routes, and peers that count what they are sent. Both do as little as possible.

use crate::namespace::Result;
use rustbgpd_wire::{Afi, Capability, Message, OpenMessage, Safi, encode_message};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

pub const ASN: u32 = 64512;
pub const SPEAKER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// Sent last, and passed on alone where routes are only taken in.
pub const MARKER: &str = "203.0.113.0/24";
const MARKER_NLRI: [u8; 4] = [24, 203, 0, 113];
/// Routes that share their attributes.
const TOGETHER: usize = 10;
const KEEPALIVE: Duration = Duration::from_secs(20);
const HEADER: usize = 19;
/// How long a speaker may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// UPDATE messages with routes, ready to be sent.
pub struct Feed {
    bytes: Arc<Vec<u8>>,
}

impl Feed {
    pub fn new(routes: usize) -> Feed {
        let mut bytes = Vec::with_capacity(routes * 16);
        for first in (0..routes).step_by(TOGETHER) {
            let mut nlri = Vec::with_capacity(4 * TOGETHER);
            for number in first..routes.min(first + TOGETHER) {
                // /24s from 20.0.0.0 on; 1M of them end before 36.0.0.0.
                let address = Ipv4Addr::from((20 << 24) + ((number as u32) << 8));
                nlri.push(24);
                nlri.extend(address.octets().iter().take(3));
            }
            update(&mut bytes, (first / TOGETHER) as u32, &nlri);
        }
        update(&mut bytes, 0, &MARKER_NLRI);
        Feed { bytes: Arc::new(bytes) }
    }

    pub async fn connect(&self, last: u8) -> Result<Feeder> {
        let stream = establish(last).await?;
        let (mut read, write) = stream.into_split();
        let drain = tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 16];
            while matches!(read.read(&mut buffer).await, Ok(1..)) {}
        });
        Ok(Feeder { write, bytes: self.bytes.clone(), drain })
    }
}

pub struct Feeder {
    write: OwnedWriteHalf,
    bytes: Arc<Vec<u8>>,
    drain: JoinHandle<()>,
}

impl Feeder {
    pub async fn send(&mut self) -> std::io::Result<()> {
        self.write.write_all(&self.bytes).await
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.drain.abort();
    }
}

/// Counts the routes it is sent.
pub struct Listener {
    count: Arc<AtomicUsize>,
    more: Arc<Notify>,
    tasks: [JoinHandle<()>; 2],
}

impl Listener {
    pub async fn connect(last: u8) -> Result<Listener> {
        let stream = establish(last).await?;
        let (mut read, mut write) = stream.into_split();
        let (count, more) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let (counted, notify) = (count.clone(), more.clone());
        let reader = tokio::spawn(async move {
            let mut buffer = Vec::with_capacity(1 << 18);
            while matches!(read.read_buf(&mut buffer).await, Ok(1..)) {
                let (routes, used) = routes(&buffer);
                buffer.drain(..used);
                if routes > 0 {
                    counted.fetch_add(routes, Ordering::Relaxed);
                    notify.notify_one();
                }
            }
        });
        let keeper = tokio::spawn(async move {
            loop {
                tokio::time::sleep(KEEPALIVE).await;
                if write.write_all(&message(4, &[])).await.is_err() {
                    return;
                }
            }
        });
        Ok(Listener { count, more, tasks: [reader, keeper] })
    }

    /// Waits until so many routes have come.
    pub async fn until(&mut self, routes: usize, limit: Duration) -> Result<()> {
        let wait = async {
            while self.count.load(Ordering::Relaxed) < routes {
                self.more.notified().await;
            }
        };
        tokio::time::timeout(limit, wait).await.map_err(|_| {
            format!("only {} of {routes} routes came in {limit:?}", self.count.load(Ordering::Relaxed)).into()
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// How many IPv4 routes the whole messages announce, and how many bytes those are.
fn routes(buffer: &[u8]) -> (usize, usize) {
    let (mut routes, mut used) = (0, 0);
    while let Some(rest) = buffer.get(used..).filter(|rest| rest.len() >= HEADER) {
        let length = usize::from(u16::from_be_bytes([rest[16], rest[17]]));
        let Some(body) = rest.get(HEADER..length) else { break };
        if rest[18] == 2 && body.len() >= 4 {
            let withdrawn = usize::from(u16::from_be_bytes([body[0], body[1]]));
            let at = 2 + withdrawn;
            let attributes = usize::from(u16::from_be_bytes([body[at], body[at + 1]]));
            let mut nlri = &body[at + 2 + attributes..];
            while let Some(bits) = nlri.first() {
                nlri = &nlri[1 + usize::from(bits.div_ceil(8))..];
                routes += 1;
            }
        }
        used += length;
    }
    (routes, used)
}

/// A session, up, from the address `10.99.0.<last>`.
async fn establish(last: u8) -> Result<TcpStream> {
    let source = Ipv4Addr::new(10, 99, 0, last);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt(source).await {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

async fn attempt(source: Ipv4Addr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(source.into(), 0))?;
    let mut stream = socket.connect(SocketAddr::new(SPEAKER.into(), 179)).await?;
    stream.set_nodelay(true)?;
    let open = OpenMessage {
        version: 4,
        my_as: ASN as u16,
        hold_time: 240,
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

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![0xff; 16];
    message.extend(((HEADER + body.len()) as u16).to_be_bytes());
    message.push(kind);
    message.extend(body);
    message
}

/// An UPDATE whose path tells it from others: four AS numbers, LOCAL_PREF, two communities.
fn update(out: &mut Vec<u8>, set: u32, nlri: &[u8]) {
    let mut attributes = vec![0x40, 1, 1, 0, 0x40, 2, 18, 2, 4];
    for asn in [65001, 65100 + set % 300, 65500 + set / 300 % 300, 66000 + set / 90_000] {
        attributes.extend(u32::to_be_bytes(asn));
    }
    attributes.extend([0x40, 3, 4, 10, 99, 0, 2, 0x40, 5, 4, 0, 0, 0, 100]);
    attributes.extend([0xc0, 8, 8, 0xfd, 0xe9, 0, 1, 0xfd, 0xe9, 0, (set % 16) as u8]);
    let mut body = vec![0, 0];
    body.extend((attributes.len() as u16).to_be_bytes());
    body.extend(attributes);
    body.extend(nlri);
    out.extend(message(2, &body));
}
