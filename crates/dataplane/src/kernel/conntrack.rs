//! Deletes connection tracking entries: those of addresses that were removed or moved, so that a new owner does not
//! inherit them, and those of flows that policy no longer allows.
//!
//! Each deletion dumps the whole conntrack table, so that one dump serves as many addresses as possible.

use crate::error::{DataplaneError, DataplaneResult};
use crate::netns::Netns;
use nlink::Connection;
use nlink::netlink::Netfilter;
use nlink::netlink::netfilter::{ConntrackEntry, ConntrackStatus};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use tokio::task::JoinHandle;
use tortie_plan::evaluate::Packet;

/// Minimum interval between two dumps: when many workloads are removed, the next dump covers all addresses that were
/// queued since.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(1);

/// Addresses whose entries are being deleted, and those that are queued.
#[derive(Default)]
pub struct ConntrackCleanup {
    waiting: BTreeSet<IpAddr>,
    at_work: Option<(BTreeSet<IpAddr>, JoinHandle<()>)>,
    not_before: Duration,
}

impl ConntrackCleanup {
    /// Queues addresses for deletion of their entries.
    pub fn later(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.waiting.extend(addresses);
    }

    /// Returns when the entries of these addresses are deleted, immediately if none of them is queued.
    pub async fn finish(&mut self, netns: &Netns, addresses: &BTreeSet<IpAddr>) {
        if let Some((_, work)) = self.at_work.take_if(|(at_work, _)| !at_work.is_disjoint(addresses)) {
            // The task has logged its failures.
            let _ = work.await;
        }
        let waiting: BTreeSet<IpAddr> = self.waiting.intersection(addresses).copied().collect();
        if !waiting.is_empty() {
            self.waiting.retain(|address| !waiting.contains(address));
            forget_flows(netns, &waiting).await;
        }
    }

    /// Starts a background deletion for the queued addresses, unless one is running or was started less than `CLEANUP_INTERVAL`
    /// ago.
    pub fn go_on(&mut self, netns: &Netns, now: Duration) {
        let busy = self.at_work.as_ref().is_some_and(|(_, work)| !work.is_finished());
        if self.waiting.is_empty() || busy || now < self.not_before {
            return;
        }
        self.not_before = now + CLEANUP_INTERVAL;
        let netns = netns.clone();
        let addresses = std::mem::take(&mut self.waiting);
        let these = addresses.clone();
        self.at_work = Some((addresses, tokio::spawn(async move { forget_flows(&netns, &these).await })));
    }
}

/// Deletes the connection tracking entries of these addresses. Failures are logged.
pub async fn forget_flows(netns: &Netns, addresses: &BTreeSet<IpAddr>) {
    let connection = match netns.conntrack() {
        Ok(connection) => connection,
        Err(error) => return tracing::warn!(%error, "no conntrack; entries of removed workloads remain"),
    };
    for v4 in [true, false] {
        if addresses.iter().any(|address| address.is_ipv4() == v4)
            && let Err(error) = delete_family_flows(&connection, v4, addresses).await
        {
            tracing::warn!(%error, ?addresses, "cannot delete conntrack entries of removed workloads");
        }
    }
}

async fn delete_family_flows(
    connection: &Connection<Netfilter>,
    v4: bool,
    addresses: &BTreeSet<IpAddr>,
) -> nlink::Result<()> {
    let flows = list(connection, v4).await?;
    // A floating address occurs only as the original destination.
    let mut theirs = Vec::new();
    for flow in &flows {
        let ends = [flow.orig.src_ip, flow.orig.dst_ip, flow.reply.src_ip];
        if ends.into_iter().flatten().any(|end| addresses.contains(&end)) {
            theirs.push(flow);
        }
    }
    delete(connection, theirs).await.map(|_| ())
}

fn convert_error(error: nlink::Error) -> DataplaneError {
    DataplaneError::kernel("connection tracking", &error)
}

/// Deletes the flows whose first packet is denied, and returns their number.
pub async fn delete_denied_flows(
    netns: &Netns,
    is_denied: impl Fn(&Packet) -> bool + Send + Sync,
) -> DataplaneResult<usize> {
    let connection = netns.conntrack()?;
    let mut count = 0;
    for v4 in [true, false] {
        let flows = list(&connection, v4).await.map_err(convert_error)?;
        let denied: Vec<&ConntrackEntry> =
            flows.iter().filter(|flow| opening(flow).is_some_and(|packet| is_denied(&packet))).collect();
        count += delete(&connection, denied).await.map_err(convert_error)?;
    }
    Ok(count)
}

/// Returns the packet that opened a flow, as policy saw it: with its original source, and the destination that replies.
/// Returns `None` for flows that policy does not judge: related flows, and flows of other zones.
fn opening(flow: &ConntrackEntry) -> Option<Packet> {
    let related = flow.status.is_some_and(|status| status & ConntrackStatus::EXPECTED.bits() != 0);
    if related || flow.zone.is_some_and(|zone| zone != 0) {
        return None;
    }
    Some(Packet {
        source: flow.orig.src_ip?,
        destination: flow.reply.src_ip?,
        protocol: flow.proto.number(),
        source_port: flow.orig.src_port.unwrap_or_default(),
        destination_port: flow.reply.src_port.unwrap_or_default(),
        icmp: flow.orig.icmp_type.map(|kind| (kind, flow.orig.icmp_code.unwrap_or_default())),
    })
}

async fn list(connection: &Connection<Netfilter>, v4: bool) -> nlink::Result<Vec<ConntrackEntry>> {
    if v4 { connection.get_conntrack().await } else { connection.get_conntrack_v6().await }
}

async fn delete<'f>(
    connection: &Connection<Netfilter>,
    flows: impl IntoIterator<Item = &'f ConntrackEntry>,
) -> nlink::Result<usize> {
    let mut count = 0;
    for flow in flows {
        match connection.del_conntrack_entry(flow).await {
            Ok(()) => count += 1,
            // The flow has ended since the dump.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}
