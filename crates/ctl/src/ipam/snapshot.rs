//! The records of `ipam check`, read at one time, and the suspicions that they raise. The records cannot be read at
//! one revision, so that a workload that comes or goes while they are read looks like a problem. A suspicion counts only
//! if later reads raise it too.

use super::IpamCheckArgs;
use super::journal::AttachmentJournals;
use super::show::{list_blocks, list_pools};
use super::users::AddressUsers;
use crate::failure::CommandResult;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Duration;
use tortie_ipam::audit::{self, AuditFindings};
use tortie_ipam::block;
use tortie_ipam::pool::AllocationPool;
use tortie_ipam::{IpamRecords, VersionedValue};
use tortie_model::ipam::{AddressBlock, AddressHandle};
use tortie_store::ResourceClient;

/// Delays before the records are read again, as long as suspicions remain: longer than it takes to attach or detach a
/// container, with room for a busy cluster.
const CONFIRMATION_DELAYS: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_millis(750), Duration::from_secs(2)];
/// Further delays, as long as addresses are assigned or released between the reads: on a busy cluster it may take
/// seconds to attach or detach a container.
const BUSY_CONFIRMATION_DELAYS: [Duration; 3] =
    [Duration::from_secs(3), Duration::from_secs(5), Duration::from_secs(10)];

pub struct IpamSnapshot {
    pub blocks: Vec<AddressBlock>,
    pub users: AddressUsers,
    pub handles: BTreeMap<String, VersionedValue<AddressHandle>>,
    pub findings: AuditFindings,
}

/// One possible problem, with everything that distinguishes it from the same problem of a later workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Suspicion {
    NotInUse { address: IpAddr, handle: String, sequence_number: u64 },
    InUse { address: IpAddr, users: String },
    Conflict { address: IpAddr, holders: BTreeSet<String> },
    LeakedHandle { id: String, revision: String },
    MissingHandle { id: String },
    Fault { cidr: String, fault: String },
}

impl IpamSnapshot {
    /// Reads all records and prints their numbers.
    pub async fn load(
        args: &IpamCheckArgs,
        store: &ResourceClient,
        out: &mut dyn Write,
    ) -> CommandResult<IpamSnapshot> {
        let records = IpamRecords::new(store.client().clone());
        let blocks = load_blocks(&records, args, out).await?;
        let pools = load_pools(&records, out).await?;
        let journals = AttachmentJournals::load(&args.journal);
        let users = AddressUsers::load(store, &blocks, &journals, args.show_all_ips, out).await?;
        writeln!(out, "Loading all handles")?;
        let handles = records.handles().await?;
        let in_use: BTreeSet<IpAddr> = users.by_address.keys().copied().collect();
        let values = handles.iter().map(|(id, found)| (id.clone(), found.value.clone())).collect();
        let findings = audit::compare(&blocks, &pools, &values, &in_use, jiff::Timestamp::now());
        Ok(IpamSnapshot { blocks, users, handles, findings })
    }

    /// Drops the findings that later reads of the records do not confirm.
    pub async fn confirm(&mut self, args: &IpamCheckArgs, store: &ResourceClient) -> CommandResult<()> {
        let mut suspicions = self.suspicions();
        let mut versions = self.block_versions();
        let mut is_busy = true;
        for (index, delay) in CONFIRMATION_DELAYS.into_iter().chain(BUSY_CONFIRMATION_DELAYS).enumerate() {
            if suspicions.is_empty() || (index >= CONFIRMATION_DELAYS.len() && !is_busy) {
                break;
            }
            tokio::time::sleep(delay).await;
            let later = IpamSnapshot::load(args, store, &mut io::sink()).await?;
            let later_suspicions = later.suspicions();
            suspicions.retain(|suspicion| later_suspicions.contains(suspicion));
            let later_versions = later.block_versions();
            is_busy = later_versions != versions;
            versions = later_versions;
        }
        self.retain(&suspicions);
        Ok(())
    }

    /// Returns the problems found, without those that are only printed.
    pub fn problems(&self) -> usize {
        self.findings.problems() + self.users.conflicts.len()
    }

    /// Returns what differs after an address was assigned or released.
    fn block_versions(&self) -> BTreeSet<(String, u64)> {
        self.blocks.iter().map(|block| (block.cidr.to_string(), block.sequence_number)).collect()
    }

