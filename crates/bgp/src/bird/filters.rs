//! Renders a BGPFilter as functions of BIRD's filter language, one for each direction and family.
//!
//! A function receives whether the session is internal to our AS. It accepts or rejects the route, or returns if no
//! rule matches.

use super::policy::{MAX_LOCAL_PREF, tag};
use crate::family::BgpFamily;
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use tortie_plan::bgp::{
    BgpCommunity, BgpFilter, BgpFilterRule, FilterOperation, FilterPrefix, FilterPrefixOperator,
};

/// Filter names longer than this are shortened, so that the function name fits into the 64 characters that BIRD
/// allows.
const MAX_FILTER_NAME_LENGTH: usize = 45;
const SHORTENED_NAME_LENGTH: usize = 28;
const NAME_DIGEST_DIGITS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BirdFilterDirection {
    Import,
    Export,
}

impl BirdFilterDirection {
    const ALL: [BirdFilterDirection; 2] = [BirdFilterDirection::Import, BirdFilterDirection::Export];

    fn word(self) -> &'static str {
        match self {
            BirdFilterDirection::Import => "import",
            BirdFilterDirection::Export => "export",
        }
    }
}

fn select_rules(filter: &BgpFilter, direction: BirdFilterDirection, family: BgpFamily) -> &[BgpFilterRule] {
    match (direction, family) {
        (BirdFilterDirection::Import, BgpFamily::V4) => &filter.import_v4,
        (BirdFilterDirection::Import, BgpFamily::V6) => &filter.import_v6,
        (BirdFilterDirection::Export, BgpFamily::V4) => &filter.export_v4,
        (BirdFilterDirection::Export, BgpFamily::V6) => &filter.export_v6,
    }
}

/// Returns the name of a function in quotes, which names with dashes require.
fn quote_function_name(filter: &str, direction: BirdFilterDirection, family: BgpFamily) -> String {
    let short = if filter.len() <= MAX_FILTER_NAME_LENGTH {
        filter.to_owned()
    } else {
        let digest = Sha256::digest(filter.as_bytes());
        let digits: String = digest.iter().map(|byte| format!("{byte:02X}")).collect();
        format!(
            "{}_{}",
            filter.get(..SHORTENED_NAME_LENGTH).unwrap_or_default(),
            digits.get(..NAME_DIGEST_DIGITS).unwrap_or_default()
        )
    };
    let family = if family == BgpFamily::V4 { "V4" } else { "V6" };
    format!("'bgp_{short}_{}Filter{family}'", direction.word())
}

/// Renders the functions of a filter. A direction and family without rules gets none.
pub(super) fn define(name: &str, filter: &BgpFilter) -> String {
    let mut text = String::new();
    for direction in BirdFilterDirection::ALL {
        for family in BgpFamily::ALL {
            let rules = select_rules(filter, direction, family);
            if rules.is_empty() {
                continue;
            }
            text += &format!("function {}(bool same_as)\n{{\n", quote_function_name(name, direction, family));
            rules.iter().for_each(|rule| text += &render_statement(rule));
            text += "}\n";
        }
    }
    text
}

/// Renders the statement that calls a filter; empty if the filter has no rules.
pub(super) fn call(
    name: &str,
    filter: &BgpFilter,
    direction: BirdFilterDirection,
    family: BgpFamily,
    same_as: bool,
) -> String {
    match select_rules(filter, direction, family) {
        [] => String::new(),
        _ => format!("{}({same_as}); ", quote_function_name(name, direction, family)),
    }
}

fn render_statement(rule: &BgpFilterRule) -> String {
    let verdict = if rule.accept { "accept" } else { "reject" };
    let operations: String = rule.operations.iter().map(render_operation).collect();
    format!("  if {} then {{ {operations}{verdict}; }}\n", render_conditions(rule).join(" && "))
}

fn render_conditions(rule: &BgpFilterRule) -> Vec<String> {
    let mut all = vec!["true".to_owned()];
    all.extend(rule.prefix.map(|wanted| render_prefix(&wanted)));
    all.extend(rule.learnt.then(|| "source = RTS_BGP".to_owned()));
    all.extend(rule.interface.as_ref().map(|pattern| format!("ifname ~ \"{pattern}\"")));
    all.extend(rule.internal.map(|internal| format!("same_as = {internal}")));
    all.extend(rule.community.map(|community| format!("{} ~ {}", tag(community), list(community))));
    if !rule.as_path_prefix.is_empty() {
        let path: Vec<String> = rule.as_path_prefix.iter().map(ToString::to_string).collect();
        all.push(format!("bgp_path ~ [= {} * =]", path.join(" ")));
    }
    all.extend(
        rule.priority.map(|wanted| format!("bgp_local_pref = {}", MAX_LOCAL_PREF.saturating_sub(wanted))),
    );
    all
}

/// Renders a prefix condition. A length range is part of the condition and is negated with it.
fn render_prefix(wanted: &FilterPrefix) -> String {
    let net = wanted.net.trunc();
    let (exact, negated) = match wanted.operator {
        FilterPrefixOperator::In => (false, false),
        FilterPrefixOperator::NotIn => (false, true),
        FilterPrefixOperator::Equal => (true, false),
        FilterPrefixOperator::NotEqual => (true, true),
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

fn render_operation(operation: &FilterOperation) -> String {
    match operation {
        FilterOperation::AddCommunity(community) => add(*community),
        // Every call prepends in front of the existing path, so the order is reversed.
        FilterOperation::PrependPath(path) => {
            path.iter().rev().map(|number| format!("bgp_path.prepend({number}); ")).collect()
        }
        FilterOperation::SetPriority(wanted) => {
            format!("bgp_local_pref = {}; ", MAX_LOCAL_PREF.saturating_sub(*wanted))
        }
    }
}

pub(super) fn add(community: BgpCommunity) -> String {
    format!("{}.add({}); ", list(community), tag(community))
}

fn list(community: BgpCommunity) -> &'static str {
    match community {
        BgpCommunity::Standard(..) => "bgp_community",
        BgpCommunity::Large(..) => "bgp_large_community",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_like_the_reference() {
        let name = "export-only-loadbalancer-addresses-to-datacenter-core-routers";
        assert_eq!(
            quote_function_name(name, BirdFilterDirection::Export, BgpFamily::V4),
            "'bgp_export-only-loadbalancer-add_A20F21A2FAF542EF_exportFilterV4'"
        );
        let longest = "x".repeat(45);
        let whole = quote_function_name(&longest, BirdFilterDirection::Import, BgpFamily::V6);
        assert_eq!(whole, format!("'bgp_{longest}_importFilterV6'"));
        assert_eq!(whole.len(), 64 + 2);
    }
}
