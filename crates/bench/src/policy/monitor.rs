//! Receives the kernel's notifications about changes to the nf_tables ruleset.

use super::inside;
use crate::namespace::BenchResult;
use rustix::fd::OwnedFd;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size_force, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::path::Path;
use std::time::{Duration, Instant};

/// Multicast group of nf_tables notifications, as a bit.
const NFNLGRP_NFTABLES_BIT: u32 = 1 << 6;
const NFNL_SUBSYS_NFTABLES: u8 = 10;
const NFNL_HEADER_SIZE: usize = 20;
const RECEIVE_BUFFER_SIZE: usize = 64 << 20;
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Kind of change, with the kernel's message type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesetChange {
    Rule = 6,
    ElementAdded = 12,
    ElementRemoved = 14,
}

/// Receives notifications for a namespace. The kernel sends them when a transaction has been committed.
pub struct RulesetMonitor(OwnedFd);

impl RulesetMonitor {
    pub fn open(netns: &Path) -> BenchResult<RulesetMonitor> {
        inside(netns, || {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
            set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_SIZE)?;
            set_socket_timeout(&socket, Timeout::Recv, Some(NOTIFICATION_TIMEOUT))?;
            bind(&socket, &SocketAddrNetlink::new(0, NFNLGRP_NFTABLES_BIT))?;
            Ok(RulesetMonitor(socket))
        })
    }

    /// Discards the notifications received so far.
    pub fn skip(&self) -> BenchResult<()> {
        let mut buffer = vec![0; 1 << 20];
        while recv(&self.0, buffer.as_mut_slice(), RecvFlags::DONTWAIT).is_ok() {}
        Ok(())
    }

    /// Waits for a change of this kind whose message contains these bytes, and returns when it was received.
    pub fn wait(&self, done: RulesetChange, containing: &[u8]) -> BenchResult<Instant> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let received = recv(&self.0, buffer.as_mut_slice(), RecvFlags::empty());
            let now = Instant::now();
            let (_, length) = received.map_err(|error| format!("no {done:?} in the kernel: {error}"))?;
            let data = buffer.get(..length).unwrap_or_default();
            if messages(data).any(|(kind, body)| {
                kind == done as u8 && body.windows(containing.len()).any(|w| w == containing)
            }) {
                return Ok(now);
            }
        }
    }
}

fn messages(mut data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        loop {
            let length = data.get(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)?;
            let length = usize::try_from(length).ok().filter(|length| *length >= 16)?;
            let message = data.get(..length)?;
            data = data.get(length.next_multiple_of(4)..).unwrap_or_default();
            let [kind, subsystem] = [message[4], message[5]];
            if subsystem == NFNL_SUBSYS_NFTABLES {
                return Some((kind, message.get(NFNL_HEADER_SIZE..).unwrap_or_default()));
            }
        }
    })
}
