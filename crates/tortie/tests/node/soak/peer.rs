//! A misbehaving BGP peer.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

pub const PEER_ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 66);
const NODE_BGP_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(172, 30, 0, 1), 179);
const CONNECTION_COUNT: usize = 60;

fn call() -> nix::Result<TcpStream> {
    let stream = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?;
    bind(stream.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(PEER_ADDRESS, 0)))?;
    connect(stream.as_raw_fd(), &SockaddrIn::from(NODE_BGP_ADDRESS))?;
    Ok(TcpStream::from(stream))
}

/// Opens many connections: a third stays silent, a third sends a partial message, a third sends invalid messages.
pub fn call_many() -> Vec<TcpStream> {
    let nonsense = [&[0xff; 16][..], &4096_u16.to_be_bytes(), &[2], &[0x55; 4077]].concat().repeat(50);
    let mut calls: Vec<TcpStream> = (0..CONNECTION_COUNT).filter_map(|_| call().ok()).collect();
    for (number, stream) in calls.iter_mut().enumerate() {
        // The node may already have closed the connection.
        let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = match number % 3 {
            0 => Ok(()),
            1 => stream.write_all(&[0xff; 7]),
            _ => stream.write_all(&nonsense),
        };
    }
    calls
}
