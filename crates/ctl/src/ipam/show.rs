//! `ipam show`: prints address usage, the user of an address, borrowed addresses, or the settings.

use super::bordered_table::{self, ColumnAlign, five_digits};
use super::{IpamShowArgs, address, allocator};
use crate::failure::CommandResult;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use tortie_ipam::block::{AddressAllocation, allocations};
use tortie_ipam::owner::attribute;
use tortie_ipam::pool::{self, AllocationPool};
use tortie_ipam::usage::{self, AddressUsage};
use tortie_ipam::{IpamRecords, block, facts, space};
use tortie_model::Kind;
use tortie_model::ipam::AddressBlock;
use tortie_store::ResourceClient;

pub async fn show(args: &IpamShowArgs, store: &ResourceClient, out: &mut dyn Write) -> CommandResult<()> {
    let records = IpamRecords::new(store.client().clone());
    match args {
        IpamShowArgs { ip: Some(ip), .. } => show_address(&records, address(ip)?, out).await,
        IpamShowArgs { show_blocks: true, .. } => show_usage(&records, true, out).await,
        IpamShowArgs { show_borrowed: true, .. } => show_borrowed(&records, out).await,
        IpamShowArgs { show_configuration: true, .. } => show_configuration(store, out).await,
        _ => show_usage(&records, false, out).await,
    }
}

pub async fn pools(records: &IpamRecords) -> CommandResult<Vec<AllocationPool>> {
    Ok(records.resources(Kind::IPPool).await?.iter().filter_map(facts::pool).collect())
}

/// Returns all blocks, sorted by address.
pub async fn blocks(records: &IpamRecords) -> CommandResult<Vec<AddressBlock>> {
    let found = records.blocks(None).await?;
    let mut blocks: Vec<AddressBlock> = found.into_iter().map(|found| found.value).collect();
    blocks.sort_by_key(|block| (space::version(&block.cidr), block.cidr));
    Ok(blocks)
}

async fn show_address(records: &IpamRecords, address: IpAddr, out: &mut dyn Write) -> CommandResult<()> {
    let pools = pools(records).await?;
    let cidr = pool::containing(&pools, address, true).and_then(|pool| pool.block_of(address));
    let found = match cidr {
        Some(cidr) => records.block(cidr).await?,
        None => None,
    };
    let record = found.as_ref().and_then(|found| block::record(&found.value, address));
    let Some(record) = record.filter(|record| record.released_at.is_none()) else {
        writeln!(out, "{address} is not assigned")?;
        return Ok(());
    };
    writeln!(out, "IP {address} is in use")?;
    writeln!(out, "Handle ID: {}", record.handle().unwrap_or("<none>"))?;
    if record.secondary.is_empty() {
        writeln!(out, "No Active Owner attributes defined")?;
    } else {
        writeln!(out, "Active Owner Attributes:")?;
        attributes(&record.secondary, out)?;
    }
    if !record.alternate_owner.is_empty() {
        writeln!(out, "Alternate Owner Attributes:")?;
        attributes(&record.alternate_owner, out)?;
    }
    Ok(())
}

fn attributes(attributes: &BTreeMap<String, String>, out: &mut dyn Write) -> CommandResult<()> {
    for (name, value) in attributes {
        writeln!(out, "  {name}: {value}")?;
    }
    Ok(())
}

async fn show_usage(records: &IpamRecords, with_blocks: bool, out: &mut dyn Write) -> CommandResult<()> {
    let pools = pools(records).await?;
    let reservations = facts::reservations(&records.resources(Kind::IPReservation).await?);
    let blocks = blocks(records).await?;
    let mut rows = Vec::new();
    for pool in &pools {
        let inside = || blocks.iter().filter(|block| pool.cidr.contains(&block.cidr));
        let usage = usage::of_pool(&pool.cidr, inside(), &reservations);
        rows.push(row("IP Pool", pool.cidr.to_string(), usage));
        if with_blocks {
            let each = inside()
                .map(|block| row("Block", block.cidr.to_string(), usage::of_block(block, &reservations)));
            rows.extend(each);
        }
    }
    if with_blocks {
        let orphans = blocks.iter().filter(|block| !pools.iter().any(|p| p.cidr.contains(&block.cidr)));
        rows.extend(
            orphans.map(|block| row("Block", block.cidr.to_string(), usage::of_block(block, &reservations))),
        );
    }
    let headers = ["GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE"];
    let align = [
        ColumnAlign::Natural,
        ColumnAlign::Natural,
        ColumnAlign::Right,
        ColumnAlign::Right,
        ColumnAlign::Right,
        ColumnAlign::Right,
    ];
    bordered_table::print(out, headers, align, &rows)?;
    Ok(())
}

