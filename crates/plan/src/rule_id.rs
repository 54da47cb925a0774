//! Identity of a rule, as used by counters, log lines, explanations and flow records.
//!
//! It is stable as long as the rules of its policy do not change: other policies, endpoints and settings do not
//! affect it.

use crate::policy::{PolicyDirection, PolicyId, PolicyKind};
use std::fmt;
use std::str::FromStr;

/// The policy or profile that a rule belongs to: `np/shop/allow-web`, `gnp/deny-all`, `profile/kns.shop`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleOwner {
    Policy(PolicyId),
    Profile(String),
}

/// Position of a rule in the list of its direction. It is zero-based in code; [`RuleIndex::number`] and `Display` are
/// one-based, for users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleIndex(u32);

/// One rule of a policy or a profile: `np/shop/allow-web ingress rule 2`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId {
    pub owner: RuleOwner,
    pub direction: PolicyDirection,
    pub index: RuleIndex,
}

/// Error for a text that identifies neither a policy nor a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseOwnerError(pub String);

impl RuleIndex {
    /// Returns the index of the rule at a position of a list. Lists are far shorter than the largest index.
    pub fn at(position: usize) -> RuleIndex {
        RuleIndex(u32::try_from(position).unwrap_or(u32::MAX))
    }

    /// Returns the index of the rule with this one-based number.
    pub fn of_number(number: u32) -> Option<RuleIndex> {
        number.checked_sub(1).map(RuleIndex)
    }

    pub fn position(self) -> usize {
        self.0 as usize
    }

    /// Returns the one-based number for users.
    pub fn number(self) -> u32 {
        self.0.saturating_add(1)
    }
}

impl fmt::Display for RuleIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

impl fmt::Display for PolicyDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyDirection::Ingress => "ingress",
            PolicyDirection::Egress => "egress",
        })
    }
}

impl fmt::Display for RuleOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleOwner::Policy(id) => id.fmt(f),
            RuleOwner::Profile(name) => write!(f, "profile/{name}"),
        }
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} rule {}", self.owner, self.direction, self.index)
    }
}

impl fmt::Display for ParseOwnerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is neither a policy nor a profile", self.0)
    }
}

impl std::error::Error for ParseOwnerError {}

/// Parses the output of `Display`.
impl FromStr for PolicyId {
    type Err = ParseOwnerError;

    fn from_str(text: &str) -> Result<PolicyId, ParseOwnerError> {
        parse_policy_id(text).ok_or_else(|| ParseOwnerError(text.to_owned()))
    }
}

fn parse_policy_id(text: &str) -> Option<PolicyId> {
    let (short, rest) = text.split_once('/')?;
    let kind = PolicyKind::from_short_name(short)?;
    let (namespace, name) = rest.split_once('/').unwrap_or(("", rest));
    let well_formed = !name.is_empty() && !name.contains('/') && namespace.is_empty() != rest.contains('/');
    well_formed.then(|| PolicyId { kind, namespace: namespace.to_owned(), name: name.to_owned() })
}

/// Parses the output of `Display`.
impl FromStr for RuleOwner {
    type Err = ParseOwnerError;

    fn from_str(text: &str) -> Result<RuleOwner, ParseOwnerError> {
        match text.strip_prefix("profile/") {
            Some("") => Err(ParseOwnerError(text.to_owned())),
            Some(name) => Ok(RuleOwner::Profile(name.to_owned())),
            None => text.parse().map(RuleOwner::Policy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_count_from_one() {
        let owner = RuleOwner::Policy("np/shop/web".parse().unwrap());
        let id = RuleId { owner, direction: PolicyDirection::Egress, index: RuleIndex::at(0) };
        assert_eq!(id.to_string(), "np/shop/web egress rule 1");
        assert_eq!(id.index.number(), 1);
        assert_eq!(RuleIndex::of_number(1), Some(id.index));
        assert_eq!(RuleIndex::of_number(0), None);
        assert_eq!(size_of::<RuleIndex>(), 4);
    }

    #[test]
    fn owners_are_read_as_they_are_written() {
        let texts =
            ["np/shop/web", "gnp/deny-all", "sgnp/x", "snp/a/b", "knp/a/b", "kcnp/adm.x", "profile/kns.shop"];
        for text in texts {
            assert_eq!(text.parse::<RuleOwner>().unwrap().to_string(), text);
        }
        for text in ["", "np", "np/", "np//x", "np/a/", "np/a/b/c", "zzz/x", "profile/", "gnp"] {
            assert_eq!(text.parse::<RuleOwner>(), Err(ParseOwnerError(text.to_owned())), "{text}");
        }
    }
}
