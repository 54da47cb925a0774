//! Reads the kernel's reports about flows and sends them as events. One task reads messages and counters, another one
//! dumps live connections, so that a long dump delays no message.

use super::super::kernel::NftablesClient;
use super::super::render::flow::ALLOWED_MESSAGE;
use super::FLOW_GROUP;
use super::counts::{FlowCounts, KeyDelta};
use super::identity::FlowIdentities;
use super::label::FlowLabel;
use super::messages::{ConnectionMessage, PacketMessage, parse_connection, parse_packet};
use crate::error::{DataplaneError, DataplaneResult, kernel_error};
use crate::flow::SharedGeneration;
use crate::netlink::{
    NLM_F_ACK, NLM_F_DUMP, NetlinkAttributes, NetlinkFrame, NetlinkRequest, exchange, frames,
};
use crate::netns::Netns;
use nix::errno::Errno;
use nlink::netlink::NetlinkSocket;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;
use tortie_plan::flow::{
    ConnectionRecord, FlowEvent, FlowInterfaces, FlowKey, FlowLoss, FlowOpening, FlowSourceSettings,
    PolicyGeneration,
};

/// Bytes copied of each first packet: the headers.
const COPIED_PACKET_BYTES: u32 = 128;
/// Messages that the kernel collects before it wakes the reader, and the longest time that it waits for more.
const QUEUED_MESSAGES: u32 = 32;
const QUEUE_DELAY_CENTISECONDS: u32 = 10;
const MESSAGE_BUFFER_BYTES: usize = 8 << 20;
/// Maximum number of live connections that one dump reports.
const MAX_DUMPED_CONNECTIONS: usize = 131_072;
/// Share of the time that reads of counters and connections may take: one part in this many.
const READ_TIME_SHARE: u32 = 50;
/// Maximum number of first packets that wait for their labels, and the time for which further ones are awaited.
const MAX_PENDING_OPENINGS: usize = 8192;
const PENDING_DELAY: Duration = Duration::from_millis(50);

const LOG_SUBSYSTEM: u16 = 4;
const CONNTRACK_SUBSYSTEM: u16 = 1;
/// Family, version and group number of requests about the group.
const GROUP_HEADER: [u8; 4] = [0, 0, 0, FLOW_GROUP as u8];
const CONNTRACK_DESTROY_GROUP: u32 = 3;

/// Sends events and counts those that the receiver did not take.
struct EventOutbox {
    sender: Sender<FlowEvent>,
    lost: u64,
}

impl EventOutbox {
    /// Sends an event unless the channel is full. Returns whether it was sent.
    fn try_send(&mut self, event: FlowEvent) -> bool {
        if self.lost > 0 {
            let loss = FlowEvent::Lost { loss: FlowLoss::Receiver, events: self.lost };
            if self.sender.try_send(loss).is_err() {
                return false;
            }
            self.lost = 0;
        }
        self.sender.try_send(event).is_ok()
    }

    /// Sends an event that is lost if the channel is full.
    fn send(&mut self, event: FlowEvent) {
        if !self.try_send(event) {
            self.lost = self.lost.saturating_add(1);
        }
    }
}

/// Reads messages and counters.
pub struct MessageReader {
    netns: Netns,
    settings: FlowSourceSettings,
    client: Arc<NftablesClient>,
    identities: FlowIdentities,
    generation: SharedGeneration,
    outbox: EventOutbox,
    packets: NetlinkSocket,
    endings: NetlinkSocket,
    counters: NetlinkSocket,
    counts: FlowCounts,
    /// First packets whose labels have to be read.
    pending: Vec<PendingOpening>,
    dump: Arc<Notify>,
    /// Names by index; `None` for interfaces that have vanished. Read again for each new index.
    interfaces: HashMap<u32, Option<String>>,
}

/// The first packet of a key, with the interface names and the policy at the arrival of its message.
struct PendingOpening {
    packet: PacketMessage,
    interfaces: Option<FlowInterfaces>,
    generation: PolicyGeneration,
}

/// State that the readers share with the source.
#[derive(Clone)]
pub struct ReaderContext {
    pub netns: Netns,
    pub settings: FlowSourceSettings,
    pub client: Arc<NftablesClient>,
    pub identities: FlowIdentities,
    pub generation: SharedGeneration,
    pub events: Sender<FlowEvent>,
    /// Requests a dump of live connections.
    pub dump: Arc<Notify>,
}

