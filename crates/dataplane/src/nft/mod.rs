//! Policy in the kernel: one nf_tables table, `inet tortie`.
//!
//! `render` turns the plan into chains and sets, `draft` compares them with what the kernel has, `message` and `expression`
//! write the difference down, `kernel` sends it as one transaction. [`Enforcer`] holds it together.

mod attributes;
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

use crate::error::{Error, Failure, Result};
use crate::netns::Netns;
use kernel::{Kernel, Refusal};
use message::Operation;
use state::State;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_plan::{Plan, Settings, Update};

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
    let refused =
        |refusal: Refusal| Error::Kernel { object: "table inet tortie".into(), reason: refusal.reason };
    Kernel::open(netns)?.commit(&operations).await.map_err(refused)
}

pub(crate) struct Enforcer {
    kernel: Kernel,
    state: State,
    /// The whole plan has been heard once: before that, nothing is touched.
    in_force: bool,
    /// The kernel has to be looked at before the next transaction.
    unsure: bool,
    /// The kernel has what it shall have.
    settled: bool,
    stats: TableStats,
}

impl Enforcer {
    pub fn open(netns: &Netns, settings: Settings) -> Result<(Enforcer, Events)> {
        let kernel = Kernel::open(netns)?;
        let events = Events::open(netns, kernel.port())?;
        let state = State::new(settings);
        let stats = TableStats::default();
        let enforcer = Enforcer { kernel, state, in_force: false, unsure: true, settled: false, stats };
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

    /// What the kernel does not take, and why.
    pub fn refused(&self) -> &BTreeMap<String, String> {
        self.state.draft.refused()
    }

    /// Says whether the kernel judges by the whole plan, but for what it refused: that is closed.
    pub fn is_settled(&self) -> bool {
        self.settled
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
        let settled = self.settle().await;
        self.settled = settled.is_ok();
        (self.stats.chains, self.stats.rules) = self.state.draft.chain_counts();
        (self.stats.sets, self.stats.maps) = self.state.draft.set_counts();
        if let Err(failure) = settled {
            // Named one by one too, for whoever waits for just one of them.
            let pending = self.state.draft.pending_chains();
            let named = pending.map(|name| Failure { object: name.clone(), reason: failure.reason.clone() });
            return named.chain([failure.clone()]).collect();
        }
        let refused = self.state.draft.refused().iter();
        refused.map(|(name, reason)| Failure { object: name.clone(), reason: reason.clone() }).collect()
    }

    async fn settle(&mut self) -> std::result::Result<(), Failure> {
        let mut fresh = false;
        let failure = |reason: String| Failure { object: "table inet tortie".into(), reason };
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            if self.unsure {
                self.stats.looks += 1;
                let looked = self.kernel.look().await;
                self.stats.failed_looks += u64::from(looked.is_err());
                let (seen, elements) = looked.map_err(|error| failure(error.to_string()))?;
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
            let culprits = committed.as_ref().err().map(|refusal| culprits(&operations, refusal));
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
            // The kernel may only be different from what we believed: look before blaming anything.
            if fresh {
                let mut helped = false;
                for (name, reason) in culprits.unwrap_or_default() {
                    helped |= self.state.draft.refuse(&name, &reason);
                }
                if !helped {
                    return Err(failure(refusal.reason));
                }
            }
            last = refusal.reason;
        }
        Err(failure(last))
    }
}

/// The chains and sets that a refusal is about.
fn culprits(operations: &[Operation<'_>], refusal: &Refusal) -> Vec<(String, String)> {
    let about = |position: &usize| match operations.get(*position)? {
        Operation::AddTable | Operation::DeleteTable => None,
        Operation::AddChain { name, .. }
        | Operation::FlushChain { name }
        | Operation::DeleteChain { name } => Some((*name).to_owned()),
        Operation::AddRule { chain, .. } => Some((*chain).to_owned()),
        Operation::AddSet { name, .. } | Operation::DeleteSet { name } => Some((*name).to_owned()),
        Operation::AddElements { set, .. } | Operation::DeleteElements { set, .. } => Some((*set).to_owned()),
    };
    let refused = refusal.operations.iter();
    refused.filter_map(|(position, reason)| Some((about(position)?, reason.clone()))).collect()
}
