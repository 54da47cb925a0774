//! Encodes rules as nf_tables expressions: they load fields of a packet into registers, compare registers, and act on
//! the packet.

use super::rule::{NatEnd, NftAction, NftFamily, NftField, NftMatch, NftRule, NftTest};
use super::table::{address_bytes, slots};
use crate::netlink::NetlinkAttributes;
use nlink::netlink::nftables as wire;
use std::net::{IpAddr, Ipv4Addr};
use tortie_plan::{LogLimit, PortInterval};

/// Register for single values.
const REGISTER: u32 = 1;
/// First of the four-byte registers, which hold keys of several fields.
const FIRST_SLOT: u32 = 8;
/// Registers of the first and last port of a range. `REGISTER` overlaps the four-byte registers 8 to 11, so these are
/// the first ones that do not overlap an address of either family.
const FIRST_PORT: u32 = 12;
const LAST_PORT: u32 = 13;
/// Conntrack key of labels.
const LABELS: u32 = 13;
/// Register that holds the verdict of the rule.
const VERDICT: u32 = 0;
/// Syslog level "notice".
const LOG_NOTICE: u32 = 5;

/// Attribute types of the ports in the two kinds of source translation.
#[derive(Clone, Copy)]
struct PortAttributes {
    flags: u16,
    first: u16,
    last: u16,
}

const MASQUERADE: PortAttributes = PortAttributes {
    flags: wire::NFTA_MASQ_FLAGS,
    first: wire::NFTA_MASQ_REG_PROTO_MIN,
    last: wire::NFTA_MASQ_REG_PROTO_MAX,
};
const NAT: PortAttributes = PortAttributes {
    flags: wire::NFTA_NAT_FLAGS,
    first: wire::NFTA_NAT_REG_PROTO_MIN,
    last: wire::NFTA_NAT_REG_PROTO_MAX,
};

/// An anonymous set that only one rule uses and that is deleted with it.
pub(super) struct AnonymousSet {
    pub id: u32,
    pub length: usize,
    pub field: NftField,
    pub ranges: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Encodes the expressions of a rule, and returns the anonymous sets that have to be created before it. `next_id` is
/// the next free ID for such a set.
pub(super) fn encode_expressions<'r>(
    rule: &'r NftRule,
    next_id: &'r mut u32,
) -> (NetlinkAttributes, Vec<AnonymousSet>) {
    let mut writer = ExpressionWriter {
        list: NetlinkAttributes::default(),
        anonymous_sets: Vec::new(),
        loaded: &[],
        next_id,
    };
    rule.matches.iter().for_each(|condition| writer.push_condition(condition));
    rule.actions.iter().for_each(|action| writer.push_action(action));
    (writer.list, writer.anonymous_sets)
}

struct ExpressionWriter<'n> {
    list: NetlinkAttributes,
    anonymous_sets: Vec<AnonymousSet>,
    /// The fields that are still in the registers of the last lookup. Consecutive lookups of the same fields load them
    /// only once: the kernel accepts at most 128 expressions in a rule, and 4 KB in total.
    loaded: &'n [NftField],
    next_id: &'n mut u32,
}

impl<'n> ExpressionWriter<'n> {
    fn push(&mut self, name: &str, data: NetlinkAttributes) {
        let expression =
            NetlinkAttributes::default().text(wire::NFTA_EXPR_NAME, name).nest(wire::NFTA_EXPR_DATA, data);
        self.list = std::mem::take(&mut self.list).nest(wire::NFTA_LIST_ELEM, expression);
    }

    fn push_condition(&mut self, condition: &'n NftMatch) {
        match condition {
            NftMatch::Field { field, negated, test } => {
                self.loaded = &[];
                self.load(*field, REGISTER);
                self.push_test(*field, *negated, test);
            }
            NftMatch::Lookup { fields, negated, set } => {
                if self.loaded != fields.as_slice() {
                    self.load_key(fields);
                }
                self.loaded = fields;
                self.lookup(set, None, key_register(fields), *negated);
            }
        }
    }

