//! Free TCP ports on loopback.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// A port nobody listened on a moment ago. Another process may still take it: callers retry.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
