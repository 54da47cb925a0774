//! Packet and byte counters of policy rules.

use std::fmt;
use tortie_plan::{PolicyDirection, RuleId};

/// The stage of packet processing at which a rule is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CountedStage {
    Normal,
    PreDnat,
    Untracked,
}

/// The object that a counter belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CounterSubject {
    Rule(RuleId),
    /// Denied at the end of a tier: at least one policy of the tier selects the endpoint, and none of their rules
    /// matched.
    TierEnd {
        tier: String,
        direction: PolicyDirection,
    },
    /// Denied after all tiers: no profile allows the packet.
    NoProfile {
        direction: PolicyDirection,
    },
}

impl CounterSubject {
    pub fn direction(&self) -> PolicyDirection {
        match self {
            CounterSubject::Rule(id) => id.direction,
            CounterSubject::TierEnd { direction, .. } | CounterSubject::NoProfile { direction } => *direction,
        }
    }
}

impl fmt::Display for CounterSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CounterSubject::Rule(id) => id.fmt(f),
            CounterSubject::TierEnd { tier, direction } => write!(f, "tier/{tier} {direction} end"),
            CounterSubject::NoProfile { direction } => write!(f, "profiles {direction} end"),
        }
    }
}

/// Effect on the packets that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CountedVerdict {
    Allow,
    Deny,
    /// Evaluation continues with the next tier or the profiles.
    Pass,
    /// The packet is logged, and evaluation continues with the next rule.
    Log,
    /// Nothing, as the policy is staged.
    Staged,
}

impl fmt::Display for CountedVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CountedVerdict::Allow => "allow",
            CountedVerdict::Deny => "deny",
            CountedVerdict::Pass => "pass",
            CountedVerdict::Log => "log",
            CountedVerdict::Staged => "staged",
        })
    }
}

/// Packets and bytes that one rule has matched since it was last written to the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleCounter {
    pub of: CounterSubject,
    pub when: CountedStage,
    pub verdict: CountedVerdict,
    pub packets: u64,
    pub bytes: u64,
}
