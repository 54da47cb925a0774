//! `ipam check`: compares the addresses that are recorded as assigned with those in use.

use super::IpamCheckArgs;
use super::report::{AllocationEntry, CheckReport, LeakedHandle};
use super::show::{attribute_text, block_owner};
use super::snapshot::IpamSnapshot;
use crate::failure::CommandResult;
use crate::release::CLIENT_VERSION;
use crate::session::{cluster_information, string_at};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use tortie_ipam::block::{self, AddressAllocation};
use tortie_ipam::owner::attribute;
use tortie_model::ipam::AddressBlock;
use tortie_store::ResourceClient;

/// Maximum number of nodes in the list of nodes with the most addresses.
const MAX_LISTED_NODES: usize = 20;

pub async fn check(args: &IpamCheckArgs, store: &ResourceClient, out: &mut dyn Write) -> CommandResult<()> {
    writeln!(out, "Checking IPAM for inconsistencies...\n")?;
    let mut snapshot = IpamSnapshot::load(args, store, out).await?;
    print_busy_nodes(&snapshot.blocks, out)?;
    out.flush()?;
    snapshot.confirm(args, store).await?;
    print_findings(&snapshot, args, out)?;
    if let Some(file) = &args.output {
        make_report(&cluster_information(store).await?, &snapshot).write(file)?;
    }
    writeln!(out, "Check complete; found {} problems.", snapshot.problems())?;
    Ok(())
}

/// Formats the attributes of an allocation: `Main:<handle> Extra:key=value,...`
pub fn attributes(allocation: &AddressAllocation<'_>) -> String {
    let Some(record) = allocation.record else { return "<missing>".to_owned() };
    if let Some(released) = record.released_at {
        return format!("Released:{released:.0}");
    }
    let extra: Vec<String> = record.secondary.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("Main:{} Extra:{}", record.handle().unwrap_or("<none>"), extra.join(","))
}

fn print_busy_nodes(blocks: &[AddressBlock], out: &mut dyn Write) -> CommandResult<()> {
    writeln!(out, "Looking for top (up to {MAX_LISTED_NODES}) nodes by allocations...")?;
    let mut by_node: BTreeMap<&str, usize> = BTreeMap::new();
    for block in blocks {
        for allocation in block::allocations(block) {
            let record = allocation.record.and_then(|record| record.secondary.get(attribute::NODE_ATTRIBUTE));
            if let Some(node) = record {
                *by_node.entry(node).or_default() += 1;
            }
        }
    }
    let mut busy: Vec<(&str, usize)> = by_node.into_iter().collect();
    busy.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), *node));
    for (node, count) in busy.iter().take(MAX_LISTED_NODES) {
        writeln!(out, "  {node} has {count} allocations")?;
    }
    if let (Some((_, most)), Some((_, median))) = (busy.first(), busy.get(busy.len() / 2)) {
        writeln!(out, "Node with most allocations has {most}; median is {median}")?;
    }
    writeln!(out)?;
    Ok(())
}

