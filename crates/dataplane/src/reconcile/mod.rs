//! The decisions of the dataplane: takes the plan and the state of the kernel, and returns operations. Without I/O and
//! without a clock: the time is part of the input.
//!
//! Each kind of object has a directory with a reconciler, which alone knows the desired, observed and failed objects of
//! its kind. It reads the rest from the [`ReconcileContext`]. [`DataplaneCore`] passes every change to all of them, and
//! the engine asks them for operations in the order of its phases. Only the files `apply.rs` perform I/O.

mod arrivals;
mod context;
mod dispatch;
mod excluded;
mod fdb;
mod kernel_handle;
mod link_gate;
mod links;
mod neighbours;
mod plan_index;
mod proxies;
mod report;
mod routes;
mod rules;
mod shaping;
mod sysctls;
#[cfg(test)]
mod tests;
mod wireguard;

pub use context::ReconcileContext;
pub use dispatch::{DataplaneCore, Reconcilers};
pub use kernel_handle::{KernelHandle, OperationError, OperationResult};
pub use proxies::announce;
pub use report::WorkloadState;
pub use routes::{PROTOCOL_BIRD, PROTOCOL_OURS};

use crate::failure::KernelFailure;
use crate::kernel::{KernelLink, KernelSnapshot, PrivateKey, QdiscState, WireguardState};
use ipnet::IpNet;
use tortie_plan::{PlanUpdate, TunnelKind};

/// One kind of kernel objects: its desired, observed and failed objects.
pub trait Reconciler {
    /// Takes the objects of this kind from a complete read of the kernel. A call of `check_all` follows.
    fn resync(&mut self, _snapshot: &mut KernelSnapshot, _context: &ReconcileContext) {}

    /// Schedules a check of all objects, after a change of the settings, the whole plan or the known kernel state.
    fn check_all(&mut self, _context: &ReconcileContext) {}

    /// Handles a change of the plan. Called before the change: the context has the old plan.
    fn plan_changes(&mut self, _update: &PlanUpdate, _context: &ReconcileContext) {}

    /// Handles a change of an interface. Called after the change: the context has the new interface.
    fn link_changed(&mut self, _change: &LinkChange<'_>, _context: &ReconcileContext) {}

    /// Schedules the periodic checks and retries.
    fn tick(&mut self, context: &ReconcileContext) {
        self.check_all(context);
    }

    /// Returns the failures of this kind, including those of earlier attempts.
    fn failures(&self, context: &ReconcileContext) -> Vec<KernelFailure>;
}

/// The operations of one kind of kernel objects.
pub trait ReconcileOperations: Reconciler {
    type Operation: Send + Sync;

    /// Limit of rounds of the step [`ReconcileStep::Write`]: some operations depend on the result of earlier ones.
    const MAX_ROUNDS: usize = 1;

    /// Prepares for the first round of a step.
    fn begin(&mut self, _step: ReconcileStep) {}

    /// Returns the operations that are due, in order of execution.
    fn operations(&mut self, step: ReconcileStep, context: &ReconcileContext) -> Vec<Self::Operation>;

    /// Records the result of an operation.
    fn record(&mut self, operation: Self::Operation, result: OperationResult, context: &ReconcileContext);
}

/// Performs the operations of one kind of kernel objects one by one, with I/O.
pub trait PerformOperation: ReconcileOperations {
    /// Performs one operation. Adds the kernel state that it reads afterwards to `observed`.
    fn perform(
        operation: &Self::Operation,
        kernel: &mut KernelHandle,
        observed: &mut Vec<KernelObservation>,
    ) -> impl Future<Output = OperationResult> + Send;
}

/// Performs the operations of one kind of kernel objects together, with I/O.
pub trait ExecuteOperations: ReconcileOperations {
    /// Performs operations. A failed operation does not prevent the others.
    fn execute(
        operations: Vec<Self::Operation>,
        kernel: &mut KernelHandle,
    ) -> impl Future<Output = Execution<Self::Operation>> + Send;
}

impl<R: PerformOperation> ExecuteOperations for R {
    async fn execute(operations: Vec<R::Operation>, kernel: &mut KernelHandle) -> Execution<R::Operation> {
        let mut execution = Execution::default();
        for operation in operations {
            let result = R::perform(&operation, kernel, &mut execution.observed).await;
            execution.results.push((operation, result));
        }
        execution
    }
}

/// Objects that others depend on are written before those and removed after them, so each kind has two steps. A kind
/// on which no other depends does everything in `Write`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileStep {
    Write,
    Remove,
}

/// Result of the execution of operations.
pub struct Execution<Operation> {
    pub results: Vec<(Operation, OperationResult)>,
    pub observed: Vec<KernelObservation>,
}

impl<Operation> Default for Execution<Operation> {
    fn default() -> Execution<Operation> {
        Execution { results: Vec::new(), observed: Vec::new() }
    }
}

/// Kernel state that was read after an operation, because notifications of our own changes are filtered out.
#[derive(Debug)]
pub enum KernelObservation {
    Link { index: u32, link: Option<KernelLink> },
    Address { device: u32, net: IpNet, present: bool },
    Qdiscs(QdiscState),
    Wireguard { tunnel: TunnelKind, state: WireguardState },
    WireguardKey { tunnel: TunnelKind, key: PrivateKey },
}

/// An interface before and after a change; `None` if it did not exist or is gone.
#[derive(Clone, Copy, Debug)]
pub struct LinkChange<'a> {
    pub index: u32,
    pub old: Option<&'a KernelLink>,
    pub new: Option<&'a KernelLink>,
}

impl<'a> LinkChange<'a> {
    pub fn is_gone(&self) -> bool {
        self.new.is_none()
    }

    /// Returns whether the interface exists before and after the change with the same name, and is up or down as before.
    pub fn keeps_name_and_state(&self) -> bool {
        match (self.old, self.new) {
            (Some(old), Some(new)) => old.name == new.name && old.is_up() == new.is_up(),
            _ => false,
        }
    }

    /// Returns the old and the new state.
    pub fn states(&self) -> impl Iterator<Item = &'a KernelLink> {
        self.old.into_iter().chain(self.new)
    }
}