    fn suspicions(&self) -> BTreeSet<Suspicion> {
        let findings = &self.findings;
        let mut all = self.unused_allocations();
        all.extend(
            findings.outside_pools.iter().chain(&findings.not_allocated).map(|address| self.in_use(*address)),
        );
        all.extend(self.users.conflicts.iter().map(|(address, holders)| build_conflict(*address, holders)));
        all.extend(findings.leaked_handles.iter().map(|id| self.leaked_handle(id)));
        all.extend(findings.missing_handles.iter().map(|id| Suspicion::MissingHandle { id: id.clone() }));
        let faults = findings
            .faults
            .iter()
            .flat_map(|(cidr, faults)| faults.iter().map(move |f| build_fault(cidr, f)));
        all.extend(faults);
        all
    }

    fn retain(&mut self, confirmed: &BTreeSet<Suspicion>) {
        let unused: BTreeSet<IpAddr> = self
            .unused_allocations()
            .intersection(confirmed)
            .filter_map(|suspicion| match suspicion {
                Suspicion::NotInUse { address, .. } => Some(*address),
                _ => None,
            })
            .collect();
        let mut findings = std::mem::take(&mut self.findings);
        findings.not_in_use.retain(|address| unused.contains(address));
        findings.outside_pools.retain(|address| confirmed.contains(&self.in_use(*address)));
        findings.not_allocated.retain(|address| confirmed.contains(&self.in_use(*address)));
        findings.leaked_handles.retain(|id| confirmed.contains(&self.leaked_handle(id)));
        findings
            .missing_handles
            .retain(|id| confirmed.contains(&Suspicion::MissingHandle { id: id.clone() }));
        for (cidr, faults) in &mut findings.faults {
            faults.retain(|text| confirmed.contains(&build_fault(cidr, text)));
        }
        findings.faults.retain(|_, faults| !faults.is_empty());
        self.users
            .conflicts
            .retain(|address, holders| confirmed.contains(&build_conflict(*address, holders)));
        self.findings = findings;
    }

    fn unused_allocations(&self) -> BTreeSet<Suspicion> {
        let allocations = self.blocks.iter().flat_map(block::allocations);
        let unused =
            allocations.filter(|found| self.findings.not_in_use.binary_search(&found.address).is_ok());
        unused
            .map(|found| Suspicion::NotInUse {
                address: found.address,
                handle: found.handle().unwrap_or_default().to_owned(),
                sequence_number: found.sequence_number,
            })
            .collect()
    }

    fn in_use(&self, address: IpAddr) -> Suspicion {
        Suspicion::InUse { address, users: self.users.list(&address) }
    }

    fn leaked_handle(&self, id: &str) -> Suspicion {
        let revision = self.handles.get(id).map(|found| found.revision.to_string()).unwrap_or_default();
        Suspicion::LeakedHandle { id: id.to_owned(), revision }
    }
}

fn build_conflict(address: IpAddr, holders: &BTreeSet<String>) -> Suspicion {
    Suspicion::Conflict { address, holders: holders.clone() }
}

fn build_fault(cidr: &str, fault: &str) -> Suspicion {
    Suspicion::Fault { cidr: cidr.to_owned(), fault: fault.to_owned() }
}

async fn load_pools(records: &IpamRecords, out: &mut dyn Write) -> CommandResult<Vec<AllocationPool>> {
    let pools = list_pools(records).await?;
    writeln!(out, "Loading all IPAM pools...")?;
    let active: Vec<_> = pools.iter().filter(|pool| pool.enabled).collect();
    for pool in &active {
        writeln!(out, "  {}", pool.cidr)?;
    }
    writeln!(out, "Found {} active IP pools.\n", active.len())?;
    Ok(pools)
}

async fn load_blocks(
    records: &IpamRecords,
    args: &IpamCheckArgs,
    out: &mut dyn Write,
) -> CommandResult<Vec<AddressBlock>> {
    writeln!(out, "Loading all IPAM blocks...")?;
    let blocks = list_blocks(records).await?;
    writeln!(out, "Found {} IPAM blocks.", blocks.len())?;
    let mut total = 0;
    for block in &blocks {
        let owner = block.affinity.as_deref().unwrap_or("<none>");
        writeln!(out, " IPAM block {} affinity={owner}:", block.cidr)?;
        for allocation in block::allocations(block) {
            total += 1;
            if args.show_all_ips {
                let attributes = super::check::attributes(&allocation);
                writeln!(out, "  {} allocated; attrs {attributes}", allocation.address)?;
            }
        }
    }
    writeln!(out, "IPAM blocks record {total} allocations.\n")?;
    Ok(blocks)
}
