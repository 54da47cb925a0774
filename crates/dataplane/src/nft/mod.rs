//! Policy in the kernel: one nf_tables table, `inet tortie`.
//!
//! `render` turns the plan into chains and sets, `draft` compares them with what the kernel has, `message` and `expression`
//! write the difference down, `kernel` sends it as one transaction. [`Enforcer`] holds it together.

mod attributes;
mod blame;
mod counters;
mod draft;
mod expression;
mod kernel;
mod message;
mod ranges;
mod render;
mod rule;
mod state;
mod table;

pub use counters::{RuleCounter, When, counters};
pub(crate) use kernel::Events;

use crate::error::{Error, Result};
use crate::failure::{Concerns, Failure, KernelObject};
use crate::netns::Netns;
use blame::Culprit;
use kernel::{Kernel, Refusal};
use message::Operation;
use state::State;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_plan::{Plan, Settings, Update};

/// The one table that is ours, for messages.
const OUR_TABLE: KernelObject = KernelObject::Table { name: "inet tortie" };

/// How often a transaction is changed and tried again before it has to wait.
const ATTEMPTS: usize = 20;

/// Numbers about the table, for whoever watches over it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    pub chains: usize,
    pub rules: usize,
    pub sets: usize,
    pub maps: usize,
    pub transactions: u64,
    pub refusals: u64,
    /// Looks at the whole table.
    pub looks: u64,
    pub failed_looks: u64,
}

/// Takes the table away, if there is one: nothing is enforced any more. For hosts that are no longer nodes.
pub async fn remove_table(netns: &Netns) -> Result<()> {
    // Adding what is there does nothing, so this works whether it is there or not.
    let operations = [Operation::AddTable, Operation::DeleteTable];
    let refused = |refusal: Refusal| Error::Kernel { object: OUR_TABLE, reason: refusal.reason };
    Kernel::open(netns)?.commit(&operations).await.map_err(refused)
}

pub(crate) struct Enforcer {
    kernel: Kernel,
    state: State,
    /// The whole plan has been heard once: before that, nothing is touched.
    in_force: bool,
    /// The kernel has to be looked at before the next transaction.
    unsure: bool,
    /// Why the kernel's table is not the plan's; the kernel judges by what it had before, or by nothing.
    failure: Option<TableFailure>,
    stats: TableStats,
}

impl Enforcer {
    pub fn open(netns: &Netns, settings: Settings) -> Result<(Enforcer, Events)> {
        let kernel = Kernel::open(netns)?;
        let events = Events::open(netns, kernel.port())?;
        let state = State::new(settings);
        let stats = TableStats::default();
        let enforcer = Enforcer { kernel, state, in_force: false, unsure: true, failure: None, stats };
        Ok((enforcer, events))
    }

    pub fn replace(&mut self, plan: &Plan) {
        self.state.replace(plan);
        self.in_force = true;
    }

    pub fn apply(&mut self, update: &Update) {
        self.state.apply(update);
    }

    pub fn stats(&self) -> TableStats {
        self.stats
    }

    /// What the kernel does not take, and why; what depends on it is closed.
    pub fn refused(&self) -> Vec<Failure> {
        self.state.refused()
    }

    /// Why the kernel does not judge by the plan, if so.
    pub fn table_failure(&self) -> Option<Failure> {
        self.failure.as_ref().map(TableFailure::failure)
    }

    /// Says whether the kernel judges by the whole plan, but for what it refused: that is closed.
    pub fn is_settled(&self) -> bool {
        self.in_force && self.failure.is_none()
    }

    /// Says whether [`Enforcer::interfaces_are`] makes a difference.
    pub fn needs_interfaces(&self) -> bool {
        self.state.has_hosts()
    }

    /// The interfaces that do not lead to workloads, and their addresses.
    pub fn interfaces_are(&mut self, interfaces: BTreeMap<String, Vec<IpAddr>>) {
        self.state.interfaces_are(interfaces);
    }

    /// Somebody else may have changed the table.
    pub fn doubt(&mut self) {
        self.unsure = true;
    }

    /// Tries again what the kernel refused.
    pub fn forgive(&mut self) {
        self.state.draft.forgive();
    }

    /// Makes the kernel's table what it shall be, in one transaction.
    pub async fn converge(&mut self) -> Vec<Failure> {
        if !self.in_force {
            return Vec::new();
        }
        self.state.draw();
        self.failure = self.settle().await.err();
        (self.stats.chains, self.stats.rules) = self.state.draft.chain_counts();
        (self.stats.sets, self.stats.maps) = self.state.draft.set_counts();
        let mut failures = self.state.refused();
        if let Some(failure) = &self.failure {
            // What the kernel named comes first: it says more to whoever waits for it.
            failures.extend(failure.culprits.iter().map(|culprit| self.state.failure_of(culprit)));
            failures.push(failure.failure());
        }
        failures
    }

    async fn settle(&mut self) -> std::result::Result<(), TableFailure> {
        let mut fresh = false;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            if self.unsure {
                self.stats.looks += 1;
                let looked = self.kernel.look().await;
                self.stats.failed_looks += u64::from(looked.is_err());
                let (seen, elements) = looked.map_err(|error| TableFailure::new(error.to_string()))?;
                self.state.draft.look(seen, elements);
                self.unsure = false;
                fresh = true;
            }
            let draft = &mut self.state.draft;
            let preparations = draft.preparations();
            let preparing = !preparations.is_empty();
            let operations = if preparing { preparations } else { draft.operations() };
            if operations.is_empty() {
                return Ok(());
            }
            self.stats.transactions += 1;
            let committed = self.kernel.commit(&operations).await;
            let culprits = committed.as_ref().err().map(|refusal| blame::culprits(&operations, refusal));
            let refusal = match committed {
                Ok(()) if preparing => {
                    draft.prepared();
                    continue;
                }
                Ok(()) => {
                    draft.done();
                    return Ok(());
                }
                Err(refusal) => refusal,
            };
            self.stats.refusals += 1;
            tracing::warn!(reason = refusal.reason, "the kernel refused a change of table inet tortie");
            self.unsure = true;
            if refusal.is_of_the_whole() {
                return Err(TableFailure::new(refusal.reason));
            }
            // The kernel may only be different from what we believed: look before blaming anything.
            if fresh {
                let culprits = culprits.unwrap_or_default();
                let mut helped = false;
                for culprit in &culprits {
                    helped |= self.state.draft.refuse(culprit);
                }
                if !helped {
                    return Err(TableFailure { reason: refusal.reason, culprits });
                }
            }
            last = refusal.reason;
        }
        Err(TableFailure::new(last))
    }
}

/// Why a transaction was given up.
struct TableFailure {
    reason: String,
    /// What the kernel named, if it named anything.
    culprits: Vec<Culprit>,
}

impl TableFailure {
    fn new(reason: String) -> TableFailure {
        TableFailure { reason, culprits: Vec::new() }
    }

    fn failure(&self) -> Failure {
        Failure { object: OUR_TABLE, concerns: Concerns::Everything, reason: self.reason.clone() }
    }
}