fn print_findings(snapshot: &IpamSnapshot, args: &IpamCheckArgs, out: &mut dyn Write) -> CommandResult<()> {
    let IpamSnapshot { blocks, users, findings, .. } = snapshot;
    let detail = args.show_problem_ips || args.show_all_ips;
    writeln!(out, "Scanning for IPs that are allocated but not actually in use...")?;
    for allocation in blocks.iter().flat_map(block::allocations).filter(|_| detail) {
        if findings.not_in_use.binary_search(&allocation.address).is_ok() {
            writeln!(out, "  {} leaked; attrs {}", allocation.address, attributes(&allocation))?;
        }
    }
    let leaked = findings.not_in_use.len();
    writeln!(out, "Found {leaked} IPs that are allocated in IPAM but not actually in use.")?;

    writeln!(out, "Scanning for IPs that are in use by a workload or node but not allocated in IPAM...")?;
    for address in findings.outside_pools.iter().filter(|_| detail) {
        writeln!(out, "  {address} in use by {} and not in any active pool", users.list(address))?;
    }
    for address in findings.not_allocated.iter().filter(|_| detail) {
        writeln!(
            out,
            "  {address} in use by {} and in an active pool but not allocated",
            users.list(address)
        )?;
    }
    writeln!(out, "Found {} in-use IPs that are not in active IP pools.", findings.outside_pools.len())?;
    let unrecorded = findings.not_allocated.len();
    writeln!(
        out,
        "Found {unrecorded} in-use IPs that are in active IP pools but have no corresponding IPAM allocation.\n"
    )?;

    writeln!(out, "Scanning for IPs with more than one live holder...")?;
    for (address, holders) in &users.conflicts {
        let holders: Vec<&str> = holders.iter().map(String::as_str).collect();
        writeln!(out, "  {address} is held by {}", holders.join(" and by "))?;
    }
    writeln!(out, "Found {} IPs with more than one live holder.\n", users.conflicts.len())?;

    writeln!(out, "Scanning for IPAM handles with no matching IPs...")?;
    for id in findings.leaked_handles.iter().filter(|_| detail) {
        writeln!(out, "  {id} has no addresses")?;
    }
    writeln!(
        out,
        "Found {} handles with no matching IPs (and {} handles with matches).",
        findings.leaked_handles.len(),
        findings.matched_handles
    )?;
    writeln!(out, "Scanning for IPs with missing handle...")?;
    for id in findings.missing_handles.iter().filter(|_| detail) {
        writeln!(out, "  {id} does not exist")?;
    }
    writeln!(
        out,
        "Found {} handles mentioned in blocks with no matching handle resource.",
        findings.missing_handles.len()
    )?;
    writeln!(out, "Validating IPAMBlock structures...")?;
    for (cidr, faults) in &findings.faults {
        for fault in faults {
            writeln!(out, "  {cidr} {fault}")?;
        }
    }
    writeln!(out, "Found {} invalid IPAMBlocks.", findings.faults.len())?;
    Ok(())
}

fn make_report(cluster: &Value, snapshot: &IpamSnapshot) -> CheckReport {
    let IpamSnapshot { blocks, users, handles, findings } = snapshot;
    let leaked = findings.leaked_handles.iter().filter_map(|id| {
        let revision = handles.get(id)?.revision.to_string();
        Some(LeakedHandle { id: id.clone(), uid: String::new(), revision })
    });
    let mut allocations: BTreeMap<String, Vec<AllocationEntry>> = BTreeMap::new();
    for allocation in blocks.iter().flat_map(block::allocations) {
        let node = attribute_text(&allocation, attribute::NODE_ATTRIBUTE);
        let owners = users.by_address.get(&allocation.address).cloned().unwrap_or_default();
        let entry = AllocationEntry {
            ip: allocation.address.to_string(),
            handle: allocation.handle().unwrap_or_default().to_owned(),
            sequence_number: allocation.sequence_number,
            pod: attribute_text(&allocation, attribute::POD_ATTRIBUTE),
            namespace: attribute_text(&allocation, attribute::NAMESPACE_ATTRIBUTE),
            borrowed: !node.is_empty() && block_owner(allocation.block) != Some(node.as_str()),
            node,
            kind: attribute_text(&allocation, attribute::TYPE_ATTRIBUTE),
            creation_timestamp: attribute_text(&allocation, attribute::TIMESTAMP_ATTRIBUTE),
            // An allocation whose leak was not confirmed is in use by a workload that comes or goes.
            in_use: !owners.is_empty()
                || !allocation.is_cooling_down()
                    && findings.not_in_use.binary_search(&allocation.address).is_err(),
            cooling_down: allocation.is_cooling_down(),
            owners,
        };
        allocations.entry(entry.ip.clone()).or_default().push(entry);
    }
    CheckReport {
        version: CLIENT_VERSION.to_owned(),
        cluster_guid: string_at(cluster, "/spec/clusterGUID").to_owned(),
        datastore_locked: cluster.pointer("/spec/datastoreReady") == Some(&Value::Bool(false)),
        cluster_information_revision: string_at(cluster, "/metadata/resourceVersion").to_owned(),
        cluster_type: string_at(cluster, "/spec/clusterType").to_owned(),
        allocations,
        leaked_handles: leaked.collect(),
    }
}
