//! Writes the accept rule into a chain of another program's table, in one transaction.

use super::super::{expression, message};
use super::accepting;
use super::diff::ChainEdit;
use super::observed::BaseChain;
use crate::netlink::NetlinkAttributes;
use nlink::Connection;
use nlink::netlink::Nftables;
use nlink::netlink::nftables::{self as wire, RawMessage};

const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

pub(super) async fn commit(
    connection: &Connection<Nftables>,
    chain: &BaseChain,
    edits: &[ChainEdit],
    bits: u32,
) -> nlink::Result<()> {
    let mut transaction = connection.transaction();
    for edit in edits {
        transaction = transaction.raw(written(chain, *edit, bits));
    }
    transaction.commit(connection).await
}

fn written(chain: &BaseChain, edit: ChainEdit, bits: u32) -> RawMessage {
    let place = NetlinkAttributes::default()
        .text(wire::NFTA_RULE_TABLE, &chain.table)
        .text(wire::NFTA_RULE_CHAIN, &chain.name);
    let handle =
        |index: usize| chain.rules.get(index).map(|rule| rule.handle.to_be_bytes()).unwrap_or_default();
    let (kind, flags, attributes) = match edit {
        ChainEdit::Delete(index) => {
            (wire::NFT_MSG_DELRULE, 0, place.bytes(wire::NFTA_RULE_HANDLE, &handle(index)))
        }
        ChainEdit::Insert { before } => {
            let rule = accepting(bits);
            let (expressions, _) = expression::encode_expressions(&rule, &mut 1);
            let rule = place
                .nest(wire::NFTA_RULE_EXPRESSIONS, expressions)
                .bytes(wire::NFTA_RULE_USERDATA, &message::userdata(&rule));
            match before {
                Some(before) => {
                    let rule = rule.bytes(wire::NFTA_RULE_POSITION, &handle(before));
                    (wire::NFT_MSG_NEWRULE, CREATE, rule)
                }
                None => (wire::NFT_MSG_NEWRULE, CREATE | APPEND, rule),
            }
        }
    };
    RawMessage::new(kind, chain.family).flags(flags).attrs(attributes.into_bytes())
}