    fn push_test(&mut self, field: NftField, negated: bool, test: &NftTest) {
        match test {
            NftTest::Is(value) => self.compare(negated, value),
            NftTest::Begins(prefix) => self.compare(negated, prefix),
            NftTest::Any(bits) => {
                // A field of one byte uses the lowest byte of the mask.
                let mask = match field.length() {
                    1 => bits.to_le_bytes()[..1].to_vec(),
                    _ => bits.to_ne_bytes().to_vec(),
                };
                let zero = vec![0; mask.len()];
                self.bits(&mask, &zero);
                self.compare(!negated, &zero);
            }
            NftTest::All(bits) => {
                let mask = bits.to_ne_bytes();
                self.bits(&mask, &[0; 4]);
                self.compare(negated, &mask);
            }
            NftTest::Within(ranges) => match ranges.as_slice() {
                [(first, last)] if first == last => self.compare(negated, first),
                [(first, last)] => self.range(negated, first, last),
                _ => {
                    let id = *self.next_id;
                    *self.next_id += 1;
                    self.lookup("__set%d", Some(id), REGISTER, negated);
                    self.anonymous_sets.push(AnonymousSet {
                        id,
                        length: field.length(),
                        field,
                        ranges: ranges.clone(),
                    });
                }
            },
        }
    }

    /// Loads the fields of a set's key into consecutive registers.
    fn load_key(&mut self, fields: &[NftField]) {
        let mut register = key_register(fields);
        for field in fields {
            match field {
                NftField::Label => self.load_label(register),
                _ => self.load(*field, register),
            }
            register += u32::try_from(slots(*field)).unwrap_or_default();
        }
    }

    /// Loads the last three words of the label and zero in place of the first one. `nft` before 1.1 crashes when it
    /// lists a key that contains a label. It tracks only the first register of a value, so it takes the constants that
    /// are loaded before and after the label for the content of these registers.
    fn load_label(&mut self, first: u32) {
        for register in first + 1..first + 4 {
            self.constant(register, &[0; 4]);
        }
        self.load(NftField::Label, first);
        self.constant(first, &[0; 4]);
    }

    fn load(&mut self, field: NftField, register: u32) {
        const NETWORK: u32 = 1;
        const TRANSPORT: u32 = 2;
        const SOURCE: u32 = 1;
        const DESTINATION: u32 = 2;
        const IN_INTERFACE: u32 = 8;
        const OUT_INTERFACE: u32 = 16;
        const INTERFACE: u32 = 1;
        const ADDRESS_TYPE: u32 = 3;
        // Keys of conntrack.
        const DESTINATION_PORT: u32 = 12;
        const ORIGINAL_DIRECTION: u8 = 0;
        let length = u32::try_from(field.length()).unwrap_or_default();
        match field {
            NftField::Source(NftFamily::V4) => self.payload(NETWORK, 12, length, register),
            NftField::Destination(NftFamily::V4) => self.payload(NETWORK, 16, length, register),
            NftField::Source(NftFamily::V6) => self.payload(NETWORK, 8, length, register),
            NftField::Destination(NftFamily::V6) => self.payload(NETWORK, 24, length, register),
            NftField::SourcePort => self.payload(TRANSPORT, 0, length, register),
            NftField::DestinationPort => self.payload(TRANSPORT, 2, length, register),
            NftField::IcmpType => self.payload(TRANSPORT, 0, length, register),
            NftField::IcmpCode => self.payload(TRANSPORT, 1, length, register),
            NftField::TcpFlags => self.payload(TRANSPORT, 13, length, register),
            NftField::DestinationType => self.route(ADDRESS_TYPE, DESTINATION | IN_INTERFACE, register),
            NftField::SourceType => self.route(ADDRESS_TYPE, SOURCE, register),
            NftField::SourceTypeThere => self.route(ADDRESS_TYPE, SOURCE | OUT_INTERFACE, register),
            NftField::ReturnInterface => self.route(INTERFACE, SOURCE | IN_INTERFACE, register),
            // After hardware type, protocol type, address lengths, operation and sender hardware address.
            NftField::ArpSender => self.payload(NETWORK, 14, length, register),
            NftField::Mark => self.meta(3, register),
            NftField::InIndex => self.meta(4, register),
            NftField::InInterface => self.meta(6, register),
            NftField::OutInterface => self.meta(7, register),
            NftField::Family => self.meta(15, register),
            NftField::Protocol => self.meta(16, register),
            NftField::Label => self.connection(LABELS, register),
            NftField::OriginalPort => {
                let data = NetlinkAttributes::default()
                    .number(wire::NFTA_CT_KEY, DESTINATION_PORT)
                    .bytes(wire::NFTA_CT_DIRECTION, &[ORIGINAL_DIRECTION])
                    .number(wire::NFTA_CT_DREG, register);
                self.push("ct", data);
            }
            NftField::IcmpHead => self.payload(TRANSPORT, 0, length, register),
            NftField::NoPort => self.constant(register, &[0; 2]),
            NftField::Constant(label) => self.constant(register, &label.0),
            NftField::Connection => self.connection(0, register),
            NftField::ConnectionStatus => self.connection(2, register),
        }
    }

