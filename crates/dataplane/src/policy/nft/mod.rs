//! Policy in the kernel: the nf_tables tables `inet tortie` and `arp tortie`.
//!
//! `render` turns the plan into chains and sets, `diff` compares them with the kernel's, `message` and `expression`
//! encode the difference, and `kernel` sends it as one transaction, for both tables at once if possible. [`NftablesEngine`]
//! combines them.

mod blame;
mod counters;
mod diff;
mod expression;
mod flow;
pub mod foreign;
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

pub use counters::read_counters;
#[doc(hidden)]
pub use flow::describe_flow_message;
pub use guarded::guarded_endpoints;

use crate::error::DataplaneResult;
use crate::failure::KernelFailure;
use crate::flow::FlowSource;
use crate::netns::Netns;
use crate::policy::{FlowInterfaces, PolicyEngine, PolicyEvent, PolicyStats};
use flow::NftFlowSource;
use foreign::ForeignChains;
use futures::FutureExt;
use futures::future::BoxFuture;
use kernel::{NftablesClient, TableEventStream};
use message::TableOperation;
use offload::FlowtableOffload;
use render::names;
use rule::NftFamily;
use state::{PolicyTableState, PolicyTables};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use table::{TableFamily, parse_address};
use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate};
use writer::{TableFailure, TableWriter};

/// Chain of older versions.
const HOST_TRANSLATION_CHAIN: &str = "floating-out";

/// Removes the tables if they exist, so that nothing is enforced any more. For hosts that are no longer nodes.
pub async fn remove_policy(netns: &Netns) -> DataplaneResult<()> {
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
        NftablesClient::open(netns, family)?.write(&operations).await?;
    }
    Ok(())
}

/// Removes the chain that translated packets from the host itself to floating addresses, and returns those addresses.
pub async fn remove_host_translation(netns: &Netns) -> DataplaneResult<BTreeSet<IpAddr>> {
    let kernel = NftablesClient::open(netns, TableFamily::Inet)?;
    if !kernel.has_chain(HOST_TRANSLATION_CHAIN).await? {
        return Ok(BTreeSet::new());
    }
    let (_, elements) = kernel.read().await?;
    let operations = [
        TableOperation::FlushChain { name: HOST_TRANSLATION_CHAIN },
        TableOperation::DeleteChain { name: HOST_TRANSLATION_CHAIN },
    ];
    kernel.write(&operations).await?;
    let sets = NftFamily::BOTH.map(|family| names::floating("external", family));
    let keys = sets.iter().filter_map(|set| elements.get(set)).flatten();
    Ok(keys.filter_map(|element| parse_address(&element.key)).collect())
}

pub struct NftablesEngine {
    policy: TableWriter,
    arp: TableWriter,
    foreign: ForeignChains,
    offload: FlowtableOffload,
    flows: FlowInterfaces,
    flow_source: NftFlowSource,
    /// Whether the plan or the settings have changed since the last convergence.
    has_changed: bool,
    state: PolicyTableState,
    events: TableEventStream,
    /// Whether a complete plan has been received: nothing is changed before that.
    in_force: bool,
}

impl NftablesEngine {
    pub fn open(netns: &Netns, settings: DataplaneSettings) -> DataplaneResult<NftablesEngine> {
        let policy = TableWriter::open(netns, TableFamily::Inet)?;
        let arp = TableWriter::open(netns, TableFamily::Arp)?;
        let foreign = ForeignChains::open(netns)?;
        let offload = FlowtableOffload::open(netns)?;
        let flow_source = NftFlowSource::open(netns)?;
        let own_ports = [policy.port(), arp.port(), foreign.port(), offload.port(), flow_source.port()];
        Ok(NftablesEngine {
            events: TableEventStream::open(netns, &own_ports)?,
            policy,
            arp,
            foreign,
            offload,
            flows: FlowInterfaces::default(),
            state: PolicyTableState::new(settings, flow_source.identities.clone()),
            flow_source,
            has_changed: false,
            in_force: false,
        })
    }

