//! Reads stale kernel state, then makes the changes that are due, kind by kind.

use super::ApplyOutcome;
use super::task::DataplaneEngine;
use crate::error::DataplaneResult;
use crate::failure::{AffectedWorkloads, KernelFailure};
use crate::reconcile::{ExecuteOperations, ReconcileStep, Reconcilers};
use crate::sysctl;

impl DataplaneEngine {
    /// Reads stale state again, then makes all changes that are due.
    pub async fn converge(&mut self) -> ApplyOutcome {
        let mut failures = Vec::new();
        if let Err(error) = self.refresh().await {
            // State marked stale stays marked and is read again in the next iteration.
            let (object, reason) = error.into();
            failures.push(KernelFailure { object, concerns: AffectedWorkloads::Everything, reason });
        }
        if self.policy.needs_interfaces() {
            self.policy.set_interfaces(self.core.host_interfaces());
        }
        if self.policy.offloads() {
            self.policy.set_flow_interfaces(self.core.flow_interfaces());
        }
        // Policy before routes: an endpoint must be guarded before it is reachable.
        failures.extend(self.policy.converge(self.started.elapsed()).await);
        self.run_phases().await;
        self.kernel.conntrack.go_on(&self.kernel.netns, self.started.elapsed());
        self.arrivals.expect(&self.kernel.netns, self.core.expected_arrivals()).await;
        failures.extend(self.core.reconcilers.routes.new_node_failures());
        failures.extend(self.core.workload_failures());
        failures.extend(self.core.tunnel_failures());
        ApplyOutcome { failures }
    }

    /// Runs the phases in the order that the objects require: those that routes depend on are written before the routes
    /// and removed after them, so that a tunnel can be changed under traffic.
    async fn run_phases(&mut self) {
        use ReconcileStep::{Remove, Write};
        self.run_phase(|kinds| &mut kinds.sysctls, Write).await;
        self.run_phase(|kinds| &mut kinds.links, Write).await;
        self.run_phase(|kinds| &mut kinds.peering, Write).await;
        // A workload must not exceed its bandwidth limit, not even initially.
        self.run_phase(|kinds| &mut kinds.shaping, Write).await;
        self.run_phase(|kinds| &mut kinds.fdb, Write).await;
        self.run_phase(|kinds| &mut kinds.neighbours, Write).await;
        self.run_phase(|kinds| &mut kinds.wireguard, Write).await;
        // A rule selects a table only while the table has its routes.
        self.run_phase(|kinds| &mut kinds.rules, Remove).await;
        self.run_phase(|kinds| &mut kinds.routes, Write).await;
        self.run_phase(|kinds| &mut kinds.rules, Write).await;
        // An announced address must already be reachable.
        self.run_phase(|kinds| &mut kinds.proxies, Write).await;
        self.run_phase(|kinds| &mut kinds.wireguard, Remove).await;
        self.run_phase(|kinds| &mut kinds.neighbours, Remove).await;
        self.run_phase(|kinds| &mut kinds.fdb, Remove).await;
        self.run_phase(|kinds| &mut kinds.links, Remove).await;
    }

    /// Executes the operations of one kind until none is due.
    async fn run_phase<R: ExecuteOperations>(
        &mut self,
        select: fn(&mut Reconcilers) -> &mut R,
        step: ReconcileStep,
    ) {
        let rounds = if step == ReconcileStep::Write { R::MAX_ROUNDS } else { 1 };
        select(&mut self.core.reconcilers).begin(step);
        for _ in 0..rounds {
            self.core.set_time(self.started.elapsed());
            let operations = select(&mut self.core.reconcilers).operations(step, &self.core.context);
            if operations.is_empty() {
                return;
            }
            let execution = R::execute(operations, &mut self.kernel).await;
            self.core.set_time(self.started.elapsed());
            for observation in execution.observed {
                self.core.observe(observation);
            }
            for (operation, result) in execution.results {
                select(&mut self.core.reconcilers).record(operation, result, &self.core.context);
            }
        }
    }

    async fn refresh(&mut self) -> DataplaneResult<()> {
        self.core.set_time(self.started.elapsed());
        let kernel = &self.kernel.rtnetlink;
        let stale = &mut self.stale;
        if stale.everything {
            self.core.resync(kernel.snapshot().await?);
            stale.everything = false;
            stale.all_links = false;
            stale.links.clear();
            stale.interfaces.clear();
        }
        if stale.all_links {
            for link in kernel.links().await? {
                self.core.set_link(link.index, Some(link));
            }
            stale.all_links = false;
            stale.interfaces.clear();
        }
        while let Some(name) = stale.interfaces.pop_first() {
            if let Some(link) = kernel.link_named(&name).await? {
                self.core.set_link(link.index, Some(link));
            }
        }
        while let Some(index) = stale.links.first().copied() {
            self.core.set_link(index, kernel.link(index).await?);
            stale.links.remove(&index);
        }
        if self.core.reconcilers.routes.is_stale() {
            self.core.resync_routes(kernel.routes().await?);
        }
        let Reconcilers { rules, proxies, shaping, .. } = &mut self.core.reconcilers;
        if rules.is_stale() {
            rules.replace_observed(kernel.rules().await?);
        }
        if proxies.is_stale() {
            proxies.replace_observed(kernel.proxies().await?);
        }
        if shaping.is_stale() {
            shaping.replace_observed(kernel.qdiscs().await?);
        }
        if std::mem::take(&mut stale.switches) {
            sysctl::write(&self.kernel.netns, self.switches.clone()).await?;
        }
        for node in self.core.take_lookups() {
            self.core.set_next_hop(node, kernel.lookup(node).await);
        }
        Ok(())
    }
}