    fn meta(&mut self, key: u32, register: u32) {
        let data = NetlinkAttributes::default()
            .number(wire::NFTA_META_KEY, key)
            .number(wire::NFTA_META_DREG, register);
        self.push("meta", data);
    }

    /// Loads the result of a route lookup (`fib`) for an address.
    fn route(&mut self, result: u32, of: u32, register: u32) {
        let data = NetlinkAttributes::default()
            .number(wire::NFTA_FIB_DREG, register)
            .number(wire::NFTA_FIB_RESULT, result)
            .number(wire::NFTA_FIB_FLAGS, of);
        self.push("fib", data);
    }

    fn connection(&mut self, key: u32, register: u32) {
        let data =
            NetlinkAttributes::default().number(wire::NFTA_CT_KEY, key).number(wire::NFTA_CT_DREG, register);
        self.push("ct", data);
    }

    fn payload(&mut self, base: u32, offset: u32, length: u32, register: u32) {
        let data = NetlinkAttributes::default()
            .number(wire::NFTA_PAYLOAD_DREG, register)
            .number(wire::NFTA_PAYLOAD_BASE, base)
            .number(wire::NFTA_PAYLOAD_OFFSET, offset)
            .number(wire::NFTA_PAYLOAD_LEN, length);
        self.push("payload", data);
    }

    fn compare(&mut self, differs: bool, value: &[u8]) {
        let data = NetlinkAttributes::default()
            .number(wire::NFTA_CMP_SREG, REGISTER)
            .number(wire::NFTA_CMP_OP, u32::from(differs))
            .nest(wire::NFTA_CMP_DATA, encode_value(value));
        self.push("cmp", data);
    }

    fn range(&mut self, outside: bool, first: &[u8], last: &[u8]) {
        let data = NetlinkAttributes::default()
            .number(wire::NFTA_RANGE_SREG, REGISTER)
            .number(wire::NFTA_RANGE_OP, u32::from(outside))
            .nest(wire::NFTA_RANGE_FROM_DATA, encode_value(first))
            .nest(wire::NFTA_RANGE_TO_DATA, encode_value(last));
        self.push("range", data);
    }

    /// Sets the register to (register AND `mask`) XOR `flip`.
    fn bits(&mut self, mask: &[u8], flip: &[u8]) {
        let length = u32::try_from(mask.len()).unwrap_or_default();
        let data = NetlinkAttributes::default()
            .number(wire::NFTA_BITWISE_SREG, REGISTER)
            .number(wire::NFTA_BITWISE_DREG, REGISTER)
            .number(wire::NFTA_BITWISE_LEN, length)
            .nest(wire::NFTA_BITWISE_MASK, encode_value(mask))
            .nest(wire::NFTA_BITWISE_XOR, encode_value(flip));
        self.push("bitwise", data);
    }

    fn lookup(&mut self, set: &str, id: Option<u32>, register: u32, negated: bool) {
        let mut data = NetlinkAttributes::default()
            .text(wire::NFTA_LOOKUP_SET, set)
            .number(wire::NFTA_LOOKUP_SREG, register);
        if let Some(id) = id {
            data = data.number(wire::NFTA_LOOKUP_SET_ID, id);
        }
        if negated {
            data = data.number(wire::NFTA_LOOKUP_FLAGS, wire::NFT_LOOKUP_F_INV);
        }
        self.push("lookup", data);
    }