    fn writers(&mut self) -> [&mut TableWriter; 2] {
        [&mut self.policy, &mut self.arp]
    }

    fn failed_tables(&self) -> impl Iterator<Item = &TableFailure> {
        [&self.policy, &self.arp].into_iter().filter_map(TableWriter::failure)
    }

    /// Makes the kernel's tables match the desired ones, in one transaction if possible.
    async fn converge_tables(&mut self, now: Duration) -> Vec<KernelFailure> {
        if !self.in_force {
            return Vec::new();
        }
        // Sockets must be open before the kernel sends the first messages.
        self.flow_source.converge(self.state.settings().policy.flows).await;
        self.state.render();
        let PolicyTables { policy, arp } = &mut self.state.tables;
        if !self.policy.converge_with(policy, &mut self.arp, arp).await {
            self.policy.converge(policy, now).await;
            self.arp.converge(arp, now).await;
        }
        // Foreign chains must not accept by the mark before our table sets it.
        if self.is_settled() {
            self.foreign.converge(self.state.allowed(), now).await;
        }
        // Only flows that the rules have evaluated may be offloaded.
        let flows = (self.offloads() && self.is_settled()).then_some(&self.flows);
        self.offload.converge(flows, &self.state.settings().interface_prefixes, now).await;
        if std::mem::take(&mut self.has_changed) {
            self.flow_source.generation.advance();
        }
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

impl PolicyEngine for NftablesEngine {
    fn configure(&mut self, settings: DataplaneSettings) {
        self.state.configure(settings);
        self.has_changed = true;
        self.writers().into_iter().for_each(TableWriter::diff_changed);
    }

    fn replace(&mut self, plan: &NodePlan) {
        self.state.replace(plan);
        self.in_force = true;
        self.has_changed = true;
        self.writers().into_iter().for_each(TableWriter::diff_changed);
    }

    fn apply(&mut self, update: &PlanUpdate) {
        if self.state.apply(update) {
            self.has_changed = true;
            self.writers().into_iter().for_each(TableWriter::diff_changed);
        }
    }

    fn converge(&mut self, now: Duration) -> BoxFuture<'_, Vec<KernelFailure>> {
        self.converge_tables(now).boxed()
    }

    fn next_event(&mut self) -> BoxFuture<'_, DataplaneResult<PolicyEvent>> {
        self.events.next().boxed()
    }

    fn invalidate(&mut self, event: PolicyEvent) {
        self.offload.invalidate();
        if event.own {
            self.writers().into_iter().for_each(TableWriter::invalidate);
        }
        if event.foreign {
            self.foreign.invalidate();
        }
    }

    fn needs_interfaces(&self) -> bool {
        self.state.has_hosts()
    }

    fn set_interfaces(&mut self, interfaces: BTreeMap<String, Vec<IpAddr>>) {
        self.state.set_interfaces(interfaces);
    }

    fn offloads(&self) -> bool {
        self.state.settings().policy.flow_offload
    }

    fn set_flow_interfaces(&mut self, interfaces: FlowInterfaces) {
        self.flows = interfaces;
    }

    fn is_settled(&self) -> bool {
        self.in_force && self.failed_tables().next().is_none()
    }

    fn not_enforced(&self) -> Option<KernelFailure> {
        self.failed_tables().next().map(TableFailure::failure)
    }

    fn refused(&self) -> Vec<KernelFailure> {
        self.state.refused()
    }

    fn overruled(&self) -> Vec<KernelFailure> {
        self.foreign.failures()
    }

    fn not_offloaded(&self) -> Option<KernelFailure> {
        self.offload.failure().cloned()
    }

    fn host_endpoints(&self) -> BTreeMap<String, Option<Vec<String>>> {
        self.state.host_endpoints()
    }

    fn stats(&self) -> PolicyStats {
        self.policy.stats
    }

    fn flow_source(&mut self) -> &mut dyn FlowSource {
        &mut self.flow_source
    }
}