fn row(grouping: &str, cidr: String, usage: AddressUsage) -> [String; 6] {
    let total = usage.total as f64;
    let part = |number: u128| {
        let number = number as f64;
        format!("{} ({:.0}%)", five_digits(number), 100.0 * number / total)
    };
    [
        grouping.to_owned(),
        cidr,
        five_digits(total),
        part(usage.in_use),
        part(usage.reserved),
        part(usage.free),
    ]
}

async fn show_borrowed(records: &IpamRecords, out: &mut dyn Write) -> CommandResult<()> {
    let blocks = blocks(records).await?;
    let mut rows = Vec::new();
    let mut without_node = 0;
    for allocation in blocks.iter().flat_map(allocations).filter(|a| !a.is_cooling_down()) {
        let owner = block_owner(allocation.block);
        match allocation.attribute(attribute::NODE_ATTRIBUTE) {
            None => without_node += 1,
            Some(node) if owner != Some(node) => {
                let (kind, holder) = holder(&allocation);
                rows.push([
                    allocation.address.to_string(),
                    node.to_owned(),
                    allocation.block.cidr.to_string(),
                    owner.unwrap_or_default().to_owned(),
                    kind,
                    holder,
                ]);
            }
            Some(_) => {}
        }
    }
    let headers = ["IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO"];
    bordered_table::print(out, headers, [ColumnAlign::Natural; 6], &rows)?;
    if without_node > 0 {
        writeln!(
            out,
            "\nNote: found {without_node} IP allocations without an explicit node association. Unable to determine \
             if they are borrowed."
        )?;
    }
    Ok(())
}

/// Returns the name of the block's owner.
pub fn block_owner(block: &AddressBlock) -> Option<&str> {
    block.owner().map(|(_, name)| name)
}

fn holder(allocation: &AddressAllocation<'_>) -> (String, String) {
    let named = |name: &str| allocation.attribute(name).unwrap_or_default().to_owned();
    let namespaced = |name: String| format!("{}/{name}", named(attribute::NAMESPACE_ATTRIBUTE));
    if let Some(machine) = allocation.attribute("vmi-name") {
        ("vmi".to_owned(), namespaced(machine.to_owned()))
    } else if let Some(pod) = allocation.attribute(attribute::POD_ATTRIBUTE) {
        ("pod".to_owned(), namespaced(pod.to_owned()))
    } else {
        (named(attribute::TYPE_ATTRIBUTE), named(attribute::NODE_ATTRIBUTE))
    }
}

async fn show_configuration(store: &ResourceClient, out: &mut dyn Write) -> CommandResult<()> {
    let config = allocator(store).config().await?;
    let persistence = config.kubevirt_vm_address_persistence.as_deref().unwrap_or("Enabled");
    let row = |name: &str, value: String| [name.to_owned(), value];
    let rows = [
        row("StrictAffinity", config.strict_affinity.to_string()),
        row("AutoAllocateBlocks", config.auto_allocate_blocks.to_string()),
        row("MaxBlocksPerHost", config.max_blocks_per_host.to_string()),
        row("KubeVirtVMAddressPersistence", format!("{persistence:?}")),
        row("IPCooldownSeconds", config.ip_cooldown_seconds.to_string()),
    ];
    bordered_table::print(out, ["PROPERTY", "VALUE"], [ColumnAlign::Natural; 2], &rows)?;
    Ok(())
}
