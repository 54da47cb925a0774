//! `ipam show`: prints address usage, the user of an address, borrowed addresses, or the settings.

use super::bordered_table::{self, ColumnAlign, five_digits};
use super::usage_list::{BlockUsage, PoolUsage, load_usage};
use super::{IpamShowArgs, build_allocator, parse_address};
use crate::failure::CommandResult;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use tortie_ipam::block::{AddressAllocation, allocations};
use tortie_ipam::owner::attribute;
use tortie_ipam::pool::{self, AllocationPool};
use tortie_ipam::usage::AddressUsage;
use tortie_ipam::{IpamRecords, block, facts, space};
use tortie_model::Kind;
use tortie_model::ipam::AddressBlock;
use tortie_store::ResourceClient;

pub async fn show(args: &IpamShowArgs, store: &ResourceClient, out: &mut dyn Write) -> CommandResult<()> {
    let records = IpamRecords::new(store.client().clone());
    match args {
        IpamShowArgs { ip: Some(ip), .. } => show_address(&records, parse_address(ip)?, out).await,
        IpamShowArgs { show_blocks: true, .. } => show_usage(&records, true, out).await,
        IpamShowArgs { show_borrowed: true, .. } => show_borrowed(&records, out).await,
        IpamShowArgs { show_configuration: true, .. } => show_configuration(store, out).await,
        _ => show_usage(&records, false, out).await,
    }
}

pub async fn list_pools(records: &IpamRecords) -> CommandResult<Vec<AllocationPool>> {
    Ok(records.resources(Kind::IPPool).await?.iter().filter_map(facts::pool).collect())
}

/// Returns all blocks, sorted by address.
pub async fn list_blocks(records: &IpamRecords) -> CommandResult<Vec<AddressBlock>> {
    let found = records.blocks(None).await?;
    let mut blocks: Vec<AddressBlock> = found.into_iter().map(|found| found.value).collect();
    blocks.sort_by_key(|block| (space::version(&block.cidr), block.cidr));
    Ok(blocks)
}

async fn show_address(records: &IpamRecords, address: IpAddr, out: &mut dyn Write) -> CommandResult<()> {
    let pools = list_pools(records).await?;
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
        print_attributes(&record.secondary, out)?;
    }
    if !record.alternate_owner.is_empty() {
        writeln!(out, "Alternate Owner Attributes:")?;
        print_attributes(&record.alternate_owner, out)?;
    }
    Ok(())
}

fn print_attributes(attributes: &BTreeMap<String, String>, out: &mut dyn Write) -> CommandResult<()> {
    for (name, value) in attributes {
        writeln!(out, "  {name}: {value}")?;
    }
    Ok(())
}

async fn show_usage(records: &IpamRecords, with_blocks: bool, out: &mut dyn Write) -> CommandResult<()> {
    let list = load_usage(records).await?;
    let mut rows = Vec::new();
    for PoolUsage { pool, usage, blocks } in &list.pools {
        rows.push(build_usage_row("IP Pool", pool.cidr.to_string(), *usage));
        if with_blocks {
            rows.extend(blocks.iter().map(build_block_row));
        }
    }
    if with_blocks {
        rows.extend(list.orphans.iter().map(build_block_row));
    }
    let headers = ["GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE"];
    let mut align = [ColumnAlign::Right; 6];
    align[..2].fill(ColumnAlign::Natural);
    bordered_table::print(out, headers, align, &rows)?;
    Ok(())
}

fn build_block_row(block: &BlockUsage) -> [String; 6] {
    build_usage_row("Block", block.cidr.to_string(), block.usage)
}

fn build_usage_row(grouping: &str, cidr: String, usage: AddressUsage) -> [String; 6] {
    let AddressUsage { total, in_use, reserved, free } = usage;
    let [in_use, reserved, free] = [in_use, reserved, free].map(|number| {
        let percent = 100.0 * number as f64 / total as f64;
        format!("{} ({percent:.0}%)", five_digits(number as f64))
    });
    [grouping.to_owned(), cidr, five_digits(total as f64), in_use, reserved, free]
}

async fn show_borrowed(records: &IpamRecords, out: &mut dyn Write) -> CommandResult<()> {
    let blocks = list_blocks(records).await?;
    let mut rows = Vec::new();
    let mut without_node = 0;
    for allocation in blocks.iter().flat_map(allocations).filter(|a| !a.is_cooling_down()) {
        let owner = block_owner(allocation.block);
        match allocation.attribute(attribute::NODE_ATTRIBUTE) {
            None => without_node += 1,
            Some(node) if owner != Some(node) => {
                let (kind, holder) = describe_holder(&allocation);
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

/// Returns an attribute of an allocation; empty if it has none of that name.
pub fn attribute_text(allocation: &AddressAllocation<'_>, name: &str) -> String {
    allocation.attribute(name).unwrap_or_default().to_owned()
}

/// Returns the kind and the name of the holder of an address.
fn describe_holder(allocation: &AddressAllocation<'_>) -> (String, String) {
    let namespace = attribute_text(allocation, attribute::NAMESPACE_ATTRIBUTE);
    for (kind, name) in [("vmi", "vmi-name"), ("pod", attribute::POD_ATTRIBUTE)] {
        if let Some(holder) = allocation.attribute(name) {
            return (kind.to_owned(), format!("{namespace}/{holder}"));
        }
    }
    let kind = attribute_text(allocation, attribute::TYPE_ATTRIBUTE);
    (kind, attribute_text(allocation, attribute::NODE_ATTRIBUTE))
}

async fn show_configuration(store: &ResourceClient, out: &mut dyn Write) -> CommandResult<()> {
    let config = build_allocator(store).config().await?;
    let persistence = config.kubevirt_vm_address_persistence.as_deref().unwrap_or("Enabled");
    let rows = [
        ("StrictAffinity", config.strict_affinity.to_string()),
        ("AutoAllocateBlocks", config.auto_allocate_blocks.to_string()),
        ("MaxBlocksPerHost", config.max_blocks_per_host.to_string()),
        ("KubeVirtVMAddressPersistence", format!("{persistence:?}")),
        ("IPCooldownSeconds", config.ip_cooldown_seconds.to_string()),
    ]
    .map(|(name, value)| [name.to_owned(), value]);
    bordered_table::print(out, ["PROPERTY", "VALUE"], [ColumnAlign::Natural; 2], &rows)?;
    Ok(())
}
