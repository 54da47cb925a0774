//! Evaluates packets against a plan. This defines the semantics of policy: the kernel is tested against it, and
//! `explain` uses it.
//!
//! There are two levels. [`Index`] evaluates a packet at one endpoint in one direction: tiers, then profiles.
//! [`Node`] evaluates everything a node does to a packet between the interface where it enters and the one where it
//! leaves. Both record their steps in a [`Trace`] if the caller passes one, and allocate nothing otherwise.

mod cause;
mod failsafe;
mod index;
mod matching;
mod node;
mod packet;
mod ranges;
#[cfg(test)]
mod tests;
mod tiers;
mod walk;

pub use cause::{Cause, Holder, RuleAt, Step, Trace};
pub use failsafe::is_failsafe;
pub use index::Index;
pub use matching::{Criterion, End};
pub use node::{Judgement, Node, Place, Way};
pub use packet::{Connection, Packet};
pub use tiers::{Decision, Outcome, Stage};
