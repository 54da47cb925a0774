//! Encodes operations on our tables as the netlink messages of one transaction.

use super::expression::{self, AnonymousSet};
use super::ranges;
use super::rule::{NftField, NftRule};
use super::table::{ChainHook, ElementData, NftElement, SetType, TableFamily, padded};
use crate::netlink::NetlinkAttributes;
use nlink::netlink::nftables::{self as wire, RawMessage};

/// Name of our tables.
pub const TABLE_NAME: &str = "tortie";
/// Maximum length of a list of elements: the length field of an attribute has sixteen bits. Longer lists are split.
const MAX_LIST_BYTES: usize = 48 << 10;

const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

/// Types of the entries in the userdata of a rule: the comment, in the format of `nft`, and our fingerprint.
const USERDATA_COMMENT: u8 = 0;
pub(super) const USERDATA_FINGERPRINT: u8 = 0x74;
/// Maximum length of a comment that `nft` shows.
const MAX_COMMENT_BYTES: usize = 127;

/// One change to the table.
#[derive(Clone, Debug)]
pub enum TableOperation<'t> {
    AddTable,
    DeleteTable,
    AddChain {
        name: &'t str,
        hook: Option<ChainHook>,
    },
    /// Deletes all rules of the chain.
    FlushChain {
        name: &'t str,
    },
    DeleteChain {
        name: &'t str,
    },
    AddRule {
        chain: &'t str,
        rule: &'t NftRule,
    },
    AddSet {
        name: &'t str,
        kind: SetType,
    },
    DeleteSet {
        name: &'t str,
    },
    AddElements {
        set: &'t str,
        kind: SetType,
        elements: Vec<&'t NftElement>,
    },
    DeleteElements {
        set: &'t str,
        kind: SetType,
        elements: Vec<&'t NftElement>,
    },
}