impl MessageReader {
    /// Opens the sockets and takes the present counters as already reported.
    pub async fn open(context: ReaderContext) -> DataplaneResult<MessageReader> {
        let ReaderContext { netns, settings, client, identities, generation, events, dump } = context;
        let packets = netns.netfilter_socket()?;
        packets.set_rcvbuf(MESSAGE_BUFFER_BYTES).map_err(kernel_error("flow messages"))?;
        bind_group(&packets).await?;
        let endings = netns.netfilter_socket()?;
        let ready = endings
            .set_rcvbuf(MESSAGE_BUFFER_BYTES)
            .and_then(|()| endings.add_membership(CONNTRACK_DESTROY_GROUP));
        ready.map_err(kernel_error("events of connection tracking"))?;
        let counters = netns.netfilter_socket()?;
        counters.set_rcvbuf(MESSAGE_BUFFER_BYTES).map_err(kernel_error("flow counters"))?;
        let counts = FlowCounts::start(&client, &counters).await?;
        Ok(MessageReader {
            netns,
            settings,
            client,
            identities,
            generation,
            outbox: EventOutbox { sender: events, lost: 0 },
            packets,
            endings,
            counters,
            counts,
            pending: Vec::new(),
            dump,
            interfaces: HashMap::new(),
        })
    }

    /// Reads until a socket fails.
    pub async fn run(mut self) -> DataplaneResult<()> {
        let mut next_read = Instant::now() + self.settings.count_interval;
        let mut earliest_read = Instant::now();
        loop {
            if !self.pending.is_empty() {
                next_read = next_read.min(earliest_read.max(Instant::now() + PENDING_DELAY));
            }
            tokio::select! {
                data = self.packets.recv_msg() => match data {
                    Ok(data) => self.report_packets(&data).await,
                    Err(error) if error.is_no_buffer_space() => {
                        self.outbox.send(FlowEvent::Lost { loss: FlowLoss::Openings, events: 1 });
                    }
                    Err(error) => return Err(DataplaneError::kernel("flow messages", &error)),
                },
                data = self.endings.recv_msg() => match data {
                    Ok(data) => self.report_endings(&data),
                    Err(error) if error.is_no_buffer_space() => {
                        self.outbox.send(FlowEvent::Lost { loss: FlowLoss::Endings, events: 1 });
                        // The dump shows which connections still exist.
                        self.dump.notify_one();
                    }
                    Err(error) => return Err(DataplaneError::kernel("events of connection tracking", &error)),
                },
                () = tokio::time::sleep_until(next_read) => {
                    let started = Instant::now();
                    self.report_counts().await?;
                    earliest_read = started + started.elapsed() * READ_TIME_SHARE;
                    next_read = earliest_read.max(started + self.settings.count_interval);
                }
            }
        }
    }

    async fn report_packets(&mut self, data: &[u8]) {
        let packets: Vec<PacketMessage> = frames(data)
            .filter(|frame| frame.kind == LOG_SUBSYSTEM << 8)
            .filter_map(|frame| parse_packet(frame.attributes()?))
            .collect();
        let indexes = packets.iter().flat_map(|packet| [packet.in_index, packet.out_index]).flatten();
        let unknown: Vec<u32> = indexes.filter(|index| !self.interfaces.contains_key(index)).collect();
        if !unknown.is_empty() {
            self.read_interfaces(&unknown).await;
        }
        for packet in packets {
            let allowed = packet.prefix == ALLOWED_MESSAGE;
            let pending = PendingOpening {
                interfaces: self.name_interfaces(&packet),
                generation: self.generation.get(),
                packet,
            };
            // Packets without a connection are reported with their label; for others the message has none if the
            // kernel does not add the connection.
            let own = (!pending.packet.label.is_empty()).then_some(pending.packet.label);
            if let Some(label) = own.or_else(|| parse_prefix(&pending.packet.prefix)) {
                self.report_opening(pending, allowed, label);
            } else if self.pending.len() < MAX_PENDING_OPENINGS {
                self.pending.push(pending);
            } else {
                self.outbox.send(FlowEvent::Lost { loss: FlowLoss::Openings, events: 1 });
            }
        }
    }

    fn report_opening(&mut self, pending: PendingOpening, allowed: bool, label: FlowLabel) {
        let PendingOpening { packet, interfaces, generation } = pending;
        let decision = self.identities.resolve(label, allowed);
        let opening = FlowOpening {
            key: FlowKey { tuple: packet.connection.flow, decision },
            connection: packet.connection,
            at: packet.at.unwrap_or_else(SystemTime::now),
            interfaces,
            generation,
        };
        self.outbox.send(if allowed { FlowEvent::Opened(opening) } else { FlowEvent::Denied(opening) });
    }

