//! Renders a BGPFilter as functions of BIRD's filter language, one for each direction and family.
//!
//! A function receives whether the session is internal to our AS. It accepts or rejects the route, or returns if no
//! rule matches.

use super::policy::{LARGEST_PREF, tag};
use crate::family::Family;
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use tortie_plan::bgp::{Community, Filter, FilterRule, Operation, PrefixMatch, PrefixOperator};

/// Filter names longer than this are shortened, so that the function name fits into the 64 characters that BIRD
/// allows.
const LONGEST: usize = 45;
const KEPT: usize = 28;
const DIGITS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Import,
    Export,
}

impl Direction {
    const ALL: [Direction; 2] = [Direction::Import, Direction::Export];

    fn word(self) -> &'static str {
        match self {
            Direction::Import => "import",
            Direction::Export => "export",
        }
    }
}

fn rules(filter: &Filter, direction: Direction, family: Family) -> &[FilterRule] {
    match (direction, family) {
        (Direction::Import, Family::V4) => &filter.import_v4,
        (Direction::Import, Family::V6) => &filter.import_v6,
        (Direction::Export, Family::V4) => &filter.export_v4,
        (Direction::Export, Family::V6) => &filter.export_v6,
    }
}

/// Returns the name of a function in quotes, which names with dashes require.
fn function(filter: &str, direction: Direction, family: Family) -> String {
    let short = if filter.len() <= LONGEST {
        filter.to_owned()
    } else {
        let digest = Sha256::digest(filter.as_bytes());
        let digits: String = digest.iter().map(|byte| format!("{byte:02X}")).collect();
        format!("{}_{}", filter.get(..KEPT).unwrap_or_default(), digits.get(..DIGITS).unwrap_or_default())
    };
    let family = if family == Family::V4 { "V4" } else { "V6" };
    format!("'bgp_{short}_{}Filter{family}'", direction.word())
}

/// Renders the functions of a filter. A direction and family without rules gets none.
pub(super) fn define(name: &str, filter: &Filter) -> String {
    let mut text = String::new();
    for direction in Direction::ALL {
        for family in Family::ALL {
            let rules = rules(filter, direction, family);
            if rules.is_empty() {
                continue;
            }
            text += &format!("function {}(bool same_as)\n{{\n", function(name, direction, family));
            rules.iter().for_each(|rule| text += &statement(rule));
            text += "}\n";
        }
    }
    text
}

/// Renders the statement that calls a filter; empty if the filter has no rules.
pub(super) fn call(
    name: &str,
    filter: &Filter,
    direction: Direction,
    family: Family,
    same_as: bool,
) -> String {
    match rules(filter, direction, family) {
        [] => String::new(),
        _ => format!("{}({same_as}); ", function(name, direction, family)),
    }
}

fn statement(rule: &FilterRule) -> String {
    let verdict = if rule.accept { "accept" } else { "reject" };
    let operations: String = rule.operations.iter().map(operation).collect();
    format!("  if {} then {{ {operations}{verdict}; }}\n", conditions(rule).join(" && "))
}

fn conditions(rule: &FilterRule) -> Vec<String> {
    let mut all = vec!["true".to_owned()];
    all.extend(rule.prefix.map(|wanted| prefix(&wanted)));
    all.extend(rule.learnt.then(|| "source = RTS_BGP".to_owned()));
    all.extend(rule.interface.as_ref().map(|pattern| format!("ifname ~ \"{pattern}\"")));
    all.extend(rule.internal.map(|internal| format!("same_as = {internal}")));
    all.extend(rule.community.map(|community| format!("{} ~ {}", tag(community), list(community))));
    if !rule.as_path_prefix.is_empty() {
        let path: Vec<String> = rule.as_path_prefix.iter().map(ToString::to_string).collect();
        all.push(format!("bgp_path ~ [= {} * =]", path.join(" ")));
    }
    all.extend(
        rule.priority.map(|wanted| format!("bgp_local_pref = {}", LARGEST_PREF.saturating_sub(wanted))),
    );
    all
}

/// Renders a prefix condition. A length range is part of the condition and is negated with it.
fn prefix(wanted: &PrefixMatch) -> String {
    let net = wanted.net.trunc();
    let (exact, negated) = match wanted.operator {
        PrefixOperator::In => (false, false),
        PrefixOperator::NotIn => (false, true),
        PrefixOperator::Equal => (true, false),
        PrefixOperator::NotEqual => (true, true),
    };
    let pattern = match wanted.length {
        // BIRD rejects an empty range.
        Some((first, last)) if first > last => return negated.to_string(),
        Some((first, last)) if exact && !(first..=last).contains(&net.prefix_len()) => {
            return negated.to_string();
        }
        Some((first, last)) if !exact => format!("{net}{{{first},{last}}}"),
        _ if exact => net.to_string(),
        _ => beneath(&net),
    };
    format!("net {} [ {pattern} ]", if negated { "!~" } else { "~" })
}

/// Renders a pattern that matches a network and everything in it.
pub(super) fn beneath(net: &IpNet) -> String {
    format!("{}+", net.trunc())
}

fn operation(operation: &Operation) -> String {
    match operation {
        Operation::AddCommunity(community) => add(*community),
        // Every call prepends in front of the existing path, so the order is reversed.
        Operation::PrependPath(path) => {
            path.iter().rev().map(|number| format!("bgp_path.prepend({number}); ")).collect()
        }
        Operation::SetPriority(wanted) => {
            format!("bgp_local_pref = {}; ", LARGEST_PREF.saturating_sub(*wanted))
        }
    }
}

pub(super) fn add(community: Community) -> String {
    format!("{}.add({}); ", list(community), tag(community))
}

fn list(community: Community) -> &'static str {
    match community {
        Community::Standard(..) => "bgp_community",
        Community::Large(..) => "bgp_large_community",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_as_the_reference_cuts_them() {
        let name = "export-only-loadbalancer-addresses-to-datacenter-core-routers";
        assert_eq!(
            function(name, Direction::Export, Family::V4),
            "'bgp_export-only-loadbalancer-add_A20F21A2FAF542EF_exportFilterV4'"
        );
        let longest = "x".repeat(45);
        let whole = function(&longest, Direction::Import, Family::V6);
        assert_eq!(whole, format!("'bgp_{longest}_importFilterV6'"));
        assert_eq!(whole.len(), 64 + 2);
    }
}
