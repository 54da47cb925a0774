//! `ipam check`: whether what is recorded as assigned is what is in use.

use super::Check;
use super::report::{Entry, LeakedHandle, Report};
use super::show::{block_owner, blocks, pools};
use crate::failure::Result;
use crate::release::CLIENT_VERSION;
use crate::session::{cluster_information, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::IpAddr;
use tortie_ipam::Ledger;
use tortie_ipam::audit::{self, Allocation, Findings};
use tortie_ipam::owner::{WINDOWS_RESERVED_HANDLE, attribute};
use tortie_model::Kind;
use tortie_model::ipam::Block;
use tortie_store::Resources;

/// How many nodes are named as having the most addresses.
const TOP: usize = 20;
/// Where a Node says the addresses of its tunnels.
const TUNNEL_FIELDS: [&str; 5] = [
    "/spec/bgp/ipv4IPIPTunnelAddr",
    "/spec/ipv4VXLANTunnelAddr",
    "/spec/ipv6VXLANTunnelAddr",
    "/spec/wireguard/interfaceIPv4Address",
    "/spec/wireguard/interfaceIPv6Address",
];

/// Who uses which address.
type Users = BTreeMap<IpAddr, Vec<String>>;

pub async fn check(args: &Check, store: &Resources, out: &mut dyn Write) -> Result<()> {
    let ledger = Ledger::new(store.client().clone());
    writeln!(out, "Checking IPAM for inconsistencies...\n")?;
    let blocks = list_blocks(&ledger, args, out).await?;
    let pools = pools(&ledger).await?;
    writeln!(out, "Loading all IPAM pools...")?;
    let active: Vec<_> = pools.iter().filter(|pool| pool.enabled).collect();
    for pool in &active {
        writeln!(out, "  {}", pool.cidr)?;
    }
    writeln!(out, "Found {} active IP pools.\n", active.len())?;

    let mut users = Users::new();
    list_tunnels(&ledger, &mut users, args, out).await?;
    list_services(&ledger, &blocks, &mut users, out).await?;
    list_workloads(store, &mut users, args, out).await?;
    for allocation in blocks.iter().flat_map(audit::allocations) {
        if allocation.handle() == Some(WINDOWS_RESERVED_HANDLE) {
            users.entry(allocation.address).or_default().push("Windows reserved".to_owned());
        }
    }

    writeln!(out, "Loading all handles")?;
    let handles = ledger.handles().await?;
    list_busy_nodes(&blocks, out)?;
    let in_use: BTreeSet<IpAddr> = users.keys().copied().collect();
    let records = handles.iter().map(|(id, standing)| (id.clone(), standing.value.clone())).collect();
    let findings = audit::compare(&blocks, &pools, &records, &in_use, jiff::Timestamp::now());
    print_findings(&findings, &blocks, &users, args, out)?;

    if let Some(file) = &args.output {
        let leaked = findings.leaked_handles.iter().filter_map(|id| {
            let revision = handles.get(id)?.revision.to_string();
            Some(LeakedHandle { id: id.clone(), uid: String::new(), revision })
        });
        let cluster = cluster_information(store).await?;
        make_report(&cluster, &blocks, &users, leaked.collect()).write(file)?;
    }
    writeln!(out, "Check complete; found {} problems.", findings.problems())?;
    Ok(())
}

async fn list_blocks(ledger: &Ledger, args: &Check, out: &mut dyn Write) -> Result<Vec<Block>> {
    writeln!(out, "Loading all IPAM blocks...")?;
    let blocks = blocks(ledger).await?;
    writeln!(out, "Found {} IPAM blocks.", blocks.len())?;
    let mut total = 0;
    for block in &blocks {
        let owner = block.affinity.as_deref().unwrap_or("<none>");
        writeln!(out, " IPAM block {} affinity={owner}:", block.cidr)?;
        for allocation in audit::allocations(block) {
            total += 1;
            if args.show_all_ips {
                writeln!(out, "  {} allocated; attrs {}", allocation.address, attributes(&allocation))?;
            }
        }
    }
    writeln!(out, "IPAM blocks record {total} allocations.\n")?;
    Ok(blocks)
}

/// `Main:<handle> Extra:key=value,...`
fn attributes(allocation: &Allocation<'_>) -> String {
    let Some(record) = allocation.record else { return "<missing>".to_owned() };
    if let Some(released) = record.released_at {
        return format!("Released:{released:.0}");
    }
    let extra: Vec<String> = record.secondary.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("Main:{} Extra:{}", record.handle().unwrap_or("<none>"), extra.join(","))
}

async fn list_tunnels(ledger: &Ledger, users: &mut Users, args: &Check, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "Loading all nodes.")?;
    let mut count = 0;
    for node in ledger.resources(Kind::Node).await? {
        let object = node.to_value();
        for field in TUNNEL_FIELDS {
            if let Ok(address) = text(&object, field).parse::<IpAddr>() {
                count += 1;
                use_address(users, address, format!("Node({})", node.metadata().name), args, out)?;
            }
        }
    }
    writeln!(out, "Found {count} node tunnel IPs.\n")?;
    Ok(())
}

