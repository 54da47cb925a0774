//! Has connection tracking forget: the connections of addresses that left or moved, so that a new owner does not inherit
//! them, and those that policy no longer allows.
//!
//! The kernel looks through all its connections for that, so it is asked once for as many addresses as there are.

use crate::error::{Error, Result};
use crate::netns::Netns;
use nlink::Connection;
use nlink::netlink::Netfilter;
use nlink::netlink::netfilter::{ConntrackEntry, ConntrackStatus};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use tokio::task::JoinHandle;
use tortie_plan::evaluate::Packet;

/// When many workloads go, the next look is for all that went meanwhile.
const PAUSE: Duration = Duration::from_secs(1);

/// Addresses whose connections are being forgotten, and those that wait for that.
#[derive(Default)]
pub(crate) struct ConntrackCleanup {
    waiting: BTreeSet<IpAddr>,
    at_work: Option<(BTreeSet<IpAddr>, JoinHandle<()>)>,
    not_before: Duration,
}

impl ConntrackCleanup {
    /// Forgets these, some time.
    pub fn later(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.waiting.extend(addresses);
    }

    /// Returns when the connections of these are forgotten, or were not to be.
    pub async fn finish(&mut self, netns: &Netns, addresses: &BTreeSet<IpAddr>) {
        if let Some((_, work)) = self.at_work.take_if(|(at_work, _)| !at_work.is_disjoint(addresses)) {
            // It has said what went wrong.
            let _ = work.await;
        }
        let waiting: BTreeSet<IpAddr> = self.waiting.intersection(addresses).copied().collect();
        if !waiting.is_empty() {
            self.waiting.retain(|address| !waiting.contains(address));
            forget_flows(netns, &waiting).await;
        }
    }

    /// Sets to work on what waits, unless it is at work or was a moment ago.
    pub fn go_on(&mut self, netns: &Netns, now: Duration) {
        let busy = self.at_work.as_ref().is_some_and(|(_, work)| !work.is_finished());
        if self.waiting.is_empty() || busy || now < self.not_before {
            return;
        }
        self.not_before = now + PAUSE;
        let (netns, addresses) = (netns.clone(), std::mem::take(&mut self.waiting));
        let these = addresses.clone();
        self.at_work = Some((addresses, tokio::spawn(async move { forget_flows(&netns, &these).await })));
    }
}

/// Deletes the connections of these addresses.
pub(crate) async fn forget_flows(netns: &Netns, addresses: &BTreeSet<IpAddr>) {
    let connection = match netns.conntrack() {
        Ok(connection) => connection,
        Err(error) => return tracing::warn!(%error, "no conntrack; flows of removed workloads stay"),
    };
    for v4 in [true, false] {
        if addresses.iter().any(|address| address.is_ipv4() == v4)
            && let Err(error) = forget_family(&connection, v4, addresses).await
        {
            tracing::warn!(%error, ?addresses, "flows not forgotten");
        }
    }
}

async fn forget_family(
    connection: &Connection<Netfilter>,
    v4: bool,
    addresses: &BTreeSet<IpAddr>,
) -> nlink::Result<()> {
    let flows = list(connection, v4).await?;
    // A floating address is only where the first packet went.
    let theirs = |flow: &&ConntrackEntry| {
        let ends = [flow.orig.src_ip, flow.orig.dst_ip, flow.reply.src_ip];
        ends.into_iter().flatten().any(|end| addresses.contains(&end))
    };
    delete(connection, flows.iter().filter(theirs)).await.map(|_| ())
}

/// Forgets the flows whose first packet is denied; says how many those were.
pub(crate) async fn delete_denied_flows(
    netns: &Netns,
    is_denied: impl Fn(&Packet) -> bool + Send + Sync,
) -> Result<usize> {
    let describe = |error: nlink::Error| Error::kernel("connection tracking", &error);
    let connection = netns.conntrack()?;
    let mut count = 0;
    for v4 in [true, false] {
        let flows = list(&connection, v4).await.map_err(describe)?;
        let denied: Vec<&ConntrackEntry> =
            flows.iter().filter(|flow| opening(flow).is_some_and(|packet| is_denied(&packet))).collect();
        count += delete(&connection, denied).await.map_err(describe)?;
    }
    Ok(count)
}

/// The packet that opened a flow, as policy saw it: with its own source, and the destination that answers. Nothing for
/// flows that policy was not asked about: those that others belong to, and those of other zones.
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
            // Ended by itself meanwhile.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}
