//! Reads the counters of the recorded keys, and the counters of packets without a key.

use super::super::kernel::NftablesClient;
use super::super::message::{self, TABLE_NAME, TableOperation};
use super::super::render::flow::denied_chains;
use super::super::render::names;
use super::super::rule::NftFamily;
use super::super::table::{NftElement, SetType, parse_address};
use super::label::{FlowLabel, LABEL_BYTES};
use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::netlink::{NLM_F_DUMP, NetlinkAttributes, NetlinkRequest, answers, attributes, exchange};
use nix::errno::Errno;
use nlink::netlink::NetlinkSocket;
use nlink::netlink::nftables as wire;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use tortie_plan::flow::FlowTuple;

/// Number of reads in which a key may be missing before it is forgotten.
const MISSING_READS: u64 = 3;

/// A set of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeySet {
    pub allowed: bool,
    pub family: NftFamily,
}

impl KeySet {
    pub const ALL: [KeySet; 4] = [
        KeySet { allowed: true, family: NftFamily::V4 },
        KeySet { allowed: true, family: NftFamily::V6 },
        KeySet { allowed: false, family: NftFamily::V4 },
        KeySet { allowed: false, family: NftFamily::V6 },
    ];

    fn name(self) -> String {
        names::flows(self.allowed, self.family)
    }
}

/// The count of one key.
struct KeyCount {
    /// Packets that events have reported, and packets that the kernel counted.
    reported: u64,
    seen: u64,
    changed: Instant,
    /// The read in which the kernel last had the key.
    read: u64,
}

/// The new packets of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDelta {
    pub set: KeySet,
    pub key: Box<[u8]>,
    pub tuple: FlowTuple,
    pub label: FlowLabel,
    pub count: u64,
}

/// The counters of all keys as last read.
#[derive(Default)]
pub struct FlowCounts {
    keys: HashMap<(KeySet, Box<[u8]>), KeyCount>,
    others: HashMap<bool, OtherCount>,
    reads: u64,
}

#[derive(Default)]
struct OtherCount {
    reported: u64,
    seen: u64,
}

impl FlowCounts {
    /// Reads all counters and takes them as already reported.
    pub async fn start(client: &NftablesClient, socket: &NetlinkSocket) -> DataplaneResult<FlowCounts> {
        let mut counts = FlowCounts::default();
        let _ = counts.read(client, socket).await?;
        counts.keys.values_mut().for_each(|count| count.reported = count.seen);
        counts.others.values_mut().for_each(|count| count.reported = count.seen);
        Ok(counts)
    }

    /// Reads all counters. Returns the keys with packets that have not been reported.
    pub async fn read(
        &mut self,
        client: &NftablesClient,
        socket: &NetlinkSocket,
    ) -> DataplaneResult<Vec<KeyDelta>> {
        let now = Instant::now();
        self.begin_read();
        let reads = self.reads;
        let mut deltas = Vec::new();
        for set in KeySet::ALL {
            for (key, packets) in read_keys(client, socket, set).await? {
                deltas.extend(self.take_count(set, key, packets, now));
            }
        }
        // The counter of a removed key starts from zero if the key returns. While the kernel resizes a set, a read may
        // miss keys that exist.
        self.keys.retain(|_, count| count.read + MISSING_READS >= reads);
        for allowed in [true, false] {
            let mut packets = 0;
            for chain in if allowed { vec![names::FLOWS_ALLOWED.to_owned()] } else { denied_chains() } {
                packets += read_chain_count(socket, &chain).await?;
            }
            let other = self.others.entry(allowed).or_default();
            if packets < other.seen {
                other.reported = 0;
            }
            other.seen = packets;
        }
        Ok(deltas)
    }

    fn begin_read(&mut self) {
        self.reads += 1;
    }

    /// Takes the counter of a key as the kernel lists it. While the kernel resizes a set, it may list a key twice; only the
    /// first time counts. Returns the packets that have not been reported.
    fn take_count(&mut self, set: KeySet, key: Box<[u8]>, packets: u64, now: Instant) -> Option<KeyDelta> {
        let (tuple, label) = parse_key(&key, set.family)?;
        let unknown = KeyCount { reported: 0, seen: 0, changed: now, read: 0 };
        let count = self.keys.entry((set, key.clone())).or_insert(unknown);
        if count.read == self.reads {
            return None;
        }
        count.read = self.reads;
        if packets < count.seen {
            // The table has been recreated, with counters that start from zero.
            count.reported = 0;
        }
        if packets != count.seen {
            count.seen = packets;
            count.changed = now;
        }
        let new = count.seen.saturating_sub(count.reported);
        (new > 0).then_some(KeyDelta { set, key, tuple, label, count: new })
    }