    fn push_action(&mut self, action: &NftAction) {
        match action {
            NftAction::Count => self.push(
                "counter",
                NetlinkAttributes::default()
                    .bytes(wire::NFTA_COUNTER_BYTES, &[0; 8])
                    .bytes(wire::NFTA_COUNTER_PACKETS, &[0; 8]),
            ),
            NftAction::Limit(LogLimit { packets, seconds, burst }) => {
                self.push("limit", encode_limit(*packets, *seconds, *burst));
            }
            NftAction::Over(rate) => {
                const EXCEEDED: u32 = 1;
                let data =
                    encode_limit(rate.per_second, 1, rate.burst).number(wire::NFTA_LIMIT_FLAGS, EXCEEDED);
                self.push("limit", data);
            }
            NftAction::ConnectionsOver(count) => {
                let data = NetlinkAttributes::default()
                    .number(wire::NFTA_CONNLIMIT_COUNT, *count)
                    .number(wire::NFTA_CONNLIMIT_FLAGS, wire::NFT_CONNLIMIT_F_INV);
                self.push("connlimit", data);
            }
            NftAction::Log { prefix, rule } => self.log(prefix, rule),
            NftAction::SetMark(bits) => self.mark(!bits, *bits),
            NftAction::ClearMark(bits) => self.mark(!bits, 0),
            NftAction::SetLabel(label) => {
                self.constant(REGISTER, &label.0);
                let data = NetlinkAttributes::default()
                    .number(wire::NFTA_CT_KEY, LABELS)
                    .number(wire::NFTA_CT_SREG, REGISTER);
                self.push("ct", data);
            }
            NftAction::AddKey { fields, set } => {
                const ADD: u32 = 0;
                self.load_key(fields);
                let data = NetlinkAttributes::default()
                    .text(wire::NFTA_DYNSET_SET_NAME, set)
                    .number(wire::NFTA_DYNSET_OP, ADD)
                    .number(wire::NFTA_DYNSET_SREG_KEY, key_register(fields));
                self.push("dynset", data);
            }
            NftAction::ReportFlow(prefix) => {
                let data = NetlinkAttributes::default()
                    .bytes(wire::NFTA_LOG_GROUP, &super::flow::FLOW_GROUP.to_be_bytes())
                    .text(wire::NFTA_LOG_PREFIX, prefix);
                self.push("log", data);
            }
            NftAction::Untrack => {
                // This expression has no data attribute.
                let expression = NetlinkAttributes::default().text(wire::NFTA_EXPR_NAME, "notrack");
                self.list = std::mem::take(&mut self.list).nest(wire::NFTA_LIST_ELEM, expression);
            }
            NftAction::Masquerade { ports } => {
                let data = self.add_ports(NetlinkAttributes::default(), *ports, MASQUERADE);
                self.push("masq", data);
            }
            NftAction::TranslateSource { address, ports } => self.translate_source(*address, *ports),
            NftAction::TranslateDestination { address, port } => self.translate_destination(*address, *port),
            NftAction::TranslateBy { end, family, fields, map } => {
                self.translate_by(*end, *family, fields, map)
            }
            NftAction::SetDscp(family, value) => self.set_dscp(*family, *value),
            NftAction::ClampMss => self.clamp_mss(),
            NftAction::Dispatch { fields, map } => self.dispatch(fields, map),
            NftAction::Accept => self.verdict(1, None),
            NftAction::Drop => self.verdict(0, None),
            NftAction::Reject => self.push(
                "reject",
                NetlinkAttributes::default()
                    .number(wire::NFTA_REJECT_TYPE, wire::NFT_REJECT_ICMPX_UNREACH)
                    .bytes(wire::NFTA_REJECT_ICMP_CODE, &[wire::NFT_REJECT_ICMPX_PORT_UNREACH]),
            ),
            NftAction::Reset => self.push(
                "reject",
                NetlinkAttributes::default().number(wire::NFTA_REJECT_TYPE, wire::NFT_REJECT_TCP_RST),
            ),
            NftAction::Return => self.verdict(wire::NFT_RETURN, None),
            NftAction::Jump(chain) => self.verdict(wire::NFT_JUMP, Some(chain)),
            NftAction::Goto(chain) => self.verdict(wire::NFT_GOTO, Some(chain)),
        }
    }

    /// Writes a line to the kernel's log, and copies the packet to the log group.
    fn log(&mut self, prefix: &str, rule: &str) {
        let line = NetlinkAttributes::default().text(wire::NFTA_LOG_PREFIX, prefix);
        self.push("log", line.number(wire::NFTA_LOG_LEVEL, LOG_NOTICE));
        let copy =
            NetlinkAttributes::default().bytes(wire::NFTA_LOG_GROUP, &crate::policy::LOG_GROUP.to_be_bytes());
        self.push("log", copy.text(wire::NFTA_LOG_PREFIX, rule));
    }

