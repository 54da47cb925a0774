//! What a plan does to a packet. This defines what a policy means: the kernel is checked against it, and `explain` answers
//! from it.
//!
//! Two levels. [`Index`] judges a packet at one endpoint in one direction: tiers, then profiles. [`Node`] takes it through
//! everything a node does between the interface where it comes in and the one where it leaves. Both say why in a
//! [`Trace`] if they are given one, and allocate nothing if they are not.

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
