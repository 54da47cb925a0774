//! `ipam release`: releases one address, or the addresses that reports list as leaked.

use super::journal::AttachmentJournals;
use super::report::{CheckReport, LeakedAllocation, LeakedHandle};
use super::show::list_blocks;
use super::users::AddressUsers;
use super::{IpamReleaseArgs, build_allocator, parse_address};
use crate::failure::{CommandError, CommandResult};
use crate::release::{CLIENT_VERSION, same};
use crate::session::{cluster_information, string_at};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use tortie_ipam::{IpamRecords, block};
use tortie_model::StoreKey;
use tortie_model::ipam::AddressBlock;
use tortie_store::{ResourceClient, StoreError};

pub async fn release(
    args: &IpamReleaseArgs,
    store: &ResourceClient,
    out: &mut dyn Write,
) -> CommandResult<()> {
    match &args.ip {
        Some(ip) => release_address(ip, args, store, out).await,
        None => release_leaks(args, store, out).await,
    }
}

async fn release_address(
    ip: &str,
    args: &IpamReleaseArgs,
    store: &ResourceClient,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let address = parse_address(ip)?;
    if let Some(attachment) = AttachmentJournals::load(&args.journal).holder(address).filter(|_| !args.force)
    {
        return Err(CommandError::message(format!(
            "IP address {address} is in use: container {} on this host has it; remove the container first (--force \
             releases nevertheless)",
            attachment.container_id
        )));
    }
    let report = build_allocator(store).release(&[block::ReleaseRequest::of(address)]).await?;
    if let Some(error) = report.error {
        return Err(error.into());
    }
    if report.released.is_empty() {
        return Err(CommandError::message(format!("IP address {address} is not assigned")));
    }
    writeln!(out, "Successfully released IP address {address}")?;
    Ok(())
}

async fn release_leaks(
    args: &IpamReleaseArgs,
    store: &ResourceClient,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let reports =
        args.from_report.iter().map(|file| CheckReport::read(file)).collect::<CommandResult<Vec<_>>>()?;
    let cluster = cluster_information(store).await?;
    check_reports(args, &reports, &cluster, out)?;

    let leaks = intersect(&reports, |report| report.leaks().collect());
    writeln!(out, "Releasing {} old IPs...", leaks.len())?;
    let blocks = list_blocks(&IpamRecords::new(store.client().clone())).await?;
    let allocated = list_current_allocations(&blocks);
    let (left, gone): (Vec<LeakedAllocation>, Vec<LeakedAllocation>) =
        leaks.into_iter().partition(|leak| allocated.contains(leak));
    // The report may be older than a workload, and it may have been made on a host that cannot see the
    // attachments of this host.
    let journals = AttachmentJournals::load(&args.journal);
    let users = AddressUsers::load(store, &blocks, &journals, false, &mut std::io::sink()).await?;
    let (kept, left): (Vec<LeakedAllocation>, Vec<LeakedAllocation>) =
        left.into_iter().partition(|leak| users.by_address.contains_key(&leak.address));
    for leak in &kept {
        writeln!(out, "Kept {}: it is in use by {}", leak.address, users.list(&leak.address))?;
    }
    let wanted: Vec<block::ReleaseRequest> = left
        .into_iter()
        .map(|LeakedAllocation { address, handle, sequence_number }| block::ReleaseRequest {
            address,
            handle: Some(handle).filter(|handle| !handle.is_empty()),
            sequence_number: Some(sequence_number),
        })
        .collect();
    let released = build_allocator(store).release(&wanted).await?;
    if let Some(error) = released.error {
        return Err(CommandError::context("failed to release IPs", error));
    }
    writeln!(out, "Released {} IPs successfully", released.released.len())?;
    let gone = gone.len() + released.unallocated.len();
    if gone > 0 {
        writeln!(out, "{gone} addresses marked as leaked in the report had already been cleaned up.")?;
    }
    let handles = intersect(&reports, |report| {
        report.leaked_handles.iter().map(|handle| (handle.id.clone(), handle.revision.clone())).collect()
    });
    let handles: Vec<LeakedHandle> = handles
        .into_iter()
        .map(|(id, revision)| LeakedHandle { id, revision, ..LeakedHandle::default() })
        .collect();
    delete_handles(&handles, store, out).await?;
    writeln!(out, "You may now unlock the data store.")?;
    Ok(())
}

