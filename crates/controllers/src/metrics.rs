//! Metrics page of the controllers: addresses by pool and node, with the metric names of calico-kube-controllers.

use crate::absence::AbsenceCounters;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_http::MetricsPage;
use tortie_ipam::owner::{WINDOWS_RESERVED_HANDLE, attribute};
use tortie_ipam::pool::AllocationPool;
use tortie_ipam::{block, space};
use tortie_model::ipam::AddressBlock;

const NO_POOL_LABEL: &str = "no_ippool";
const UNKNOWN_NODE_LABEL: &str = "unknown_node";
const NO_AFFINITY_LABEL: &str = "no_affinity";

/// Pool and node of an address.
pub type PoolAndNode = (String, String);

/// Counters of the leading replica since it became the leader.
#[derive(Debug, Default)]
pub struct ControllerCounters {
    pub reclaimed: BTreeMap<PoolAndNode, u64>,
    pub scans: u64,
    pub scan_seconds: f64,
    pub suspects: usize,
    pub failures: u64,
    /// Number of compactions of the datastore, and the last compacted revision.
    pub compactions: u64,
    pub compacted: u64,
    pub renamed_policies: u64,
    pub misnamed_policies: usize,
    pub absence: AbsenceCounters,
    /// Actions that are withheld because too many objects are missing at once.
    pub withheld: usize,
}

/// Returns the pool and the node of an address as label values.
pub fn find_pool_and_node(
    pools: &BTreeMap<String, AllocationPool>,
    blocks: &[&AddressBlock],
    address: IpAddr,
) -> PoolAndNode {
    let block = blocks.iter().find(|block| block.cidr.contains(&address));
    let record = block.and_then(|block| block::record(block, address));
    let node = record.and_then(|record| record.secondary.get(attribute::NODE_ATTRIBUTE));
    (find_pool_name(pools, address), node.cloned().unwrap_or_else(|| UNKNOWN_NODE_LABEL.to_owned()))
}

fn find_pool_name(pools: &BTreeMap<String, AllocationPool>, address: IpAddr) -> String {
    let pool = pools.values().find(|pool| pool.cidr.contains(&address));
    pool.map_or_else(|| NO_POOL_LABEL.to_owned(), |pool| pool.name.clone())
}

/// Numbers of addresses and blocks.
#[derive(Debug, Default)]
struct AddressCounts {
    in_use: BTreeMap<PoolAndNode, u64>,
    borrowed: BTreeMap<PoolAndNode, u64>,
    /// Blocks of each node.
    owned: BTreeMap<PoolAndNode, u64>,
}

fn count_addresses<'a>(
    pools: &BTreeMap<String, AllocationPool>,
    blocks: impl IntoIterator<Item = &'a AddressBlock>,
) -> AddressCounts {
    let mut counts = AddressCounts::default();
    for block in blocks {
        let pool = find_pool_name(pools, block.cidr.network());
        let owner = block.owner().map_or(NO_AFFINITY_LABEL, |(_, name)| name);
        *counts.owned.entry((pool.clone(), owner.to_owned())).or_default() += 1;
        for allocation in block::allocations(block).filter(|allocation| !allocation.is_cooling_down()) {
            if allocation.handle() == Some(WINDOWS_RESERVED_HANDLE) {
                continue;
            }
            let node = allocation.attribute(attribute::NODE_ATTRIBUTE).unwrap_or(UNKNOWN_NODE_LABEL);
            let labels = (pool.clone(), node.to_owned());
            if node != owner && node != UNKNOWN_NODE_LABEL {
                *counts.borrowed.entry(labels.clone()).or_default() += 1;
            }
            *counts.in_use.entry(labels).or_default() += 1;
        }
    }
    counts
}

