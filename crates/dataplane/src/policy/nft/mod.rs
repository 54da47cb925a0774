//! Policy in the kernel: the nf_tables tables `inet tortie` and `arp tortie`.
//!
//! `render` turns the plan into chains and sets, `diff` compares them with the kernel's, `message` and `expression`
//! encode the difference, and `kernel` sends it as one transaction, for both tables at once if possible. [`NftablesEngine`]
//! combines them.

mod blame;
mod counters;
mod diff;
mod expression;
pub(crate) mod foreign;
mod guarded;
mod kernel;
mod message;
mod offload;
mod ranges;
mod render;
mod rule;
mod state;
mod table;
mod writer;

pub(super) use counters::counters;
pub(super) use guarded::guarded_endpoints;
pub(crate) use kernel::{ChangedTables, TableEventStream};

use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelFailure;
use crate::netns::Netns;
use crate::policy::{FlowInterfaces, PolicyStats};
use foreign::ForeignChains;
use kernel::{NftablesClient, TransactionRejection};
use message::TableOperation;
use offload::FlowtableOffload;
use render::names;
use rule::NftFamily;
use state::PolicyTableState;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use table::TableFamily;
use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate};
use writer::{TableFailure, TableWriter};

/// Chain of older versions.
const HOST_TRANSLATION_CHAIN: &str = "floating-out";

/// Removes the tables if they exist, so that nothing is enforced any more. For hosts that are no longer nodes.
pub(super) async fn remove(netns: &Netns) -> DataplaneResult<()> {
    foreign::remove(netns).await?;
    offload::remove(netns).await?;
    let tables = [TableFamily::Inet, TableFamily::Arp];
    let kernel = NftablesClient::open(netns, TableFamily::Inet)?;
    // A packet keeps the rules with which it entered a chain, but deleted elements disappear for it immediately, and
    // the rule behind a map drops packets that the map does not match. So the rules are removed first, all in one
    // transaction.
    let mut entries = Vec::new();
    for family in tables {
        entries.push((family, kernel.base_chains(family).await?));
    }
    let flushes: Vec<_> = entries
        .iter()
        .map(|(family, chains)| {
            (*family, chains.iter().map(|name| TableOperation::FlushChain { name }).collect())
        })
        .collect();
    if entries.iter().any(|(_, chains)| !chains.is_empty()) {
        // A rejection here is repeated below, with the reason.
        let _ = kernel.commit_together(&flushes).await;
    }
    for family in tables {
        // Adding an existing table has no effect, so this works whether the table exists or not.
        let operations = [TableOperation::AddTable, TableOperation::DeleteTable];
        let refused = |refusal: TransactionRejection| DataplaneError::Kernel {
            object: family.object(),
            reason: refusal.reason,
        };
        NftablesClient::open(netns, family)?.commit(&operations).await.map_err(refused)?;
    }
    Ok(())
}

