//! Access to our table in the kernel: transactions, reads and events.

use super::blame;
use super::diff::{ChainFingerprint, KernelTable};
use super::message::{self, TABLE_NAME, TableOperation, USERDATA_FINGERPRINT};
use super::ranges;
use super::rule::NftFamily as IpFamily;
use super::table::{ChainHook, ChainKind, ElementData, HookPoint, NftElement, SetType, TableFamily};
use crate::error::{DataplaneError, DataplaneResult, kernel_error};
use crate::failure::{FailureReason, KernelObject};
use crate::faults::KernelFaults;
use crate::netlink::{NetlinkFrame, answers, attributes, frames};
use crate::netns::Netns;
use crate::policy::PolicyEvent;
use crate::socket_filter::ignore_ports;
use futures::FutureExt;
use nix::sys::socket::{setsockopt, sockopt};
use nlink::Connection;
use nlink::netlink::nftables::{self as wire, ChainInfo, SetInfo};
use nlink::netlink::{NetlinkSocket, Nftables};
use std::collections::{BTreeMap, BTreeSet};

/// A transaction is sent as one message; the kernel's default limit is 200 KB.
const SEND_BUFFER_BYTES: usize = 256 << 20;
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// Receive buffer for the events that our own bulk changes cause while the engine is busy.
const EVENT_BUFFER_BYTES: usize = 32 << 20;
/// Maximum number of attempts to read the table without a concurrent change.
const MAX_READ_ATTEMPTS: usize = 10;
/// Maximum number of rejected operations of a transaction in the error message.
const MAX_SHOWN_FAILURES: usize = 3;
const NFTABLES_SUBSYSTEM: u8 = 10;
/// Maximum number of events processed at once.
const MAX_EVENTS_PER_READ: usize = 4096;

pub struct NftablesClient {
    pub family: TableFamily,
    connection: Connection<Nftables>,
    /// Socket for reading elements.
    reader: NetlinkSocket,
    faults: KernelFaults,
}

/// The reason of a rejection, and the errno if the kernel returned one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RejectionReason {
    pub errno: Option<i32>,
    pub text: String,
}

impl RejectionReason {
    /// Returns whether the errno describes the caller or the machine, whichever object it was reported for.
    fn is_general(&self) -> bool {
        use nix::errno::Errno::{EACCES, EAGAIN, EMFILE, ENFILE, ENOBUFS, ENOMEM, EPERM};
        let general = [EPERM, EACCES, ENOMEM, ENOBUFS, EMFILE, ENFILE, EAGAIN];
        self.errno.is_some_and(|errno| general.iter().any(|general| *general as i32 == errno))
    }
}

impl From<RejectionReason> for FailureReason {
    fn from(reason: RejectionReason) -> FailureReason {
        FailureReason::new(reason.text, reason.errno)
    }
}

impl From<DataplaneError> for RejectionReason {
    fn from(error: DataplaneError) -> RejectionReason {
        RejectionReason { errno: None, text: error.to_string() }
    }
}

/// The reason why a transaction was rejected.
#[derive(Clone, Debug)]
pub struct TransactionRejection {
    /// Positions of the rejected operations with the reason; empty if the error is not about a single operation.
    pub operations: Vec<(usize, RejectionReason)>,
    pub reason: RejectionReason,
    /// Whether the error is unrelated to the object that it was reported for: permission, memory, file descriptors.
    general: bool,
}

impl TransactionRejection {
    /// Returns whether the rejection concerns the whole transaction and not a single object.
    pub fn is_of_the_whole(&self) -> bool {
        self.general || self.operations.is_empty()
    }
}

impl NftablesClient {
    pub fn open(netns: &Netns, family: TableFamily) -> DataplaneResult<NftablesClient> {
        let connection = netns.nftables()?;
        let socket = connection.socket();
        setsockopt(socket, sockopt::SndBufForce, &SEND_BUFFER_BYTES).map_err(|error| {
            DataplaneError::Kernel { object: "netlink socket".into(), reason: error.to_string() }
        })?;
        socket.set_rcvbuf(RECEIVE_BUFFER_BYTES).map_err(kernel_error("netlink socket"))?;
        let reader = netns.netfilter_socket()?;
        reader.set_rcvbuf(RECEIVE_BUFFER_BYTES).map_err(kernel_error("netlink socket"))?;
        Ok(NftablesClient { family, connection, reader, faults: netns.faults().clone() })
    }