    /// Returns the label of each verdict and tuple. If a tuple has several, because policy has changed, it is one of them.
    pub fn labels(&self) -> HashMap<(bool, FlowTuple), FlowLabel> {
        let keys = self.keys.keys().filter_map(|(set, key)| {
            let (tuple, label) = parse_key(key, set.family)?;
            Some(((set.allowed, tuple), label))
        });
        keys.collect()
    }

    /// Records that the packets of a key have been reported.
    pub fn reported(&mut self, delta: KeyDelta) {
        if let Some(count) = self.keys.get_mut(&(delta.set, delta.key)) {
            count.reported += delta.count;
        }
    }

    /// Returns the packets without a key that have not been reported.
    pub fn others(&self, allowed: bool) -> u64 {
        self.others.get(&allowed).map(|other| other.seen - other.reported).unwrap_or_default()
    }

    pub fn reported_others(&mut self, allowed: bool) {
        let other = self.others.entry(allowed).or_default();
        other.reported = other.seen;
    }

    /// Removes keys from the kernel that had no packet for a while. A key without unreported packets loses a packet
    /// only if it arrives between the last read and this request.
    pub async fn remove_idle(
        &mut self,
        client: &NftablesClient,
        timeout: Duration,
        size: u32,
    ) -> DataplaneResult<()> {
        let now = Instant::now();
        for set in KeySet::ALL {
            let idle = self.keys.iter().filter(|((of, _), count)| {
                *of == set && count.reported == count.seen && now.duration_since(count.changed) >= timeout
            });
            let elements: Vec<NftElement> = idle.map(|((_, key), _)| NftElement::key(key.to_vec())).collect();
            if elements.is_empty() {
                continue;
            }
            let name = set.name();
            let kind = SetType::Flows { family: set.family, size };
            let operation =
                TableOperation::DeleteElements { set: &name, kind, elements: elements.iter().collect() };
            client.write(&[operation]).await?;
            for element in elements {
                self.keys.remove(&(set, element.key));
            }
        }
        Ok(())
    }
}

/// Returns the keys of a set with their packets; none if the set does not exist.
async fn read_keys(
    client: &NftablesClient,
    socket: &NetlinkSocket,
    set: KeySet,
) -> DataplaneResult<Vec<(Box<[u8]>, u64)>> {
    let name = set.name();
    let sequence = socket.next_seq();
    let request = message::list_elements(client.family, &name, sequence);
    let mut keys = Vec::new();
    let refused = answers(socket, &request, sequence, |frame| {
        let list = frame
            .attributes()
            .and_then(|attributes| attributes::find(attributes, wire::NFTA_SET_ELEM_LIST_ELEMENTS));
        let elements = attributes::read(list.unwrap_or_default());
        keys.extend(elements.filter_map(|(_, element)| parse_element(element)));
    });
    match refused.await {
        Ok(None | Some(Errno::ENOENT)) => Ok(keys),
        Ok(Some(errno)) => Err(DataplaneError::Kernel {
            object: KernelObject::Set { name },
            reason: errno.desc().to_owned(),
        }),
        Err(error) => Err(DataplaneError::kernel(KernelObject::Set { name }, &error)),
    }
}

fn parse_element(element: &[u8]) -> Option<(Box<[u8]>, u64)> {
    let key = attributes::find(attributes::find(element, wire::NFTA_SET_ELEM_KEY)?, wire::NFTA_DATA_VALUE)?;
    let expression = attributes::find(element, wire::NFTA_SET_ELEM_EXPR)?;
    Some((key.into(), counter_packets(expression)?))
}

/// Returns the packets of an expression that is a counter.
fn counter_packets(expression: &[u8]) -> Option<u64> {
    let name = attributes::find(expression, wire::NFTA_EXPR_NAME)?;
    if name.strip_suffix(b"\0").unwrap_or(name) != b"counter" {
        return None;
    }
    let data = attributes::find(expression, wire::NFTA_EXPR_DATA)?;
    let packets = attributes::find(data, wire::NFTA_COUNTER_PACKETS)?;
    packets.try_into().ok().map(u64::from_be_bytes)
}

