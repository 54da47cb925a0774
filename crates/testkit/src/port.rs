//! Free TCP ports on loopback.

use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Range below the kernel's ephemeral ports: a server that a test stops finds its port still free when it restarts.
const TEST_PORT_RANGE: Range<u16> = 20_000..30_000;

const BIND_TIMEOUT: Duration = Duration::from_secs(10);
const BIND_RETRY_DELAY: Duration = Duration::from_millis(10);

/// Reservations of this process. Each port is held by an abstract Unix socket until the process exits.
static PORT_RESERVATIONS: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// Reserves a port among all processes that use this function, or fails if it is reserved already.
fn reserve(port: u16) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("tortie-test-port-{port}"))?)
}

/// Returns a port that no other caller receives during the lifetime of this process.
pub fn free_port() -> io::Result<u16> {
    let mut held = PORT_RESERVATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    // Each process starts at a different port, so that collisions are rare.
    let count = u32::from(TEST_PORT_RANGE.end - TEST_PORT_RANGE.start);
    let first = std::process::id().wrapping_mul(97).wrapping_add(held.len() as u32);
    for step in 0..count {
        let port = TEST_PORT_RANGE.start + (first.wrapping_add(step) % count) as u16;
        let Ok(reservation) = reserve(port) else { continue };
        // A program outside the tests may listen on the port. Binding it to find out would leak the socket to every
        // process that another thread forks at this moment, and the port would stay in use until that process calls
        // exec.
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            held.push(reservation);
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("no port of {TEST_PORT_RANGE:?} is free")))
}

/// Calls `bind`, retrying while its port is in use, for up to [`BIND_TIMEOUT`]. A process forked by another test
/// inherits the sockets of this process until it calls exec, so a port can stay in use for a moment after its socket
/// was closed.
pub fn bind_when_free<S>(bind: impl Fn() -> io::Result<S>) -> io::Result<S> {
    let deadline = Instant::now() + BIND_TIMEOUT;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(BIND_RETRY_DELAY);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::TcpListener;
    use std::thread;

    #[test]
    fn no_port_is_given_twice() {
        let given: Vec<u16> = (0..50).map(|_| free_port().unwrap()).collect();
        assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len(), "{given:?}");
        assert!(given.iter().all(|port| TEST_PORT_RANGE.contains(port)), "{given:?}");
    }

    #[test]
    fn a_port_somebody_listens_on_is_not_free() {
        // Use only ports that no test has reserved: a test may have stopped the server on its port temporarily.
        let listen = |port: u16| {
            let _reservation = reserve(port).ok()?;
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
        };
        let listeners: Vec<TcpListener> =
            (free_port().unwrap() + 1..TEST_PORT_RANGE.end).take(100).filter_map(listen).collect();
        let given: Vec<u16> = (0..50).map(|_| free_port().unwrap()).collect();
        for listener in listeners {
            let port = listener.local_addr().unwrap().port();
            assert!(!given.contains(&port), "{port} is listened on and given: {given:?}");
        }
    }

    #[test]
    fn a_port_is_bound_once_it_is_free() {
        let address = (Ipv4Addr::LOCALHOST, free_port().unwrap());
        let holder = TcpListener::bind(address).unwrap();
        let waiting = thread::spawn(move || bind_when_free(|| TcpListener::bind(address)));
        thread::sleep(BIND_RETRY_DELAY * 5);
        assert!(!waiting.is_finished(), "bound while the port was in use");
        drop(holder);
        waiting.join().unwrap().unwrap();
    }
}
