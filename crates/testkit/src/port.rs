//! Free TCP ports on loopback.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// Below the ports the kernel gives to whoever asks for any: a server that is stopped for a while finds its port free when it
/// comes back.
const PORTS: Range<u16> = 20_000..30_000;

/// The ports of this process. Each is held by a socket whose name no other process can take, until this one ends.
static HELD: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A port that is given to nobody else as long as this process lives.
pub fn free_port() -> io::Result<u16> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    // Processes begin at different places, so that they seldom meet.
    let count = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id().wrapping_mul(97).wrapping_add(held.len() as u32);
    for step in 0..count {
        let port = PORTS.start + (first.wrapping_add(step) % count) as u16;
        let name = SocketAddr::from_abstract_name(format!("tortie-test-port-{port}"))?;
        let Ok(holder) = UnixListener::bind_addr(&name) else { continue };
        // Another program may listen there.
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            held.push(holder);
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("no port of {PORTS:?} is free")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_port_is_given_twice() {
        let given: Vec<u16> = (0..50).map(|_| free_port().unwrap()).collect();
        assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len(), "{given:?}");
        assert!(given.iter().all(|port| PORTS.contains(port)), "{given:?}");
    }

    #[test]
    fn a_port_somebody_listens_on_is_not_free() {
        // Those that would be given next, without having been given.
        let next = (free_port().unwrap() + 1..PORTS.end).take(100);
        let listeners: Vec<TcpListener> =
            next.filter_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()).collect();
        let given: Vec<u16> = (0..50).map(|_| free_port().unwrap()).collect();
        for listener in listeners {
            let port = listener.local_addr().unwrap().port();
            assert!(!given.contains(&port), "{port} is listened on and given: {given:?}");
        }
    }
}