    /// Reports the first packets whose labels are in the keys that have just been read.
    fn report_pending(&mut self, deltas: &[KeyDelta]) {
        if self.pending.is_empty() {
            return;
        }
        let mut labels = self.counts.labels();
        // New keys take precedence over older ones that differ only in the label.
        labels.extend(deltas.iter().map(|delta| ((delta.set.allowed, delta.tuple), delta.label)));
        for pending in std::mem::take(&mut self.pending) {
            let allowed = pending.packet.prefix == ALLOWED_MESSAGE;
            let label = labels.get(&(allowed, pending.packet.connection.flow)).copied();
            self.report_opening(pending, allowed, label.unwrap_or_default());
        }
    }

    fn report_endings(&mut self, data: &[u8]) {
        for frame in frames(data).filter(is_connection) {
            if let Some(ended) = frame.attributes().and_then(parse_connection).filter(|ended| ended.zone == 0)
            {
                self.outbox.send(FlowEvent::Ended(connection_record(ended, None)));
            }
        }
    }

    /// Reports the packets of each key since the last read. Counts that do not fit into the channel are reported later.
    async fn report_counts(&mut self) -> DataplaneResult<()> {
        let deltas = match self.counts.read(&self.client, &self.counters).await {
            Ok(deltas) => deltas,
            Err(error) => {
                tracing::warn!(%error, "cannot read the counters of flows; will retry");
                self.outbox.send(FlowEvent::Lost { loss: FlowLoss::Read, events: 1 });
                return Ok(());
            }
        };
        self.report_pending(&deltas);
        let generation = self.generation.get();
        for delta in deltas {
            let decision = self.identities.resolve(delta.label, delta.set.allowed);
            let key = FlowKey { tuple: delta.tuple, decision };
            if self.outbox.try_send(FlowEvent::Counted { key, count: delta.count, generation }) {
                self.counts.reported(delta);
            }
        }
        for allowed in [true, false] {
            let count = self.counts.others(allowed);
            if count > 0 && self.outbox.try_send(FlowEvent::Other { allowed, count }) {
                self.counts.reported_others(allowed);
            }
        }
        let FlowSourceSettings { key_timeout, max_keys, .. } = self.settings;
        if let Err(error) = self.counts.remove_idle(&self.client, key_timeout, max_keys).await {
            tracing::warn!(%error, "cannot remove idle keys of flows; will retry");
        }
        Ok(())
    }

    /// Reads the names of all interfaces. Those of `wanted` may have vanished.
    async fn read_interfaces(&mut self, wanted: &[u32]) {
        let links = match self.netns.rtnetlink() {
            Ok(connection) => {
                connection.get_links().await.map_err(|error| DataplaneError::kernel("interfaces", &error))
            }
            Err(error) => Err(error),
        };
        match links {
            Ok(links) => {
                let named = links.iter().map(|link| (link.ifindex(), link.name().map(str::to_owned)));
                self.interfaces = named.collect();
            }
            Err(error) => tracing::warn!(%error, "cannot read the names of interfaces for flows"),
        }
        for index in wanted {
            self.interfaces.entry(*index).or_default();
        }
    }

    /// Returns the names of the interfaces of a packet, if they are known.
    fn name_interfaces(&self, packet: &PacketMessage) -> Option<FlowInterfaces> {
        let name = |index: Option<u32>| match index {
            Some(index) => self.interfaces.get(&index)?.clone().map(Some),
            None => Some(None),
        };
        Some(FlowInterfaces { input: name(packet.in_index)?, output: name(packet.out_index)? })
    }
}

/// Returns the label that a prefix contains.
fn parse_prefix(prefix: &str) -> Option<FlowLabel> {
    let (_, words) = prefix.split_once(' ')?;
    FlowLabel::parse(words)
}

fn is_connection(frame: &NetlinkFrame<'_>) -> bool {
    frame.kind >> 8 == CONNTRACK_SUBSYSTEM
}

fn connection_record(
    message: ConnectionMessage,
    decision: Option<tortie_plan::flow::FlowDecision>,
) -> ConnectionRecord {
    let ConnectionMessage { connection, sent, received, started, stopped, outcome, .. } = message;
    ConnectionRecord { connection, decision, sent, received, started, stopped, outcome }
}

/// Makes the socket receive the group's packets in batches, with their connections if the kernel can add them.
async fn bind_group(socket: &NetlinkSocket) -> DataplaneResult<()> {
    const OBJECT: &str = "NFLOG group for flows";
    // The kernel answers EAGAIN after it has loaded the module that adds connections.
    for with_connection in [true, true, false] {
        match exchange(socket, group_request(with_connection), |_| {}).await {
            Ok(None) => return Ok(()),
            // A kernel without CONFIG_NETFILTER_NETLINK_GLUE_CT; it checks the flag before it binds the group.
            Ok(Some(Errno::EOPNOTSUPP | Errno::EAGAIN)) if with_connection => {}
            Ok(Some(errno)) => {
                return Err(DataplaneError::Kernel {
                    object: OBJECT.into(),
                    reason: errno.desc().to_owned(),
                });
            }
            Err(error) => return Err(DataplaneError::kernel(OBJECT, &error)),
        }
    }
    Ok(())
}

