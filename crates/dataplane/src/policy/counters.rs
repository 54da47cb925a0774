//! Packet and byte counters of policy rules.

use std::fmt;
use tortie_plan::{Direction, RuleId};

/// The stage of packet processing at which a rule is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum When {
    Normal,
    PreDnat,
    Untracked,
}

/// The object that a counter belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counted {
    Rule(RuleId),
    /// Denied at the end of a tier: at least one policy of the tier selects the endpoint, and none of their rules
    /// matched.
    TierEnd {
        tier: String,
        direction: Direction,
    },
    /// Denied after all tiers: no profile allows the packet.
    NoProfile {
        direction: Direction,
    },
}

impl Counted {
    pub fn direction(&self) -> Direction {
        match self {
            Counted::Rule(id) => id.direction,
            Counted::TierEnd { direction, .. } | Counted::NoProfile { direction } => *direction,
        }
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Counted::Rule(id) => id.fmt(f),
            Counted::TierEnd { tier, direction } => write!(f, "tier/{tier} {direction} end"),
            Counted::NoProfile { direction } => write!(f, "profiles {direction} end"),
        }
    }
}

/// Effect on the packets that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    Allow,
    Deny,
    /// Evaluation continues with the next tier or the profiles.
    Pass,
    /// The packet is logged, and evaluation continues with the next rule.
    Log,
    /// Nothing, as the policy is staged.
    Staged,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
            Verdict::Pass => "pass",
            Verdict::Log => "log",
            Verdict::Staged => "staged",
        })
    }
}

/// Packets and bytes that one rule has matched since it was last written to the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleCounter {
    pub of: Counted,
    pub when: When,
    pub verdict: Verdict,
    pub packets: u64,
    pub bytes: u64,
}