/// Removes the chain that translated packets from the host itself to floating addresses, and returns those addresses.
pub(super) async fn remove_host_translation(netns: &Netns) -> DataplaneResult<BTreeSet<IpAddr>> {
    let kernel = NftablesClient::open(netns, TableFamily::Inet)?;
    if !kernel.has_chain(HOST_TRANSLATION_CHAIN).await? {
        return Ok(BTreeSet::new());
    }
    let (_, elements) = kernel.read().await?;
    let operations = [
        TableOperation::FlushChain { name: HOST_TRANSLATION_CHAIN },
        TableOperation::DeleteChain { name: HOST_TRANSLATION_CHAIN },
    ];
    let object = TableFamily::Inet.object();
    let refused = |refusal: TransactionRejection| DataplaneError::Kernel { object, reason: refusal.reason };
    kernel.commit(&operations).await.map_err(refused)?;
    let sets = NftFamily::BOTH.map(|family| names::floating("external", family));
    let keys = sets.iter().filter_map(|set| elements.get(set)).flatten();
    Ok(keys.filter_map(|element| address(&element.key)).collect())
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

pub(crate) struct NftablesEngine {
    policy: TableWriter,
    arp: TableWriter,
    foreign: ForeignChains,
    offload: FlowtableOffload,
    flows: FlowInterfaces,
    state: PolicyTableState,
    /// Whether a complete plan has been received: nothing is changed before that.
    in_force: bool,
}

impl NftablesEngine {
    pub fn open(
        netns: &Netns,
        settings: DataplaneSettings,
    ) -> DataplaneResult<(NftablesEngine, TableEventStream)> {
        let policy = TableWriter::open(netns, TableFamily::Inet)?;
        let arp = TableWriter::open(netns, TableFamily::Arp)?;
        let foreign = ForeignChains::open(netns)?;
        let offload = FlowtableOffload::open(netns)?;
        let events =
            TableEventStream::open(netns, [policy.port(), arp.port(), foreign.port(), offload.port()])?;
        let (state, flows) = (PolicyTableState::new(settings), FlowInterfaces::default());
        Ok((NftablesEngine { policy, arp, foreign, offload, flows, state, in_force: false }, events))
    }

    pub fn configure(&mut self, settings: DataplaneSettings) {
        self.state.configure(settings);
        self.writers().into_iter().for_each(TableWriter::diff_changed);
    }

    pub fn replace(&mut self, plan: &NodePlan) {
        self.state.replace(plan);
        self.in_force = true;
        self.writers().into_iter().for_each(TableWriter::diff_changed);
    }

    pub fn apply(&mut self, update: &PlanUpdate) {
        if self.state.apply(update) {
            self.writers().into_iter().for_each(TableWriter::diff_changed);
        }
    }

    fn writers(&mut self) -> [&mut TableWriter; 2] {
        [&mut self.policy, &mut self.arp]
    }

    pub fn stats(&self) -> PolicyStats {
        self.policy.stats
    }

    /// Returns the objects that the kernel rejects, with the reason; chains that depend on them drop all packets.
    pub fn refused(&self) -> Vec<KernelFailure> {
        self.state.refused()
    }

    /// Returns the reason if the kernel does not enforce the plan.
    pub fn table_failure(&self) -> Option<KernelFailure> {
        self.failed_tables().next().map(TableFailure::failure)
    }

    fn failed_tables(&self) -> impl Iterator<Item = &TableFailure> {
        [&self.policy, &self.arp].into_iter().filter_map(TableWriter::failure)
    }

    /// Whether the kernel enforces the complete plan, except for rejected objects: chains that depend on those drop all
    /// packets.
    pub fn is_settled(&self) -> bool {
        self.in_force && self.failed_tables().next().is_none()
    }

    /// Returns the host endpoints with the interfaces of each; `None` means all interfaces.
    pub fn host_endpoints(&self) -> BTreeMap<String, Option<Vec<String>>> {
        self.state.host_endpoints()
    }

    /// Whether [`NftablesEngine::interfaces_are`] has any effect.
    pub fn needs_interfaces(&self) -> bool {
        self.state.has_hosts()
    }

    /// Sets the interfaces that do not belong to workloads, and their addresses.
    pub fn interfaces_are(&mut self, interfaces: BTreeMap<String, Vec<IpAddr>>) {
        self.state.interfaces_are(interfaces);
    }

    /// Whether [`NftablesEngine::flow_interfaces_are`] has any effect.
    pub fn offloads(&self) -> bool {
        self.state.settings().policy.flow_offload
    }

    pub fn flow_interfaces_are(&mut self, interfaces: FlowInterfaces) {
        self.flows = interfaces;
    }

    /// Returns the reason why flows are not offloaded although the settings request it.
    pub fn not_offloaded(&self) -> Option<KernelFailure> {
        self.offload.failure().cloned()
    }

    /// Marks tables as stale that another program may have changed.
    pub fn invalidate(&mut self, changed: ChangedTables) {
        self.offload.invalidate();
        if changed.ours {
            self.writers().into_iter().for_each(TableWriter::invalidate);
        }
        if changed.theirs {
            self.foreign.invalidate();
        }
    }

    /// Returns the chains of other programs that may drop packets which policy allows.
    pub fn overruled(&self) -> Vec<KernelFailure> {
        self.foreign.failures()
    }

    /// Makes the kernel's tables match the desired ones, in one transaction if possible.
    pub async fn converge(&mut self, now: Duration) -> Vec<KernelFailure> {
        if !self.in_force {
            return Vec::new();
        }
        self.state.render();
        let PolicyTableState { diff, arp, .. } = &mut self.state;
        if !self.policy.converge_with(diff, &mut self.arp, arp).await {
            self.policy.converge(diff, now).await;
            self.arp.converge(arp, now).await;
        }
        // Foreign chains must not accept by the mark before our table sets it.
        if self.is_settled() {
            self.foreign.converge(&self.state.allowed, now).await;
        }
        // Only flows that the rules have evaluated may be offloaded.
        let flows = (self.offloads() && self.is_settled()).then_some(&self.flows);
        self.offload.converge(flows, &self.state.settings().interface_prefixes, now).await;
        let mut failures = self.state.refused();
        for failed in self.failed_tables() {
            // The objects that the kernel named come first: they are more specific for a caller that waits for a
            // workload.
            failures.extend(failed.culprits.iter().map(|culprit| self.state.failure_of(culprit)));
            failures.push(failed.failure());
        }
        failures
    }
}
