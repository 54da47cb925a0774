//! Socket options that nix and socket2 lack: TCP MD5 signatures and the minimum accepted TTL.
//!
//! `setsockopt_impl!` is nix's own way to add an option; the value types here have the kernel's layout.

use nix::errno::Errno;
use nix::setsockopt_impl;
use nix::sys::socket::SetSockOpt;
use nix::sys::socket::sockopt::SetStruct;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

/// `struct tcp_md5sig` of linux/tcp.h.
#[derive(Clone, Copy)]
#[repr(C)]
struct TcpMd5Signature {
    /// `struct sockaddr_storage` with the address of the peer.
    address: [u8; 128],
    flags: u8,
    prefix_length: u8,
    key_length: u16,
    interface: libc::c_int,
    key: [u8; 80],
}

#[derive(Clone)]
struct TcpMd5;
setsockopt_impl!(
    TcpMd5,
    libc::IPPROTO_TCP,
    libc::TCP_MD5SIG,
    TcpMd5Signature,
    SetStruct<'_, TcpMd5Signature>
);

#[derive(Clone)]
struct MinTtl;
setsockopt_impl!(MinTtl, libc::IPPROTO_IP, libc::IP_MINTTL, libc::c_int, SetStruct<'_, libc::c_int>);

/// IPV6_MINHOPCOUNT, which libc does not define.
const IPV6_MINHOPCOUNT: libc::c_int = 73;

#[derive(Clone)]
struct MinHopCount;
setsockopt_impl!(MinHopCount, libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT, libc::c_int, SetStruct<'_, libc::c_int>);

/// Sets the TCP MD5 key: segments to the peer are signed, and unsigned ones from it are dropped. `None` removes the
/// key.
pub fn set_password(socket: &impl AsFd, peer: IpAddr, password: Option<&str>) -> io::Result<()> {
    let password = password.unwrap_or_default().as_bytes();
    let mut signature = TcpMd5Signature {
        address: [0; 128],
        flags: 0,
        prefix_length: 0,
        key_length: password.len() as u16,
        interface: 0,
        key: [0; 80],
    };
    let Some(key) = signature.key.get_mut(..password.len()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a TCP MD5 password has at most 80 bytes"));
    };
    key.copy_from_slice(password);
    let (family, at, octets) = match peer {
        IpAddr::V4(peer) => (libc::AF_INET, 4, peer.octets().to_vec()),
        IpAddr::V6(peer) => (libc::AF_INET6, 8, peer.octets().to_vec()),
    };
    let family = (family as u16).to_ne_bytes();
    for (place, byte) in signature.address.iter_mut().zip(family) {
        *place = byte;
    }
    for (place, byte) in signature.address.iter_mut().skip(at).zip(octets) {
        *place = byte;
    }
    match TcpMd5.set(socket, &signature) {
        // There was no key to remove.
        Err(Errno::ENOENT) if password.is_empty() => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Accepts only packets that travelled at most `hops` hops (RFC 5082).
pub fn set_min_ttl(socket: &impl AsFd, peer: IpAddr, hops: u8) -> io::Result<()> {
    let minimum = 256 - libc::c_int::from(hops.max(1));
    match peer {
        IpAddr::V4(_) => MinTtl.set(socket, &minimum)?,
        IpAddr::V6(_) => MinHopCount.set(socket, &minimum)?,
    }
    Ok(())
}