/// Returns the current allocations. The sequence number distinguishes an allocation from an earlier one of
/// the same address.
fn list_current_allocations(blocks: &[AddressBlock]) -> BTreeSet<LeakedAllocation> {
    let allocations = blocks.iter().flat_map(block::allocations);
    allocations
        .filter(|allocation| !allocation.is_cooling_down())
        .map(|allocation| LeakedAllocation {
            address: allocation.address,
            handle: allocation.handle().unwrap_or_default().to_owned(),
            sequence_number: allocation.sequence_number,
        })
        .collect()
}

/// Returns the items that all reports contain: any other item was in use at some time, or was added later.
fn intersect<T: Ord>(reports: &[CheckReport], items: impl Fn(&CheckReport) -> BTreeSet<T>) -> BTreeSet<T> {
    let Some((first, others)) = reports.split_first() else { return BTreeSet::new() };
    let mut common = items(first);
    for report in others {
        let found = items(report);
        common.retain(|item| found.contains(item));
    }
    common
}

fn check_reports(
    args: &IpamReleaseArgs,
    reports: &[CheckReport],
    cluster: &Value,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let guid = string_at(cluster, "/spec/clusterGUID");
    if let Some(other) = reports.iter().find(|report| report.cluster_guid != guid) {
        return Err(CommandError::message(format!(
            "the report is of another cluster: its GUID is {}, the GUID of this cluster is {guid}",
            other.cluster_guid
        )));
    }
    let mut doubts = Vec::new();
    if let Some(other) = reports.iter().find(|report| !same(&report.version, CLIENT_VERSION)) {
        doubts.push(format!(
            "the report was made by version {}, this is version {CLIENT_VERSION}",
            other.version
        ));
    }
    if cluster.pointer("/spec/datastoreReady") != Some(&Value::Bool(false)) {
        doubts.push(
            "the datastore is not locked: run 'calicoctl datastore migrate lock', then make a report"
                .to_owned(),
        );
    }
    for doubt in doubts {
        if !args.force {
            return Err(CommandError::message(format!("{doubt} (--force releases nevertheless)")));
        }
        writeln!(out, "WARNING: {doubt}")?;
    }
    let revision = string_at(cluster, "/metadata/resourceVersion");
    if !reports.iter().any(|report| report.cluster_information_revision == revision) {
        return Err(CommandError::message(
            "no report is of the present state: ClusterInformation has changed since; run 'calicoctl ipam check' again",
        ));
    }
    Ok(())
}

async fn delete_handles(
    handles: &[LeakedHandle],
    store: &ResourceClient,
    out: &mut dyn Write,
) -> CommandResult<()> {
    if handles.is_empty() {
        return Ok(());
    }
    writeln!(out, "Deleting {} handles...", handles.len())?;
    writeln!(out, "Key: '.' = deleted, 'x' = skipped, it has changed since the report")?;
    let mut deleted = 0;
    let mut skipped = 0;
    let mut errors = 0;
    for handle in handles {
        let key = StoreKey::Handle { id: handle.id.clone() };
        let result = match handle.revision.parse() {
            Ok(revision) => store.client().delete(&key, Some(&revision)).await,
            Err(_) => Err(StoreError::DoesNotExist { id: key.to_string(), reason: "no revision".to_owned() }),
        };
        match result {
            Ok(_) => {
                deleted += 1;
                write!(out, ".")?;
            }
            Err(StoreError::DoesNotExist { .. } | StoreError::Conflict { .. }) => {
                skipped += 1;
                write!(out, "x")?;
            }
            Err(error) => {
                errors += 1;
                writeln!(out, "\n{error}")?;
            }
        }
    }
    writeln!(out, "\nReleased {deleted} handles; {skipped} skipped; {errors} errors.")?;
    Ok(())
}