/// Services live in Kubernetes, which this build does not read; what is recorded for them is left alone.
async fn list_services(
    ledger: &Ledger,
    blocks: &[Block],
    users: &mut Users,
    out: &mut dyn Write,
) -> Result<()> {
    writeln!(out, "Loading all service load balancer IPs.")?;
    let settings = ledger.resource(Kind::KubeControllersConfiguration, "default").await?;
    let settings = settings.map(|settings| settings.to_value());
    let managed = settings.as_ref().and_then(|object| object.pointer("/spec/controllers/loadBalancer"));
    if managed.is_none_or(Value::is_null) {
        writeln!(out, "No configuration for LoadBalancer kubecontroller found, skipping service check\n")?;
        return Ok(());
    }
    for allocation in blocks.iter().flat_map(audit::allocations) {
        if allocation.attribute(attribute::TYPE) == Some("LoadBalancer") {
            let name = |word: &str| allocation.attribute(word).unwrap_or_default().to_owned();
            let service = format!("Service({}/{})", name(attribute::NAMESPACE), name("service"));
            users.entry(allocation.address).or_default().push(service);
        }
    }
    writeln!(out, "Services of Kubernetes cannot be read, taking their addresses as in use\n")?;
    Ok(())
}

async fn list_workloads(
    store: &Resources,
    users: &mut Users,
    args: &Check,
    out: &mut dyn Write,
) -> Result<()> {
    writeln!(out, "Loading all workload endpoints.")?;
    let mut count = 0;
    for endpoint in store.list(Kind::WorkloadEndpoint, None).await?.items {
        let object = endpoint.to_value();
        let networks = object.pointer("/spec/ipNetworks").and_then(Value::as_array);
        for network in networks.into_iter().flatten().filter_map(Value::as_str) {
            let bare = network.split('/').next().unwrap_or_default();
            if let Ok(address) = bare.parse::<IpAddr>() {
                count += 1;
                let meta = endpoint.metadata();
                let workload = format!("Workload({}/{})", meta.namespace, meta.name);
                use_address(users, address, workload, args, out)?;
            }
        }
    }
    writeln!(out, "Found {count} workload IPs.")?;
    writeln!(out, "Workloads and nodes are using {} IPs.\n", users.len())?;
    Ok(())
}

fn use_address(
    users: &mut Users,
    address: IpAddr,
    user: String,
    args: &Check,
    out: &mut dyn Write,
) -> Result<()> {
    if args.show_all_ips {
        writeln!(out, "  {address} belongs to {user}")?;
    }
    users.entry(address).or_default().push(user);
    Ok(())
}