fn group_request(with_connection: bool) -> NetlinkRequest<'static> {
    const CONFIGURE: u16 = 1;
    const COMMAND: u16 = 1;
    const MODE: u16 = 2;
    const TIMEOUT: u16 = 4;
    const THRESHOLD: u16 = 5;
    const FLAGS: u16 = 6;
    const BIND: u8 = 1;
    const COPY_PACKET: u8 = 2;
    const WITH_CONNECTION: u16 = 4;
    let mut mode = COPIED_PACKET_BYTES.to_be_bytes().to_vec();
    mode.extend([COPY_PACKET, 0]);
    let mut attributes = NetlinkAttributes::default();
    if with_connection {
        attributes = attributes.bytes(FLAGS, &WITH_CONNECTION.to_be_bytes());
    }
    NetlinkRequest {
        kind: LOG_SUBSYSTEM << 8 | CONFIGURE,
        flags: NLM_F_ACK,
        head: &GROUP_HEADER,
        attributes: attributes
            .bytes(COMMAND, &[BIND])
            .bytes(MODE, &mode)
            .number(TIMEOUT, QUEUE_DELAY_CENTISECONDS)
            .number(THRESHOLD, QUEUED_MESSAGES),
    }
}

/// Dumps the live connections at an interval, and earlier if requested.
pub struct ConnectionReader {
    context: ReaderContext,
    socket: NetlinkSocket,
}

impl ConnectionReader {
    pub fn open(context: ReaderContext) -> DataplaneResult<ConnectionReader> {
        let socket = context.netns.netfilter_socket()?;
        socket.set_rcvbuf(MESSAGE_BUFFER_BYTES).map_err(kernel_error("list of connections"))?;
        Ok(ConnectionReader { context, socket })
    }

    pub async fn run(self) -> DataplaneResult<()> {
        let interval = self.context.settings.connection_interval;
        let mut pause = interval;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.context.dump.notified() => {}
            }
            let started = Instant::now();
            let (records, left_out) = self.dump().await?;
            let budget = started.elapsed() * READ_TIME_SHARE;
            let connections = records.len() as u64;
            for record in records {
                self.send(FlowEvent::Live(record)).await?;
            }
            if left_out > 0 {
                self.send(FlowEvent::Lost { loss: FlowLoss::Read, events: left_out }).await?;
            }
            self.send(FlowEvent::LiveComplete { connections }).await?;
            pause = interval.max(budget);
            // Requests of the meantime are covered by this dump; overruns repeat them.
            tokio::time::sleep(budget.min(interval)).await;
        }
    }

    /// Returns the connections that have a label, and the number of those beyond the limit.
    async fn dump(&self) -> DataplaneResult<(Vec<ConnectionRecord>, u64)> {
        const LIST: u16 = 1;
        const INET: u8 = 2;
        const INET6: u8 = 10;
        let mut records = Vec::new();
        let mut left_out = 0;
        for family in [INET, INET6] {
            let request = NetlinkRequest {
                kind: CONNTRACK_SUBSYSTEM << 8 | LIST,
                flags: NLM_F_DUMP,
                head: &[family, 0, 0, 0],
                attributes: NetlinkAttributes::default(),
            };
            let refused = exchange(&self.socket, request, |frame| {
                let message = frame.attributes().and_then(parse_connection);
                let Some(message) = message.filter(|live| !live.label.is_empty() && live.zone == 0) else {
                    return;
                };
                if records.len() >= MAX_DUMPED_CONNECTIONS {
                    left_out += 1;
                    return;
                }
                let decision = self.context.identities.resolve(message.label, true);
                records.push(connection_record(message, Some(decision)));
            });
            const OBJECT: &str = "list of connections";
            match refused.await {
                Ok(None) => {}
                Ok(Some(errno)) => {
                    return Err(DataplaneError::Kernel {
                        object: OBJECT.into(),
                        reason: errno.desc().to_owned(),
                    });
                }
                Err(error) => return Err(DataplaneError::kernel(OBJECT, &error)),
            }
        }
        Ok((records, left_out))
    }

    async fn send(&self, event: FlowEvent) -> DataplaneResult<()> {
        self.context.events.send(event).await.map_err(|_| DataplaneError::Stopped)
    }
}