    fn dispatch(&mut self, fields: &[NftField], map: &str) {
        self.load_key(fields);
        self.lookup_map(map, key_register(fields), VERDICT);
    }

    /// Loads the value of a map for the key in a register.
    fn lookup_map(&mut self, map: &str, key: u32, value: u32) {
        let data = NetlinkAttributes::default()
            .text(wire::NFTA_LOOKUP_SET, map)
            .number(wire::NFTA_LOOKUP_SREG, key)
            .number(wire::NFTA_LOOKUP_DREG, value);
        self.push("lookup", data);
    }

    fn translate_destination(&mut self, address: Ipv4Addr, port: u16) {
        self.constant(REGISTER, &address.octets());
        self.constant(FIRST_PORT, &port.to_be_bytes());
        let data = encode_translation(NatEnd::Destination, NftFamily::V4)
            .number(wire::NFTA_NAT_REG_PROTO_MIN, FIRST_PORT)
            .number(wire::NFTA_NAT_REG_PROTO_MAX, FIRST_PORT);
        self.push("nat", data);
    }

    fn translate_source(&mut self, address: IpAddr, ports: Option<PortInterval>) {
        self.constant(REGISTER, &address_bytes(address));
        let data = self.add_ports(encode_translation(NatEnd::Source, NftFamily::from(address)), ports, NAT);
        self.push("nat", data);
    }

    fn translate_by(&mut self, end: NatEnd, family: NftFamily, fields: &[NftField], map: &str) {
        self.load_key(fields);
        self.lookup_map(map, key_register(fields), REGISTER);
        self.push("nat", encode_translation(end, family));
    }

    /// Sets the upper six bits of the former type of service field, which spans the first two bytes of an IPv6 header.
    fn set_dscp(&mut self, family: NftFamily, value: u8) {
        const NETWORK: u32 = 1;
        const LENGTH: u32 = 2;
        const INTERNET_CHECKSUM: u32 = 1;
        const CHECKSUM_AT: u32 = 10;
        let (mask, value): (u16, u16) = match family {
            NftFamily::V4 => (0xff03, u16::from(value) << 2),
            NftFamily::V6 => (0xf03f, u16::from(value) << 6),
        };
        self.payload(NETWORK, 0, LENGTH, REGISTER);
        self.bits(&mask.to_be_bytes(), &value.to_be_bytes());
        let write = NetlinkAttributes::default()
            .number(wire::NFTA_PAYLOAD_SREG, REGISTER)
            .number(wire::NFTA_PAYLOAD_BASE, NETWORK)
            .number(wire::NFTA_PAYLOAD_OFFSET, 0)
            .number(wire::NFTA_PAYLOAD_LEN, LENGTH);
        let write = match family {
            NftFamily::V4 => write
                .number(wire::NFTA_PAYLOAD_CSUM_TYPE, INTERNET_CHECKSUM)
                .number(wire::NFTA_PAYLOAD_CSUM_OFFSET, CHECKSUM_AT),
            NftFamily::V6 => write,
        };
        self.push("payload", write);
    }

    /// Adds the port range for translated packets, and makes the kernel choose ports at random: ports in ascending order
    /// from the same start would collide between nodes, and between packets that are translated concurrently.
    fn add_ports(
        &mut self,
        data: NetlinkAttributes,
        ports: Option<PortInterval>,
        kinds: PortAttributes,
    ) -> NetlinkAttributes {
        const GIVEN: u32 = 1 << 1;
        const FULLY_RANDOM: u32 = 1 << 4;
        let Some(PortInterval { first, last }) = ports else { return data.number(kinds.flags, FULLY_RANDOM) };
        self.constant(FIRST_PORT, &first.to_be_bytes());
        self.constant(LAST_PORT, &last.to_be_bytes());
        data.number(kinds.flags, FULLY_RANDOM | GIVEN)
            .number(kinds.first, FIRST_PORT)
            .number(kinds.last, LAST_PORT)
    }

    fn constant(&mut self, register: u32, value: &[u8]) {
        let data = NetlinkAttributes::default()
            .number(wire::NFTA_IMMEDIATE_DREG, register)
            .nest(wire::NFTA_IMMEDIATE_DATA, encode_value(value));
        self.push("immediate", data);
    }