/// Splits a key into its parts.
fn parse_key(key: &[u8], family: NftFamily) -> Option<(FlowTuple, FlowLabel)> {
    let length = match family {
        NftFamily::V4 => 4,
        NftFamily::V6 => 16,
    };
    let (source, rest) = key.split_at_checked(length)?;
    let (destination, rest) = rest.split_at_checked(length)?;
    let (protocol, rest) = rest.split_at_checked(4)?;
    let (port, label) = rest.split_at_checked(4)?;
    let tuple = FlowTuple {
        source: parse_address(source)?,
        destination: parse_address(destination)?,
        protocol: protocol[0],
        destination_port: u16::from_be_bytes([port[0], port[1]]),
    };
    let label: [u8; LABEL_BYTES] = label.try_into().ok()?;
    Some((tuple, FlowLabel(label)))
}

/// Returns the sum of the counters in a chain; 0 if it does not exist.
async fn read_chain_count(socket: &NetlinkSocket, chain: &str) -> DataplaneResult<u64> {
    const INET: u8 = 1;
    let request = NetlinkRequest {
        kind: wire::nft_msg_type(wire::NFT_MSG_GETRULE),
        flags: NLM_F_DUMP,
        head: &[INET, 0, 0, 0],
        attributes: NetlinkAttributes::default()
            .text(wire::NFTA_RULE_TABLE, TABLE_NAME)
            .text(wire::NFTA_RULE_CHAIN, chain),
    };
    let mut sum = 0;
    let refused = exchange(socket, request, |frame| {
        let rule = frame.attributes().unwrap_or_default();
        // Filter again: kernels ignore the filter if the chain does not exist.
        let of = attributes::find(rule, wire::NFTA_RULE_CHAIN).unwrap_or_default();
        if of.strip_suffix(b"\0").unwrap_or(of) != chain.as_bytes() {
            return;
        }
        let expressions = attributes::find(rule, wire::NFTA_RULE_EXPRESSIONS).unwrap_or_default();
        let counters =
            attributes::read(expressions).filter_map(|(_, expression)| counter_packets(expression));
        sum += counters.sum::<u64>();
    });
    let object = KernelObject::Chain { name: chain.to_owned() };
    match refused.await {
        Ok(None | Some(Errno::ENOENT)) => Ok(sum),
        Ok(Some(errno)) => Err(DataplaneError::Kernel { object, reason: errno.desc().to_owned() }),
        Err(error) => Err(DataplaneError::kernel(object, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::table::join;
    use super::*;

    #[test]
    fn keys_that_are_listed_twice_count_once() {
        let label = FlowLabel::of_words([0, 2, 3, 0]);
        let key: Box<[u8]> =
            join(&[&[10, 0, 0, 1], &[10, 0, 0, 2], &[6], &443u16.to_be_bytes(), &label.0]).into();
        let (set, now) = (KeySet::ALL[0], Instant::now());
        let mut counts = FlowCounts::default();
        let mut list = |packets: [u64; 2]| {
            counts.begin_read();
            let deltas: Vec<KeyDelta> = packets
                .into_iter()
                .filter_map(|packets| counts.take_count(set, key.clone(), packets, now))
                .collect();
            let new: Vec<u64> = deltas.iter().map(|delta| delta.count).collect();
            deltas.into_iter().for_each(|delta| counts.reported(delta));
            new
        };
        assert_eq!(list([5, 6]), [5]);
        assert_eq!(list([6, 6]), [1], "the packet between the two is not lost");
        assert!(list([6, 6]).is_empty());
        assert_eq!(list([2, 2]), [2], "the set was created again");
    }

    #[test]
    fn keys_split_into_their_parts() {
        let label = FlowLabel::of_words([1, 2, 3, 4]);
        let key = join(&[&[10, 0, 0, 1], &[10, 0, 0, 2], &[6], &443u16.to_be_bytes(), &label.0]);
        assert_eq!(key.len(), 32);
        let (tuple, found) = parse_key(&key, NftFamily::V4).unwrap();
        assert_eq!((tuple.source, tuple.destination), ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
        assert_eq!((tuple.protocol, tuple.destination_port), (6, 443));
        assert_eq!(found, label);
        assert_eq!(parse_key(&key, NftFamily::V6), None);
        assert_eq!(parse_key(&key[..31], NftFamily::V4), None);
    }
}
