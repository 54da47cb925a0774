//! Removes Felix's chains from the tables of iptables-nft, and Felix's own nf_tables tables.

use super::{FELIX_CHAIN_PREFIX, FELIX_TABLES, FelixRemoval, is_felix, is_ip};
use crate::error::{DataplaneError, DataplaneResult};
use crate::netlink::NetlinkAttributes;
use crate::netns::Netns;
use crate::policy::nft::foreign::observed::{ForeignRule, family_name};
use nlink::Connection;
use nlink::netlink::Nftables;
use nlink::netlink::nftables::{self as wire, Family, RawMessage};

pub(super) async fn remove(netns: &Netns) -> FelixRemoval {
    FelixRemoval::from_result(remove_from(netns).await)
}

async fn remove_from(netns: &Netns) -> DataplaneResult<FelixRemoval> {
    let removed = remove_with(&netns.nftables()?).await;
    removed.map_err(|error| DataplaneError::kernel("tables of Felix", &error))
}

async fn remove_with(connection: &Connection<Nftables>) -> nlink::Result<FelixRemoval> {
    let mut outcome = FelixRemoval::default();
    let chains = connection.list_chains().await?;
    for table in connection.list_tables().await? {
        if FELIX_TABLES.contains(&(table.family, table.name.as_str())) {
            // Flush the base chains in a separate transaction: a packet in flight must not miss an element of a map and
            // be dropped by the rule behind it.
            let entered = chains.iter().filter(|chain| {
                chain.family == table.family && chain.table == table.name && chain.hook.is_some()
            });
            let flush = entered
                .map(|chain| message(wire::NFT_MSG_DELRULE, table.family, place(&table.name, &chain.name)));
            commit(connection, table.family, &table.name, flush.collect(), &mut outcome).await;
            let attributes = NetlinkAttributes::default().text(wire::NFTA_TABLE_NAME, &table.name);
            let message = message(wire::NFT_MSG_DELTABLE, table.family, attributes);
            commit(connection, table.family, &table.name, vec![message], &mut outcome).await;
        }
    }
    let mut tables: Vec<(Family, String)> = Vec::new();
    for chain in &chains {
        let table = (chain.family, chain.table.clone());
        if is_ip(chain.family) && chain.name.starts_with(FELIX_CHAIN_PREFIX) && !tables.contains(&table) {
            tables.push(table);
        }
    }
    for (family, table) in &tables {
        let family = *family;
        let theirs = chains.iter().filter(|chain| chain.family == family && chain.table == *table);
        let names: Vec<&str> = theirs
            .map(|chain| chain.name.as_str())
            .filter(|name| name.starts_with(FELIX_CHAIN_PREFIX))
            .collect();
        let mut messages = Vec::new();
        for rule in connection.list_rules(table, family).await? {
            let seen = ForeignRule::new(&rule);
            let leads_there = is_felix(seen.comment.as_deref(), seen.target.as_deref());
            if leads_there && !rule.chain.starts_with(FELIX_CHAIN_PREFIX) {
                let attributes =
                    place(table, &rule.chain).bytes(wire::NFTA_RULE_HANDLE, &rule.handle.to_be_bytes());
                messages.push(message(wire::NFT_MSG_DELRULE, family, attributes));
            }
        }
        // Flush the chains first, as they refer to each other.
        messages.extend(names.iter().map(|name| message(wire::NFT_MSG_DELRULE, family, place(table, name))));
        for name in names {
            let attributes = NetlinkAttributes::default()
                .text(wire::NFTA_CHAIN_TABLE, table)
                .text(wire::NFTA_CHAIN_NAME, name);
            messages.push(message(wire::NFT_MSG_DELCHAIN, family, attributes));
        }
        commit(connection, family, table, messages, &mut outcome).await;
    }
    Ok(outcome)
}

/// Commits the messages for one table: either all of them take effect or none.
async fn commit(
    connection: &Connection<Nftables>,
    family: Family,
    table: &str,
    messages: Vec<RawMessage>,
    outcome: &mut FelixRemoval,
) {
    if messages.is_empty() {
        return;
    }
    let count = messages.len();
    let transaction = messages.into_iter().fold(connection.transaction(), |all, message| all.raw(message));
    match transaction.commit(connection).await {
        Ok(()) => outcome.removed += count,
        Err(error) => outcome.failures.push(format!("table {} {table}: {error}", family_name(family))),
    }
}

fn place(table: &str, chain: &str) -> NetlinkAttributes {
    NetlinkAttributes::default().text(wire::NFTA_RULE_TABLE, table).text(wire::NFTA_RULE_CHAIN, chain)
}

fn message(kind: u8, family: Family, attributes: NetlinkAttributes) -> RawMessage {
    RawMessage::new(kind, family).attrs(attributes.into_bytes())
}