    /// Sets the MSS option to the value that the packet's route allows. The kernel never increases it.
    fn clamp_mss(&mut self) {
        const TCP_MSS: u32 = 3;
        const TO_NETWORK: u32 = 1;
        const TCP_OPTION: u32 = 1;
        const MAXIMUM_SEGMENT: u8 = 2;
        const LENGTH: u32 = 2;
        let route = NetlinkAttributes::default()
            .number(wire::NFTA_RT_DREG, REGISTER)
            .number(wire::NFTA_RT_KEY, TCP_MSS);
        self.push("rt", route);
        let order = NetlinkAttributes::default()
            .number(wire::NFTA_BYTEORDER_SREG, REGISTER)
            .number(wire::NFTA_BYTEORDER_DREG, REGISTER)
            .number(wire::NFTA_BYTEORDER_OP, TO_NETWORK)
            .number(wire::NFTA_BYTEORDER_LEN, LENGTH)
            .number(wire::NFTA_BYTEORDER_SIZE, LENGTH);
        self.push("byteorder", order);
        // Offset 2: after kind and length of the option.
        let write = NetlinkAttributes::default()
            .number(wire::NFTA_EXTHDR_SREG, REGISTER)
            .bytes(wire::NFTA_EXTHDR_TYPE, &[MAXIMUM_SEGMENT])
            .number(wire::NFTA_EXTHDR_OFFSET, 2)
            .number(wire::NFTA_EXTHDR_LEN, LENGTH)
            .number(wire::NFTA_EXTHDR_OP, TCP_OPTION);
        self.push("exthdr", write);
    }

    fn mark(&mut self, keep: u32, set: u32) {
        self.load(NftField::Mark, REGISTER);
        self.bits(&keep.to_ne_bytes(), &set.to_ne_bytes());
        let data = NetlinkAttributes::default()
            .number(wire::NFTA_META_KEY, 3)
            .number(wire::NFTA_META_SREG, REGISTER);
        self.push("meta", data);
    }

    fn verdict(&mut self, code: i32, chain: Option<&str>) {
        let data = NetlinkAttributes::default()
            .number(wire::NFTA_IMMEDIATE_DREG, VERDICT)
            .nest(wire::NFTA_IMMEDIATE_DATA, encode_verdict(code, chain));
        self.push("immediate", data);
    }
}

/// Returns the first register of the key of a set.
fn key_register(fields: &[NftField]) -> u32 {
    if fields.len() == 1 { REGISTER } else { FIRST_SLOT }
}

fn encode_limit(packets: u32, seconds: u32, burst: u32) -> NetlinkAttributes {
    NetlinkAttributes::default()
        .bytes(wire::NFTA_LIMIT_RATE, &u64::from(packets).to_be_bytes())
        .bytes(wire::NFTA_LIMIT_UNIT, &u64::from(seconds).to_be_bytes())
        .number(wire::NFTA_LIMIT_BURST, burst)
}

/// Encodes a translation to the address in the register.
fn encode_translation(end: NatEnd, family: NftFamily) -> NetlinkAttributes {
    let end: u32 = match end {
        NatEnd::Source => 0,
        NatEnd::Destination => 1,
    };
    let family: u32 = match family {
        NftFamily::V4 => 2,
        NftFamily::V6 => 10,
    };
    NetlinkAttributes::default()
        .number(wire::NFTA_NAT_TYPE, end)
        .number(wire::NFTA_NAT_FAMILY, family)
        .number(wire::NFTA_NAT_REG_ADDR_MIN, REGISTER)
        .number(wire::NFTA_NAT_REG_ADDR_MAX, REGISTER)
}

fn encode_value(value: &[u8]) -> NetlinkAttributes {
    NetlinkAttributes::default().bytes(wire::NFTA_DATA_VALUE, value)
}

/// Encodes a verdict as data, for a rule or a map.
pub(super) fn encode_verdict(code: i32, chain: Option<&str>) -> NetlinkAttributes {
    let mut data = NetlinkAttributes::default().bytes(wire::NFTA_VERDICT_CODE, &code.to_be_bytes());
    if let Some(chain) = chain {
        data = data.text(wire::NFTA_VERDICT_CHAIN, chain);
    }
    NetlinkAttributes::default().nest(wire::NFTA_DATA_VERDICT, data)
}