    /// Returns the netlink port, which identifies our own changes in events.
    pub fn port(&self) -> u32 {
        self.connection.socket().pid()
    }

    /// Commits a transaction: all operations take effect or none.
    pub async fn commit(&self, operations: &[TableOperation<'_>]) -> Result<(), TransactionRejection> {
        if !self.faults.is_empty()
            && let Some(refusal) = self.injected(self.family, operations)
        {
            return Err(refusal);
        }
        let messages = message::encode_operations(operations, self.family);
        let positions: Vec<usize> = messages.iter().map(|(position, _)| *position).collect();
        let transaction = messages
            .into_iter()
            .fold(self.connection.transaction(), |transaction, (_, message)| transaction.raw(message));
        let Err(error) = transaction.commit(&self.connection).await else { return Ok(()) };
        let nlink::netlink::ErrorDetail::NftBatch { failures, .. } = error.detail() else {
            let reason = RejectionReason { errno: error.errno(), text: error.to_string() };
            return Err(TransactionRejection { operations: Vec::new(), reason, general: true });
        };
        let mut refused = Vec::new();
        let mut general = false;
        for failure in failures {
            let reason = RejectionReason { errno: Some(failure.errno), text: failure.to_string() };
            general |= reason.is_general();
            let position = failure.index.and_then(|index| positions.get(index));
            refused.extend(position.map(|position| (*position, reason)));
        }
        let shown: Vec<String> = failures.iter().take(MAX_SHOWN_FAILURES).map(ToString::to_string).collect();
        let mut text = shown.join("; ");
        if failures.len() > MAX_SHOWN_FAILURES {
            text = format!("{text}; and {} more", failures.len() - MAX_SHOWN_FAILURES);
        }
        let reason = RejectionReason { errno: failures.first().map(|failure| failure.errno), text };
        Err(TransactionRejection { operations: refused, reason, general })
    }

    /// Commits a transaction of a caller that does not need to know which operation was rejected.
    pub async fn write(&self, operations: &[TableOperation<'_>]) -> DataplaneResult<()> {
        let committed = self.commit(operations).await;
        committed.map_err(|TransactionRejection { reason, .. }| DataplaneError::Kernel {
            object: self.family.object(),
            reason: reason.text,
        })
    }

    /// Commits the changes of several tables in one transaction. Returns whether it succeeded; callers find the
    /// rejected operation with a [`NftablesClient::commit`] for each table.
    pub async fn commit_together(&self, tables: &[(TableFamily, Vec<TableOperation<'_>>)]) -> bool {
        if !self.faults.is_empty()
            && tables.iter().any(|(family, operations)| self.injected(*family, operations).is_some())
        {
            return false;
        }
        let messages =
            tables.iter().flat_map(|(family, operations)| message::encode_operations(operations, *family));
        let transaction = messages
            .fold(self.connection.transaction(), |transaction, (_, message)| transaction.raw(message));
        transaction.commit(&self.connection).await.is_ok()
    }

    /// Returns the rejection that injected faults cause for these operations.
    fn injected(
        &self,
        family: TableFamily,
        operations: &[TableOperation<'_>],
    ) -> Option<TransactionRejection> {
        let mut refused = Vec::new();
        for position in 0..operations.len() {
            for object in blame::list_objects(operations, position, family) {
                if let Some(errno) = self.faults.errno(|| object.clone()) {
                    let text = format!("{object}: {}", nlink::Error::from_errno(-errno));
                    refused.push((position, RejectionReason { errno: Some(errno), text }));
                }
            }
        }
        let (_, last) = refused.last()?;
        Some(TransactionRejection {
            reason: last.clone(),
            general: refused.iter().any(|(_, reason)| reason.is_general()),
            operations: refused,
        })
    }

    /// Returns the names of the base chains of one of our tables; empty if the table does not exist.
    pub async fn base_chains(&self, family: TableFamily) -> DataplaneResult<Vec<String>> {
        let chains = self.chains(family).await?;
        Ok(chains.into_iter().filter(|chain| chain.hook.is_some()).map(|chain| chain.name).collect())
    }

    pub async fn has_chain(&self, name: &str) -> DataplaneResult<bool> {
        Ok(self.chains(self.family).await?.iter().any(|chain| chain.name == name))
    }

    async fn chains(&self, family: TableFamily) -> DataplaneResult<Vec<ChainInfo>> {
        let tables = self.connection.list_tables_in(family.wire()).await;
        if !tables.map_err(|error| family.error(&error))?.iter().any(|table| table.name == TABLE_NAME) {
            return Ok(Vec::new());
        }
        let chains = self.connection.list_chains_in(TABLE_NAME, family.wire()).await;
        chains.map_err(|error| family.error(&error))
    }

    /// Reads the table if it exists.
    pub async fn read(&self) -> DataplaneResult<(KernelTable, BTreeMap<String, BTreeSet<NftElement>>)> {
        for _ in 0..MAX_READ_ATTEMPTS {
            let before = self.generation().await?;
            let read = self.read_once().await;
            if self.generation().await? == before {
                return read;
            }
        }
        let reason = "the table changes faster than it can be read".into();
        Err(DataplaneError::Kernel { object: self.family.object(), reason })
    }

    async fn generation(&self) -> DataplaneResult<u32> {
        self.connection.generation().await.map_err(|error| self.family.error(&error))
    }

    async fn read_once(&self) -> DataplaneResult<(KernelTable, BTreeMap<String, BTreeSet<NftElement>>)> {
        let seen = self.read_definitions().await.map_err(|error| self.family.error(&error))?;
        let mut elements = BTreeMap::new();
        for (name, kind) in &seen.sets {
            if let Some(kind) = kind
                && !kind.is_dynamic()
            {
                elements.insert(name.clone(), self.elements(name, *kind).await?);
            }
        }
        Ok((seen, elements))
    }

    async fn read_definitions(&self) -> nlink::Result<KernelTable> {
        let family = self.family.wire();
        let mut seen = KernelTable::default();
        let tables = self.connection.list_tables_in(family).await?;
        let Some(table) = tables.iter().find(|table| table.name == TABLE_NAME) else { return Ok(seen) };
        seen.there = true;
        seen.odd = table.flags != 0;
        for chain in self.connection.list_chains_in(TABLE_NAME, family).await? {
            let hook = hook(&chain, self.family);
            seen.chains.insert(chain.name, ChainFingerprint { hook, rules: Vec::new() });
        }
        for rule in self.connection.list_rules(TABLE_NAME, family).await? {
            let fingerprint = fingerprint(rule.userdata_raw.as_deref().unwrap_or_default());
            if let Some(chain) = seen.chains.get_mut(&rule.chain) {
                chain.rules.push(fingerprint);
            }
        }
        for set in self.connection.list_sets_in(TABLE_NAME, family).await? {
            if set.flags.bits() & wire::NFT_SET_ANONYMOUS == 0 {
                let kind = set_type(&set);
                seen.sets.insert(set.name, kind);
            }
        }
        Ok(seen)
    }

    async fn elements(&self, set: &str, kind: SetType) -> DataplaneResult<BTreeSet<NftElement>> {
        let object = KernelObject::Set { name: set.to_owned() };
        let sequence = self.reader.next_seq();
        let request = message::list_elements(self.family, set, sequence);
        let mut raw = Vec::new();
        let refused = answers(&self.reader, &request, sequence, |frame| {
            raw.extend(frame.attributes().map(raw_elements).unwrap_or_default());
        });
        match refused.await {
            Ok(None) => Ok(assemble(raw, kind)),
            Ok(Some(errno)) => Err(DataplaneError::Kernel { object, reason: errno.desc().to_owned() }),
            Err(error) => Err(DataplaneError::kernel(object, &error)),
        }
    }
}

/// An element as the kernel returns it.
struct RawElement {
    key: Vec<u8>,
    data: ElementData,
    is_end: bool,
}

fn raw_elements(attributes: &[u8]) -> Vec<RawElement> {
    let list = attributes::find(attributes, wire::NFTA_SET_ELEM_LIST_ELEMENTS).unwrap_or_default();
    attributes::read(list).filter_map(|(_, element)| RawElement::parse(element)).collect()
}

impl RawElement {
    fn parse(element: &[u8]) -> Option<RawElement> {
        let mut data = ElementData::None;
        if let Some(last) = find_value(element, wire::NFTA_SET_ELEM_KEY_END) {
            data = ElementData::Last(last.into());
        } else if let Some((code, chain)) = find_verdict(element) {
            let chain: Box<str> = String::from_utf8_lossy(chain).trim_end_matches('\0').into();
            data = if code == wire::NFT_JUMP { ElementData::Jump(chain) } else { ElementData::Goto(chain) };
        } else if let Some(value) = find_value(element, wire::NFTA_SET_ELEM_DATA) {
            data = ElementData::Value(value.into());
        }
        let flags =
            attributes::find(element, wire::NFTA_SET_ELEM_FLAGS).and_then(|flags| flags.try_into().ok());
        let flags = flags.map(u32::from_be_bytes).unwrap_or_default();
        Some(RawElement {
            key: find_value(element, wire::NFTA_SET_ELEM_KEY)?.to_vec(),
            data,
            is_end: flags & wire::NFT_SET_ELEM_INTERVAL_END != 0,
        })
    }
}

/// Returns the bytes of an attribute that contains data.
fn find_value(element: &[u8], kind: u16) -> Option<&[u8]> {
    attributes::find(attributes::find(element, kind)?, wire::NFTA_DATA_VALUE)
}

/// Returns the verdict of an element of a map: its code, and the chain that it leads to.
fn find_verdict(element: &[u8]) -> Option<(i32, &[u8])> {
    let data = attributes::find(element, wire::NFTA_SET_ELEM_DATA)?;
    let verdict = attributes::find(data, wire::NFTA_DATA_VERDICT)?;
    let code = attributes::find(verdict, wire::NFTA_VERDICT_CODE)?.try_into().ok()?;
    Some((i32::from_be_bytes(code), attributes::find(verdict, wire::NFTA_VERDICT_CHAIN)?))
}

/// Joins the two ends of ranges.
fn assemble(mut raw: Vec<RawElement>, kind: SetType) -> BTreeSet<NftElement> {
    if !matches!(kind, SetType::Nets(_)) {
        let whole = raw.into_iter();
        return whole.map(|RawElement { key, data, .. }| NftElement { key: key.into(), data }).collect();
    }
    raw.sort_by(|a, b| a.key.cmp(&b.key).then(b.is_end.cmp(&a.is_end)));
    let mut elements = BTreeSet::new();
    let mut open: Option<Vec<u8>> = None;
    for RawElement { key, is_end, .. } in raw {
        match (open.take(), is_end) {
            (Some(first), true) => {
                elements.insert(NftElement::range(first, ranges::before(&key)));
            }
            (_, false) => open = Some(key),
            (None, true) => {}
        }
    }
    if let Some(first) = open {
        let last = vec![u8::MAX; first.len()];
        elements.insert(NftElement::range(first, last));
    }
    elements
}

pub(super) fn fingerprint(userdata: &[u8]) -> u64 {
    let mut rest = userdata;
    while let [kind, length, tail @ ..] = rest {
        let Some((value, behind)) = tail.split_at_checked(usize::from(*length)) else { break };
        if *kind == USERDATA_FINGERPRINT
            && let Ok(value) = value.try_into()
        {
            return u64::from_be_bytes(value);
        }
        rest = behind;
    }
    0
}

fn hook(chain: &ChainInfo, family: TableFamily) -> Option<ChainHook> {
    const ACCEPT: u32 = 1;
    let number = chain.hook?;
    let kinds = [ChainKind::Filter, ChainKind::Nat].into_iter();
    let kind =
        kinds.filter(|_| chain.policy == Some(ACCEPT)).find(|kind| chain.chain_type == Some(kind.wire()));
    let point = family.points().iter().copied().find(|point| point.number() == number);
    // Represents a hook that we did not create by a priority that we never use.
    let unlike = ChainHook::filter(HookPoint::Prerouting, i32::MIN);
    let ours = point.zip(chain.priority).zip(kind);
    Some(ours.map_or(unlike, |((point, priority), kind)| ChainHook { point, priority, kind }))
}

fn set_type(set: &SetInfo) -> Option<SetType> {
    let mut all = vec![SetType::Interfaces, SetType::Chains, SetType::PortChains];
    for family in IpFamily::BOTH {
        all.extend([
            SetType::Addresses(family),
            SetType::Nets(family),
            SetType::Ports(family),
            SetType::Sources(family),
            SetType::SourceNets(family),
            SetType::Translations(family),
            SetType::PairTranslations(family),
        ]);
        all.extend(set.size.map(|size| SetType::Flows { family, size }));
    }
    all.into_iter().find(|kind| {
        let shape = message::set_declaration(*kind);
        let map = match kind {
            _ if kind.leads_to_chains() => Some(wire::NFT_DATA_VERDICT),
            _ => kind.value().map(|value| value.kind),
        };
        (shape.kind, shape.length, shape.flags) == (set.key_type, set.key_len, set.flags.bits())
            && map == set.data_type
            && set.timeout.is_none()
    })
}

/// Notifications about changes of tables by other programs.
pub struct TableEventStream {
    socket: NetlinkSocket,
}

impl TableEventStream {
    /// Subscribes to notifications. Changes made through the ports in `own` are filtered out.
    pub fn open(netns: &Netns, own: &[u32]) -> DataplaneResult<TableEventStream> {
        let socket = netns.netfilter_socket()?;
        let ready = socket
            .set_rcvbuf(EVENT_BUFFER_BYTES)
            .and_then(|()| socket.attach_filter(&ignore_ports(own)))
            .and_then(|()| socket.add_membership(wire::NFNLGRP_NFTABLES));
        ready.map_err(|error| DataplaneError::kernel("events of tables", &error))?;
        Ok(TableEventStream { socket })
    }

    /// Waits until another program has changed a table, or may have.
    pub async fn next(&mut self) -> DataplaneResult<PolicyEvent> {
        let mut event = PolicyEvent::default();
        while event == PolicyEvent::default() {
            event = self.read().await?;
        }
        // A change of a table usually comes with many events.
        for _ in 0..MAX_EVENTS_PER_READ {
            match self.read().now_or_never() {
                Some(more) => event |= more?,
                None => break,
            }
        }
        Ok(event)
    }

    async fn read(&mut self) -> DataplaneResult<PolicyEvent> {
        match self.socket.recv_msg().await {
            Ok(data) => {
                let mut event = PolicyEvent::default();
                frames(&data).for_each(|frame| event |= frame_event(&frame));
                Ok(event)
            }
            // Events were lost because the receive buffer was full.
            Err(error) if error.is_no_buffer_space() => Ok(PolicyEvent::EVERYTHING),
            Err(error) => Err(DataplaneError::kernel("events of tables", &error)),
        }
    }
}

/// Returns which kind of table a message is about. Of foreign tables, only changes of chains and rules count.
fn frame_event(frame: &NetlinkFrame<'_>) -> PolicyEvent {
    // The first attribute of every message except those about generations is the table's name.
    let [kind, subsystem] = frame.kind.to_le_bytes();
    let table = frame.attributes().and_then(|attributes| attributes::find(attributes, wire::NFTA_TABLE_NAME));
    let (Some(table), Some(family), NFTABLES_SUBSYSTEM) = (table, frame.body.first(), subsystem) else {
        return PolicyEvent::default();
    };
    let is_our_family = [TableFamily::Inet, TableFamily::Arp].iter().any(|ours| ours.wire() as u8 == *family);
    let own = is_our_family && table.strip_suffix(b"\0").unwrap_or(table) == TABLE_NAME.as_bytes();
    PolicyEvent { own, foreign: !own && kind <= wire::NFT_MSG_DELRULE }
}