/// Encodes operations as messages. Returns each message with the position of its operation.
pub(super) fn encode_operations(
    operations: &[TableOperation<'_>],
    family: TableFamily,
) -> Vec<(usize, RawMessage)> {
    let mut messages = Vec::new();
    // ID of the next set. IDs are unique within the transaction; the kernel chooses the names of anonymous sets.
    let mut next_set_id = 1;
    for (position, operation) in operations.iter().enumerate() {
        for TableMessage { kind, flags, attributes } in encode_operation(operation, &mut next_set_id) {
            let message = RawMessage::new(kind, family.wire()).flags(flags).attrs(attributes.into_bytes());
            messages.push((position, message));
        }
    }
    messages
}

/// A message of which the table family is not set yet.
struct TableMessage {
    kind: u8,
    flags: u16,
    attributes: NetlinkAttributes,
}

fn message(kind: u8, flags: u16, attributes: NetlinkAttributes) -> TableMessage {
    TableMessage { kind, flags, attributes }
}

fn encode_operation(operation: &TableOperation<'_>, next_set_id: &mut u32) -> Vec<TableMessage> {
    match operation {
        TableOperation::AddTable => vec![message(wire::NFT_MSG_NEWTABLE, CREATE, in_table())],
        TableOperation::DeleteTable => vec![message(wire::NFT_MSG_DELTABLE, 0, in_table())],
        TableOperation::AddChain { name, hook } => {
            let chain = in_table().text(wire::NFTA_CHAIN_NAME, name);
            vec![message(wire::NFT_MSG_NEWCHAIN, CREATE, with_hook(chain, *hook))]
        }
        TableOperation::FlushChain { name } => {
            vec![message(wire::NFT_MSG_DELRULE, 0, in_table().text(wire::NFTA_RULE_CHAIN, name))]
        }
        TableOperation::DeleteChain { name } => {
            vec![message(wire::NFT_MSG_DELCHAIN, 0, in_table().text(wire::NFTA_CHAIN_NAME, name))]
        }
        TableOperation::AddRule { chain, rule } => add_rule(chain, rule, next_set_id),
        TableOperation::AddSet { name, kind } => {
            *next_set_id += 1;
            vec![message(wire::NFT_MSG_NEWSET, CREATE, set_attributes(name, *kind, *next_set_id - 1))]
        }
        TableOperation::DeleteSet { name } => {
            vec![message(wire::NFT_MSG_DELSET, 0, in_table().text(wire::NFTA_SET_NAME, name))]
        }
        TableOperation::AddElements { set, kind, elements } => split_elements(
            set,
            None,
            elements.iter().flat_map(|element| encode_element(&element.key, &element.data, *kind)),
        )
        .map(|list| message(wire::NFT_MSG_NEWSETELEM, CREATE, list))
        .collect(),
        TableOperation::DeleteElements { set, kind, elements } => {
            let keys = elements.iter().flat_map(|element| {
                let is_range = matches!(element.data, ElementData::Last(_));
                encode_element(&element.key, if is_range { &element.data } else { &ElementData::None }, *kind)
            });
            split_elements(set, None, keys).map(|list| message(wire::NFT_MSG_DELSETELEM, 0, list)).collect()
        }
    }
}

/// Returns attributes that begin with the name of our table.
fn in_table() -> NetlinkAttributes {
    NetlinkAttributes::default().text(wire::NFTA_TABLE_NAME, TABLE_NAME)
}

fn with_hook(chain: NetlinkAttributes, hook: Option<ChainHook>) -> NetlinkAttributes {
    const ACCEPT: u32 = 1;
    let Some(ChainHook { point, priority, kind }) = hook else { return chain };
    let hook = NetlinkAttributes::default()
        .number(wire::NFTA_HOOK_HOOKNUM, point.number())
        .bytes(wire::NFTA_HOOK_PRIORITY, &priority.to_be_bytes());
    chain
        .nest(wire::NFTA_CHAIN_HOOK, hook)
        .number(wire::NFTA_CHAIN_POLICY, ACCEPT)
        .text(wire::NFTA_CHAIN_TYPE, kind.wire().as_str())
}

fn add_rule(chain: &str, rule: &NftRule, next_set_id: &mut u32) -> Vec<TableMessage> {
    let (expressions, sets) = expression::encode_expressions(rule, next_set_id);
    let mut messages: Vec<TableMessage> = sets.iter().flat_map(add_anonymous_set).collect();
    let attributes = NetlinkAttributes::default()
        .text(wire::NFTA_RULE_TABLE, TABLE_NAME)
        .text(wire::NFTA_RULE_CHAIN, chain)
        .nest(wire::NFTA_RULE_EXPRESSIONS, expressions)
        .bytes(wire::NFTA_RULE_USERDATA, &userdata(rule));
    messages.push(message(wire::NFT_MSG_NEWRULE, CREATE | APPEND, attributes));
    messages
}

/// Encodes the userdata of a rule as a sequence of type, length and value.
pub(super) fn userdata(rule: &NftRule) -> Vec<u8> {
    let mut data = Vec::new();
    if !rule.comment.is_empty() {
        let mut comment = rule.comment.clone();
        while comment.len() >= MAX_COMMENT_BYTES {
            // Keep the end of the comment, because it identifies the rule.
            comment.remove(0);
        }
        comment.push('\0');
        push_userdata(&mut data, USERDATA_COMMENT, comment.as_bytes());
    }
    push_userdata(&mut data, USERDATA_FINGERPRINT, &rule.fingerprint().to_be_bytes());
    data
}

fn push_userdata(data: &mut Vec<u8>, kind: u8, value: &[u8]) {
    data.push(kind);
    data.push(u8::try_from(value.len()).unwrap_or_default());
    data.extend_from_slice(value);
}

/// Declaration of a set.
pub(super) struct SetDeclaration {
    pub kind: u32,
    pub length: u32,
    pub flags: u32,
}

pub(super) fn set_declaration(kind: SetType) -> SetDeclaration {
    let parts = kind.key();
    // Type ids of several parts are packed with six bits each.
    let type_id = parts.iter().fold(0, |packed, part| packed << 6 | part.kind);
    let length: usize = match parts.as_slice() {
        [only] => only.length,
        parts => parts.iter().map(|part| padded(part.length)).sum(),
    };
    let mut flags = 0;
    if kind.is_ranges() {
        flags |= wire::NFT_SET_INTERVAL;
        if parts.len() > 1 {
            flags |= wire::NFT_SET_CONCAT;
        }
    }
    if kind.is_map() {
        flags |= wire::NFT_SET_MAP;
    }
    if kind.is_dynamic() {
        flags |= wire::NFT_SET_EVAL;
    }
    SetDeclaration { kind: type_id, length: u32::try_from(length).unwrap_or_default(), flags }
}

fn set_attributes(name: &str, kind: SetType, id: u32) -> NetlinkAttributes {
    let declaration = set_declaration(kind);
    let mut set = NetlinkAttributes::default()
        .text(wire::NFTA_SET_TABLE, TABLE_NAME)
        .text(wire::NFTA_SET_NAME, name)
        .number(wire::NFTA_SET_FLAGS, declaration.flags)
        .number(wire::NFTA_SET_KEY_TYPE, declaration.kind)
        .number(wire::NFTA_SET_KEY_LEN, declaration.length)
        .number(wire::NFTA_SET_ID, id);
    if matches!(kind, SetType::Interfaces | SetType::Chains) {
        // Declares the keys as host byte order, so that `nft` shows interface names as text.
        let [a, b, c, d] = 1u32.to_ne_bytes();
        set = set.bytes(wire::NFTA_SET_USERDATA, &[0, 4, a, b, c, d]);
    }
    if let SetType::Flows { size, .. } = kind {
        let counter = NetlinkAttributes::default()
            .bytes(wire::NFTA_COUNTER_BYTES, &[0; 8])
            .bytes(wire::NFTA_COUNTER_PACKETS, &[0; 8]);
        let counter = NetlinkAttributes::default()
            .text(wire::NFTA_EXPR_NAME, "counter")
            .nest(wire::NFTA_EXPR_DATA, counter);
        set = set
            .nest(wire::NFTA_SET_DESC, NetlinkAttributes::default().number(wire::NFTA_SET_DESC_SIZE, size))
            .nest(wire::NFTA_SET_EXPR, counter);
    }
    if kind.leads_to_chains() {
        set = set.number(wire::NFTA_SET_DATA_TYPE, wire::NFT_DATA_VERDICT);
    }
    if let Some(value) = kind.value() {
        set = set
            .number(wire::NFTA_SET_DATA_TYPE, value.kind)
            .number(wire::NFTA_SET_DATA_LEN, u32::try_from(value.length).unwrap_or_default());
    }
    if declaration.flags & wire::NFT_SET_CONCAT != 0 {
        let fields = kind.key().iter().fold(NetlinkAttributes::default(), |fields, part| {
            let length = u32::try_from(part.length).unwrap_or_default();
            fields.nest(
                wire::NFTA_LIST_ELEM,
                NetlinkAttributes::default().number(wire::NFTA_SET_FIELD_LEN, length),
            )
        });
        set = set
            .nest(wire::NFTA_SET_DESC, NetlinkAttributes::default().nest(wire::NFTA_SET_DESC_CONCAT, fields));
    }
    set
}

/// Encodes the constant set of ranges that belongs to one rule, and its elements.
fn add_anonymous_set(set: &AnonymousSet) -> Vec<TableMessage> {
    // The numbers by which `nft` identifies the data types of sets.
    let kind = match set.field {
        NftField::Source(super::rule::NftFamily::V4) | NftField::Destination(super::rule::NftFamily::V4) => 7,
        NftField::Source(super::rule::NftFamily::V6) | NftField::Destination(super::rule::NftFamily::V6) => 8,
        NftField::SourcePort | NftField::DestinationPort => 13,
        NftField::Protocol => 12,
        NftField::IcmpType => 29,
        // `nft` shows this type as plain numbers.
        _ => 4,
    };
    let flags = wire::NFT_SET_ANONYMOUS | wire::NFT_SET_CONSTANT | wire::NFT_SET_INTERVAL;
    let attributes = NetlinkAttributes::default()
        .text(wire::NFTA_SET_TABLE, TABLE_NAME)
        .text(wire::NFTA_SET_NAME, "__set%d")
        .number(wire::NFTA_SET_FLAGS, flags)
        .number(wire::NFTA_SET_KEY_TYPE, kind)
        .number(wire::NFTA_SET_KEY_LEN, u32::try_from(set.length).unwrap_or_default())
        .number(wire::NFTA_SET_ID, set.id);
    let elements = set.ranges.iter().flat_map(|(first, last)| encode_interval(first, last));
    let mut messages = vec![message(wire::NFT_MSG_NEWSET, CREATE, attributes)];
    messages.extend(
        split_elements("__set%d", Some(set.id), elements)
            .map(|list| message(wire::NFT_MSG_NEWSETELEM, CREATE, list)),
    );
    messages
}

/// Splits elements into lists that fit into an attribute.
fn split_elements(
    set: &str,
    id: Option<u32>,
    elements: impl Iterator<Item = NetlinkAttributes>,
) -> impl Iterator<Item = NetlinkAttributes> {
    const SET_ID: u16 = 4;
    let mut lists = Vec::new();
    let mut list = NetlinkAttributes::default();
    for element in elements {
        if list.len() + element.len() > MAX_LIST_BYTES {
            lists.push(std::mem::take(&mut list));
        }
        list = list.nest(wire::NFTA_LIST_ELEM, element);
    }
    if list.len() > 0 {
        lists.push(list);
    }
    let head = NetlinkAttributes::default()
        .text(wire::NFTA_SET_ELEM_LIST_TABLE, TABLE_NAME)
        .text(wire::NFTA_SET_ELEM_LIST_SET, set);
    let head = match id {
        Some(id) => head.number(SET_ID, id),
        None => head,
    };
    lists.into_iter().map(move |list| head.clone().nest(wire::NFTA_SET_ELEM_LIST_ELEMENTS, list))
}

fn encode_element(key: &[u8], data: &ElementData, kind: SetType) -> Vec<NetlinkAttributes> {
    let element = match (data, kind) {
        (ElementData::Last(last), SetType::Nets(_)) => return encode_interval(key, last),
        (ElementData::Last(last), _) => element_key(key).nest(wire::NFTA_SET_ELEM_KEY_END, data_value(last)),
        (ElementData::Goto(chain), _) => {
            let verdict = expression::encode_verdict(wire::NFT_GOTO, Some(chain));
            element_key(key).nest(wire::NFTA_SET_ELEM_DATA, verdict)
        }
        (ElementData::Jump(chain), _) => {
            let verdict = expression::encode_verdict(wire::NFT_JUMP, Some(chain));
            element_key(key).nest(wire::NFTA_SET_ELEM_DATA, verdict)
        }
        (ElementData::Value(value), _) => element_key(key).nest(wire::NFTA_SET_ELEM_DATA, data_value(value)),
        (ElementData::None, _) => element_key(key),
    };
    vec![element]
}

fn element_key(key: &[u8]) -> NetlinkAttributes {
    NetlinkAttributes::default().nest(wire::NFTA_SET_ELEM_KEY, data_value(key))
}

fn data_value(bytes: &[u8]) -> NetlinkAttributes {
    NetlinkAttributes::default().bytes(wire::NFTA_DATA_VALUE, bytes)
}

/// Encodes a range as two elements: its first key, and the key after its last key. The second element is omitted if the
/// range ends at the last possible key.
fn encode_interval(first: &[u8], last: &[u8]) -> Vec<NetlinkAttributes> {
    let mut elements = vec![element_key(first)];
    if let Some(after) = ranges::after(last) {
        elements.push(element_key(&after).number(wire::NFTA_SET_ELEM_FLAGS, wire::NFT_SET_ELEM_INTERVAL_END));
    }
    elements
}

/// Encodes the request for all elements of a set.
pub(super) fn list_elements(family: TableFamily, set: &str, sequence: u32) -> Vec<u8> {
    const REQUEST_DUMP: u16 = 0x301;
    let attributes = NetlinkAttributes::default()
        .text(wire::NFTA_SET_ELEM_LIST_TABLE, TABLE_NAME)
        .text(wire::NFTA_SET_ELEM_LIST_SET, set)
        .into_bytes();
    let length = u32::try_from(20 + attributes.len()).unwrap_or_default();
    let mut request = length.to_ne_bytes().to_vec();
    request.extend_from_slice(&wire::nft_msg_type(wire::NFT_MSG_GETSETELEM).to_ne_bytes());
    request.extend_from_slice(&REQUEST_DUMP.to_ne_bytes());
    request.extend_from_slice(&sequence.to_ne_bytes());
    request.extend_from_slice(&[0; 4]);
    request.extend_from_slice(&[family.wire() as u8, 0, 0, 0]);
    request.extend_from_slice(&attributes);
    request
}
