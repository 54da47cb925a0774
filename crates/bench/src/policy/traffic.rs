//! Measures TCP traffic between two namespaces: throughput, request-response rate, and new connections.

use super::inside;
use crate::namespace::{BenchResult, check};
use rustix::net::sockopt::{Timeout, set_socket_linger, set_socket_timeout};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub const TRAFFIC_PORT: u16 = 5001;
const MEASUREMENT_PERIOD: Duration = Duration::from_millis(250);
const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(100);
const CHUNK_SIZE: usize = 128 << 10;

/// First byte of a connection, which selects the mode of the server: discard and count, or echo.
const SINK_MODE: u8 = b's';
const ECHO_MODE: u8 = b'e';

/// Rates per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrafficRates {
    pub bytes: f64,
    pub requests: f64,
    pub connections: f64,
}

/// Measures traffic from one namespace to an address in another.
pub fn between(client: &Path, server: &Path, address: IpAddr) -> BenchResult<TrafficRates> {
    let target = SocketAddr::new(address, TRAFFIC_PORT);
    let listener = inside(server, || {
        let listener = TcpListener::bind(target)?;
        set_socket_timeout(&listener, Timeout::Recv, Some(ACCEPT_TIMEOUT))?;
        Ok(listener)
    })?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A listening socket stays in the namespace in which it was created.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if let Ok((stream, _)) = listener.accept() {
                    // Connections that end early are those of the connection test.
                    let _ = serve(stream);
                }
            }
        });
        let rates = inside(client, || {
            Ok(TrafficRates {
                bytes: bytes(target)?,
                requests: requests(target)?,
                connections: connections(target)?,
            })
        });
        over.store(true, Ordering::Relaxed);
        rates
    })
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut kind = [0];
    stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
    stream.set_nodelay(true)?;
    stream.read_exact(&mut kind)?;
    match kind {
        [SINK_MODE] => {
            let (mut buffer, mut total) = (vec![0; CHUNK_SIZE], 0u64);
            loop {
                match stream.read(&mut buffer)? {
                    0 => break,
                    length => total += length as u64,
                }
            }
            stream.write_all(&total.to_be_bytes())
        }
        _ => loop {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            stream.write_all(&byte)?;
        },
    }
}

fn connect(target: SocketAddr) -> BenchResult<TcpStream> {
    let stream = TcpStream::connect_timeout(&target, SOCKET_TIMEOUT)
        .map_err(|error| format!("no connection to {target}: {error}"))?;
    stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
    stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn bytes(target: SocketAddr) -> BenchResult<f64> {
    let (mut stream, buffer) = (connect(target)?, vec![0; CHUNK_SIZE]);
    stream.write_all(&[SINK_MODE])?;
    let start = Instant::now();
    while start.elapsed() < MEASUREMENT_PERIOD {
        stream.write_all(&buffer)?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut total = [0; 8];
    stream.read_exact(&mut total)?;
    Ok(u64::from_be_bytes(total) as f64 / start.elapsed().as_secs_f64())
}

fn requests(target: SocketAddr) -> BenchResult<f64> {
    let mut stream = connect(target)?;
    stream.write_all(&[ECHO_MODE])?;
    let (start, mut count, mut byte) = (Instant::now(), 0.0, [0]);
    while start.elapsed() < MEASUREMENT_PERIOD {
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        count += 1.0;
    }
    Ok(count / start.elapsed().as_secs_f64())
}

fn connections(target: SocketAddr) -> BenchResult<f64> {
    check()?;
    let (start, mut count) = (Instant::now(), 0.0);
    while start.elapsed() < MEASUREMENT_PERIOD {
        let stream = connect(target)?;
        // Reset the connection instead of closing it, so that TIME_WAIT does not use up the ports.
        set_socket_linger(&stream, Some(Duration::ZERO))?;
        count += 1.0;
    }
    Ok(count / start.elapsed().as_secs_f64())
}