fn list_busy_nodes(blocks: &[Block], out: &mut dyn Write) -> Result<()> {
    writeln!(out, "Looking for top (up to {TOP}) nodes by allocations...")?;
    let mut by_node: BTreeMap<&str, usize> = BTreeMap::new();
    for block in blocks {
        for allocation in audit::allocations(block) {
            let record = allocation.record.and_then(|record| record.secondary.get(attribute::NODE));
            if let Some(node) = record {
                *by_node.entry(node).or_default() += 1;
            }
        }
    }
    let mut busy: Vec<(&str, usize)> = by_node.into_iter().collect();
    busy.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), *node));
    for (node, count) in busy.iter().take(TOP) {
        writeln!(out, "  {node} has {count} allocations")?;
    }
    if let (Some((_, most)), Some((_, median))) = (busy.first(), busy.get(busy.len() / 2)) {
        writeln!(out, "Node with most allocations has {most}; median is {median}")?;
    }
    writeln!(out)?;
    Ok(())
}

fn print_findings(
    findings: &Findings,
    blocks: &[Block],
    users: &Users,
    args: &Check,
    out: &mut dyn Write,
) -> Result<()> {
    let detail = args.show_problem_ips || args.show_all_ips;
    let used_by = |address: &IpAddr| users.get(address).map(|users| users.join(", ")).unwrap_or_default();
    writeln!(out, "Scanning for IPs that are allocated but not actually in use...")?;
    for allocation in blocks.iter().flat_map(audit::allocations).filter(|_| detail) {
        if findings.not_in_use.binary_search(&allocation.address).is_ok() {
            writeln!(out, "  {} leaked; attrs {}", allocation.address, attributes(&allocation))?;
        }
    }
    let leaked = findings.not_in_use.len();
    writeln!(out, "Found {leaked} IPs that are allocated in IPAM but not actually in use.")?;

    writeln!(out, "Scanning for IPs that are in use by a workload or node but not allocated in IPAM...")?;
    for address in findings.outside_pools.iter().filter(|_| detail) {
        writeln!(out, "  {address} in use by {} and not in any active pool", used_by(address))?;
    }
    for address in findings.not_allocated.iter().filter(|_| detail) {
        writeln!(out, "  {address} in use by {} and in an active pool but not allocated", used_by(address))?;
    }
    writeln!(out, "Found {} in-use IPs that are not in active IP pools.", findings.outside_pools.len())?;
    let unrecorded = findings.not_allocated.len();
    writeln!(
        out,
        "Found {unrecorded} in-use IPs that are in active IP pools but have no corresponding IPAM allocation.\n"
    )?;

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

fn make_report(cluster: &Value, blocks: &[Block], users: &Users, leaked: Vec<LeakedHandle>) -> Report {
    let mut allocations: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for allocation in blocks.iter().flat_map(audit::allocations) {
        let word = |name: &str| allocation.attribute(name).unwrap_or_default().to_owned();
        let node = word(attribute::NODE);
        let owners = users.get(&allocation.address).cloned().unwrap_or_default();
        let entry = Entry {
            ip: allocation.address.to_string(),
            handle: allocation.handle().unwrap_or_default().to_owned(),
            sequence_number: allocation.sequence_number,
            pod: word(attribute::POD),
            namespace: word(attribute::NAMESPACE),
            borrowed: !node.is_empty() && block_owner(allocation.block) != Some(node.as_str()),
            node,
            kind: word(attribute::TYPE),
            creation_timestamp: word(attribute::TIMESTAMP),
            in_use: !owners.is_empty(),
            cooling_down: allocation.is_cooling_down(),
            owners,
        };
        allocations.entry(entry.ip.clone()).or_default().push(entry);
    }
    Report {
        version: CLIENT_VERSION.to_owned(),
        cluster_guid: text(cluster, "/spec/clusterGUID").to_owned(),
        datastore_locked: cluster.pointer("/spec/datastoreReady") == Some(&Value::Bool(false)),
        cluster_information_revision: text(cluster, "/metadata/resourceVersion").to_owned(),
        cluster_type: text(cluster, "/spec/clusterType").to_owned(),
        allocations,
        leaked_handles: leaked,
    }
}
