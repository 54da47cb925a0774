//! Evaluates packets against a plan. This defines the semantics of policy: the kernel is tested against it, and
//! `explain` uses it.
//!
//! There are two levels. [`EvaluationIndex`] evaluates a packet at one endpoint in one direction: tiers, then profiles.
//! [`NodeEvaluator`] evaluates everything a node does to a packet between the interface where it enters and the one where it
//! leaves. Both record their steps in a [`EvaluationTrace`] if the caller passes one, and allocate nothing otherwise.

mod cause;
mod failsafe;
mod index;
mod matching;
mod node;
mod packet;
mod ranges;
mod request;
#[cfg(test)]
mod tests;
mod tiers;
mod walk;

pub use cause::{EvaluationTrace, RuleHolder, RulePosition, TraceStep, VerdictCause};
pub use failsafe::is_failsafe;
pub use index::{AddressSets, EvaluationIndex};
pub use matching::{PacketEnd, RuleCriterion};
pub use node::{NodeEvaluator, NodeVerdict, PacketPath, PathPlace};
pub use packet::{ConntrackState, Packet};
pub use request::{HttpRequest, PeerIdentity, ProxiedTraffic, RequestContext, RequestPath, RequestPathError};
pub use tiers::{EvaluationStage, PolicyDecision, PolicyOutcome};
