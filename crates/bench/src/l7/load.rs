//! Load: HTTP/1.1 requests over keep-alive connections, and gRPC checks.

use super::policy::ALLOWED_PATH;
use crate::measure::Latencies;
use crate::namespace::{self, BenchResult};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const END_OF_HEAD: &[u8] = b"\r\n\r\n";
/// Maximum size of a response.
const MAX_RESPONSE_BYTES: usize = 4096;

/// Requests that were answered, and their latencies.
#[derive(Default)]
pub struct RequestRates {
    pub latencies: Latencies,
    pub elapsed: Duration,
}

impl RequestRates {
    pub fn add(&mut self, other: RequestRates) {
        self.latencies.extend(other.latencies);
        self.elapsed += other.elapsed;
    }

    pub fn rate(&self) -> f64 {
        self.latencies.0.len() as f64 / self.elapsed.as_secs_f64()
    }
}

/// Sends requests over some connections at once for a while, from a network namespace.
pub fn send_requests(
    netns: &Path,
    port: u16,
    connections: usize,
    duration: Duration,
) -> BenchResult<RequestRates> {
    let netns = netns.to_owned();
    // Another thread, because this one must stay in its namespace.
    let client = std::thread::spawn(move || -> BenchResult<RequestRates> {
        namespace::enter(&netns)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let started = Instant::now();
            let deadline = started + duration;
            let mut tasks = JoinSet::new();
            for _ in 0..connections {
                tasks.spawn(repeat_request(port, deadline));
            }
            let mut rates = RequestRates::default();
            while let Some(latencies) = tasks.join_next().await {
                rates.latencies.extend(latencies??);
            }
            rates.elapsed = started.elapsed();
            Ok(rates)
        })
    });
    client.join().map_err(|_| "the client of the measurement failed")?
}

async fn repeat_request(port: u16, deadline: Instant) -> io::Result<Latencies> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let request = format!("GET {ALLOWED_PATH} HTTP/1.1\r\nhost: web\r\nuser-agent: tortie-bench\r\n\r\n");
    let mut latencies = Latencies::default();
    let mut response = vec![0; MAX_RESPONSE_BYTES];
    while Instant::now() < deadline {
        let sent = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let mut length = 0;
        while !is_complete(response.get(..length).unwrap_or_default()) {
            let part = response.get_mut(length..).unwrap_or_default();
            match stream.read(part).await? {
                0 => return Err(io::Error::other("Envoy closed the connection, or a response is too long")),
                read => length += read,
            }
        }
        if !response.starts_with(b"HTTP/1.1 200 ") {
            let head = String::from_utf8_lossy(response.get(..length).unwrap_or_default()).into_owned();
            return Err(io::Error::other(format!("not allowed: {head}")));
        }
        latencies.0.push(sent.elapsed());
    }
    Ok(latencies)
}

/// Returns whether a response without a body is complete.
fn is_complete(response: &[u8]) -> bool {
    response.ends_with(END_OF_HEAD)
}
