//! What the kernel has counted, by the rules that people wrote.

use std::fmt;
use tortie_plan::{Direction, RuleId};

/// When a rule is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum When {
    Normal,
    PreDnat,
    Untracked,
}

/// What a counter is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counted {
    Rule(RuleId),
    /// Denied at the end of a tier: a policy of it governs the endpoint, and none of their rules matched.
    TierEnd {
        tier: String,
        direction: Direction,
    },
    /// Denied at the end of all tiers: no profile allows it.
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

/// What becomes of the packets that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    Allow,
    Deny,
    /// The next tier decides, or the profiles.
    Pass,
    /// It is logged, and the next rule is asked.
    Log,
    /// Nothing: the policy is staged.
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

/// What one rule has matched since it was last written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleCounter {
    pub of: Counted,
    pub when: When,
    pub verdict: Verdict,
    pub packets: u64,
    pub bytes: u64,
}