/// Renders the metrics page.
pub fn render_page<'a>(
    pools: &BTreeMap<String, AllocationPool>,
    blocks: impl IntoIterator<Item = &'a AddressBlock>,
    counters: &ControllerCounters,
    is_leader: bool,
) -> String {
    let AddressCounts { in_use, borrowed, owned } = count_addresses(pools, blocks);
    let mut page = MetricsPage::default();
    for (name, kind, help, counts) in [
        (
            "ipam_allocations_in_use",
            "gauge",
            "IPs currently allocated in IPAM to a workload or tunnel.",
            &in_use,
        ),
        (
            "ipam_allocations_borrowed",
            "gauge",
            "IPs currently allocated in IPAM to a workload or tunnel on another node.",
            &borrowed,
        ),
        ("ipam_blocks", "gauge", "IPAM blocks currently allocated to the node.", &owned),
        (
            "ipam_allocations_gc_reclamations",
            "counter",
            "IPs reclaimed by garbage collection.",
            &counters.reclaimed,
        ),
    ] {
        page.begin_metric(name, kind, help);
        for ((pool, node), count) in counts {
            page.add_sample(name, &[("ippool", pool), ("node", node)], count);
        }
    }
    for (name, help, counts) in [
        ("ipam_allocations_per_node", "Number of IPs allocated in IPAM per node.", &in_use),
        (
            "ipam_allocations_borrowed_per_node",
            "Number of IPs allocated from non-affine blocks per node.",
            &borrowed,
        ),
        ("ipam_blocks_per_node", "Number of IPAM blocks per node.", &owned),
    ] {
        let mut by_node: BTreeMap<&str, u64> = BTreeMap::new();
        counts.iter().for_each(|((_, node), count)| *by_node.entry(node).or_default() += count);
        page.begin_metric(name, "gauge", help);
        by_node.iter().for_each(|(node, count)| page.add_sample(name, &[("node", node)], count));
    }
    page.begin_metric("ipam_ippool_size", "gauge", "Total number of addresses in the IP pool.");
    for pool in pools.values() {
        page.add_sample("ipam_ippool_size", &[("ippool", &pool.name)], space::size(&pool.cidr) as f64);
    }
    tortie_http::add_metrics! { page;
        gauge "tortie_controllers_leader", "1 if this replica leads." => u8::from(is_leader);
        gauge "tortie_controllers_gc_suspects", "Addresses that look leaked." => counters.suspects;
        counter "tortie_controllers_gc_scans_total", "Scans of all addresses." => counters.scans;
        gauge "tortie_controllers_gc_scan_seconds", "How long the last scan took." => counters.scan_seconds;
        counter "tortie_controllers_failures_total", "Actions that failed and are retried." => counters.failures;
        counter "tortie_controllers_compactions_total", "Compactions of the history of etcd." => counters.compactions;
        gauge "tortie_controllers_compacted_revision", "Revision up to which the history of etcd is compacted." => counters.compacted;
        gauge "tortie_controllers_policies_misnamed", "Policies whose custom resource has a different name." => counters.misnamed_policies;
        counter "tortie_controllers_policies_renamed_total", "Policies whose custom resource was renamed." => counters.renamed_policies;
        counter "tortie_controllers_absence_proofs_total",
            "Objects that were read to prove that they do not exist, before dependent objects were deleted or addresses released." => counters.absence.proofs;
        counter "tortie_controllers_absence_contradictions_total", "Objects that were missing from a list and exist." => counters.absence.contradictions;
        counter "tortie_controllers_absence_failures_total", "Reads that could not determine whether an object exists." => counters.absence.failures;
        gauge "tortie_controllers_absence_withheld",
            "Releases and deletions that are withheld because a large share of objects is missing." => counters.withheld;
    }
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tortie_ipam::reservation::ReservedRanges;
    use tortie_ipam::{AddressHolder, BlockOwner};
    use tortie_model::{Kind, Resource, StoreKey, StoreValue};

    #[test]
    fn addresses_are_counted_by_pool_and_node() {
        let key = StoreKey::resource(Kind::IPPool, "", "p");
        let text =
            json!({"metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/24", "blockSize": 29}}).to_string();
        let Ok(StoreValue::Resource(Resource::IPPool(pool))) = StoreValue::decode(&key, text.as_bytes())
        else {
            panic!()
        };
        let pools = BTreeMap::from([("p".to_owned(), AllocationPool::of(&pool).unwrap())]);
        let mut block = block::fresh(
            "10.0.0.0/29".parse().unwrap(),
            &BlockOwner::host("n1"),
            None,
            jiff::Timestamp::UNIX_EPOCH,
        );
        for (handle, node) in [("a", "n1"), ("b", "n\"2")] {
            let attributes = BTreeMap::from([(attribute::NODE_ATTRIBUTE.to_owned(), node.to_owned())]);
            block::allocate(
                &mut block,
                2,
                &AddressHolder::new(Some(handle), attributes),
                &ReservedRanges::new([]),
            );
        }
        let stray = block::fresh(
            "10.9.0.0/29".parse().unwrap(),
            &BlockOwner::host("n1"),
            None,
            jiff::Timestamp::UNIX_EPOCH,
        );
        let address = "10.0.0.0".parse().unwrap();
        let mut counters = ControllerCounters { suspects: 3, ..ControllerCounters::default() };
        counters.reclaimed.insert(find_pool_and_node(&pools, &[&block], address), 7);
        let text = render_page(&pools, [&block, &stray], &counters, true);
        for line in [
            "ipam_allocations_in_use{ippool=\"p\",node=\"n1\"} 2",
            "ipam_allocations_borrowed{ippool=\"p\",node=\"n\\\"2\"} 2",
            "ipam_blocks{ippool=\"no_ippool\",node=\"n1\"} 1",
            "ipam_blocks_per_node{node=\"n1\"} 2",
            "ipam_ippool_size{ippool=\"p\"} 256",
            "ipam_allocations_gc_reclamations{ippool=\"p\",node=\"n1\"} 7",
            "tortie_controllers_leader 1",
            "tortie_controllers_gc_suspects 3",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }
}
