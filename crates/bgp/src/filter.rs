//! Route filters: ordered rules that accept a route, reject it or modify its attributes.

use crate::prefix_set::PrefixSet;
use crate::rib::attrs::RouteAttrs;
use ipnet::IpNet;
use std::ops::RangeInclusive;
pub use tortie_plan::bgp::{BgpCommunity, FilterPrefixOperator};

/// A filter. The first matching rule with a verdict decides; without one, the default applies.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteFilter {
    pub rules: Vec<RouteFilterRule>,
    pub default: FilterVerdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterVerdict {
    Accept,
    Reject,
}

/// A match and its consequence for the routes that match. Without a verdict, the changes are applied and evaluation
/// continues with the next rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteFilterRule {
    pub when: RouteMatch,
    pub then: Vec<AttrsChange>,
    pub verdict: Option<FilterVerdict>,
}

/// Match conditions. All that are set must hold; an empty match selects every route.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteMatch {
    pub prefix: Option<PrefixSetMatch>,
    pub source: Option<FilterRouteSource>,
    /// The device of a route that originates here; `*` matches any characters. Learnt routes have no device.
    pub device: Option<String>,
    /// Selects only service routes that originate here.
    pub service: bool,
    pub peer: Option<PeerType>,
    pub community: Option<BgpCommunity>,
    /// AS numbers with which the AS_PATH must begin.
    pub as_path_prefix: Vec<u32>,
    pub local_pref: Option<RangeInclusive<u32>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PrefixSetMatch {
    pub operator: FilterPrefixOperator,
    pub set: PrefixSet,
    /// Range in which the prefix length must lie as well.
    pub length: Option<RangeInclusive<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterRouteSource {
    /// Learnt from a peer.
    Peers,
    /// Originated here.
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerType {
    Internal,
    External,
}

#[derive(Clone, Debug, PartialEq)]
pub enum AttrsChange {
    AddCommunity(BgpCommunity),
    /// Prepends these AS numbers, so that the AS_PATH begins with them in this order.
    PrependPath(Vec<u32>),
    SetLocalPref(u32),
    /// Sets the preference that is compared before all BGP attributes; see [`RouteAttrs::preference`].
    SetPreference(u16),
}

/// The properties of a route that a filter matches beside the attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteContext {
    pub prefix: IpNet,
    pub source: FilterRouteSource,
    pub peer: PeerType,
}

#[derive(Debug, PartialEq)]
pub(crate) enum FilterOutcome {
    Reject,
    Same,
    Changed(RouteAttrs),
}

impl RouteFilter {
    pub fn accept() -> RouteFilter {
        RouteFilter { rules: Vec::new(), default: FilterVerdict::Accept }
    }

    pub fn reject() -> RouteFilter {
        RouteFilter { rules: Vec::new(), default: FilterVerdict::Reject }
    }

    pub(crate) fn run(&self, route: &RouteContext, attrs: &RouteAttrs) -> FilterOutcome {
        let mut changed: Option<RouteAttrs> = None;
        let mut verdict = self.default;
        for rule in &self.rules {
            if !rule.when.matches(route, changed.as_ref().unwrap_or(attrs)) {
                continue;
            }
            if !rule.then.is_empty() && rule.verdict != Some(FilterVerdict::Reject) {
                let target = changed.get_or_insert_with(|| attrs.clone());
                rule.then.iter().for_each(|change| change.apply(target));
            }
            if let Some(decided) = rule.verdict {
                verdict = decided;
                break;
            }
        }
        match (verdict, changed) {
            (FilterVerdict::Reject, _) => FilterOutcome::Reject,
            (FilterVerdict::Accept, None) => FilterOutcome::Same,
            (FilterVerdict::Accept, Some(attrs)) => FilterOutcome::Changed(attrs),
        }
    }
}

impl RouteMatch {
    fn matches(&self, route: &RouteContext, attrs: &RouteAttrs) -> bool {
        self.source.is_none_or(|source| source == route.source)
            && self.peer.is_none_or(|peer| peer == route.peer)
            && self.prefix.as_ref().is_none_or(|prefix| prefix.matches(&route.prefix))
            && self.community.is_none_or(|community| attrs.has_community(community))
            && attrs.as_path.starts_with(&self.as_path_prefix)
            && (!self.service || attrs.service)
            && self.local_pref.as_ref().is_none_or(|range| range.contains(&attrs.local_pref()))
            && self.device.as_ref().is_none_or(|pattern| {
                attrs.device.as_ref().is_some_and(|device| glob(pattern.as_bytes(), device.as_bytes()))
            })
    }
}

impl PrefixSetMatch {
    /// Returns whether the prefix matches. The negated operators negate the whole condition, including the length
    /// range.
    pub fn matches(&self, net: &IpNet) -> bool {
        let long_enough = || self.length.as_ref().is_none_or(|range| range.contains(&net.prefix_len()));
        match self.operator {
            FilterPrefixOperator::In => self.set.covers(net) && long_enough(),
            FilterPrefixOperator::NotIn => !(self.set.covers(net) && long_enough()),
            FilterPrefixOperator::Equal => self.set.contains(net) && long_enough(),
            FilterPrefixOperator::NotEqual => !(self.set.contains(net) && long_enough()),
        }
    }
}

impl AttrsChange {
    fn apply(&self, attrs: &mut RouteAttrs) {
        match self {
            AttrsChange::AddCommunity(community) => attrs.add_community(*community),
            AttrsChange::PrependPath(path) => {
                attrs.as_path = [path.as_slice(), &attrs.as_path].concat().into()
            }
            AttrsChange::SetLocalPref(value) => attrs.local_pref = Some(*value),
            AttrsChange::SetPreference(value) => attrs.preference = *value,
        }
    }
}

/// Returns whether `text` matches `pattern`, in which `*` matches any characters or none. Backtracks only to the
/// latest star, so the cost is at most the product of the two lengths.
pub fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let mut at = 0;
    let mut star = None;
    let mut mark = 0;
    let mut position = 0;
    while position < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some(at);
                mark = position;
                at += 1;
            }
            Some(byte) if text.get(position) == Some(byte) => {
                at += 1;
                position += 1;
            }
            _ => {
                let Some(star) = star else { return false };
                at = star + 1;
                mark += 1;
                position = mark;
            }
        }
    }
    pattern.iter().skip(at).all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbgpd_wire::LargeCommunity;

    fn route(prefix: &str) -> RouteContext {
        RouteContext {
            prefix: prefix.parse().unwrap(),
            source: FilterRouteSource::Peers,
            peer: PeerType::Internal,
        }
    }

    fn prefix(operator: FilterPrefixOperator, net: &str, length: Option<RangeInclusive<u8>>) -> RouteMatch {
        let set = [net.parse().unwrap()].into_iter().collect();
        RouteMatch { prefix: Some(PrefixSetMatch { operator, set, length }), ..RouteMatch::default() }
    }

    fn accepts(when: RouteMatch, route: RouteContext, attrs: &RouteAttrs) -> bool {
        let rule =
            RouteFilterRule { when, verdict: Some(FilterVerdict::Accept), ..RouteFilterRule::default() };
        RouteFilter { rules: vec![rule], default: FilterVerdict::Reject }.run(&route, attrs)
            != FilterOutcome::Reject
    }

    #[test]
    fn prefix_operators() {
        use FilterPrefixOperator::*;
        for (operator, net, expected) in [
            (In, "10.1.0.0/16", true),
            (In, "10.1.2.0/24", true),
            (In, "10.0.0.0/8", false),
            (NotIn, "10.1.2.0/24", false),
            (NotIn, "10.0.0.0/8", true),
            (Equal, "10.1.0.0/16", true),
            (Equal, "10.1.2.0/24", false),
            (NotEqual, "10.1.2.0/24", true),
            (NotEqual, "10.1.0.0/16", false),
            (In, "fd00::/16", false),
            (NotIn, "fd00::/16", true),
        ] {
            let when = prefix(operator, "10.1.0.0/16", None);
            assert_eq!(accepts(when, route(net), &RouteAttrs::default()), expected, "{operator:?} {net}");
        }
        let when = prefix(In, "fd00:1::/32", Some(64..=80));
        for (net, expected) in
            [("fd00:1::/48", false), ("fd00:1::/64", true), ("fd00:1::/80", true), ("fd00:1::/96", false)]
        {
            assert_eq!(accepts(when.clone(), route(net), &RouteAttrs::default()), expected, "{net}");
        }
        let when = prefix(NotIn, "10.0.0.0/8", Some(16..=24));
        for (net, expected) in [("10.0.0.0/8", true), ("10.1.0.0/16", false), ("10.1.2.128/25", true)] {
            assert_eq!(accepts(when.clone(), route(net), &RouteAttrs::default()), expected, "{net}");
        }
    }

    #[test]
    fn all_criteria_must_hold() {
        let attrs = RouteAttrs {
            as_path: vec![64512, 64513].into(),
            communities: vec![7].into(),
            large_communities: vec![LargeCommunity::new(1, 2, 3)].into(),
            local_pref: Some(50),
            ..RouteAttrs::default()
        };
        let route = route("10.0.0.0/24");
        let holds = |when: RouteMatch| accepts(when, route, &attrs);
        assert!(holds(RouteMatch::default()));
        assert!(holds(RouteMatch { as_path_prefix: vec![64512], ..RouteMatch::default() }));
        assert!(!holds(RouteMatch { as_path_prefix: vec![64513], ..RouteMatch::default() }));
        assert!(holds(RouteMatch { community: Some(BgpCommunity::Standard(0, 7)), ..RouteMatch::default() }));
        assert!(!holds(RouteMatch {
            community: Some(BgpCommunity::Standard(0, 8)),
            ..RouteMatch::default()
        }));
        let large = BgpCommunity::Large(1, 2, 3);
        assert!(holds(RouteMatch { community: Some(large), ..RouteMatch::default() }));
        assert!(holds(RouteMatch { local_pref: Some(50..=50), ..RouteMatch::default() }));
        assert!(!holds(RouteMatch { local_pref: Some(51..=u32::MAX), ..RouteMatch::default() }));
        assert!(!holds(RouteMatch { source: Some(FilterRouteSource::Local), ..RouteMatch::default() }));
        assert!(!holds(RouteMatch { peer: Some(PeerType::External), ..RouteMatch::default() }));
        assert!(!holds(RouteMatch { device: Some("*".into()), ..RouteMatch::default() }));
        assert!(!holds(RouteMatch {
            community: Some(large),
            peer: Some(PeerType::External),
            ..RouteMatch::default()
        }));
    }

    #[test]
    fn changes_accumulate_until_a_verdict() {
        let tag = |value| AttrsChange::AddCommunity(BgpCommunity::Standard(0, value));
        let filter = RouteFilter {
            rules: vec![
                RouteFilterRule { then: vec![tag(1)], ..RouteFilterRule::default() },
                RouteFilterRule {
                    when: RouteMatch {
                        community: Some(BgpCommunity::Standard(0, 1)),
                        ..RouteMatch::default()
                    },
                    then: vec![AttrsChange::PrependPath(vec![2, 3]), AttrsChange::SetLocalPref(9), tag(1)],
                    verdict: Some(FilterVerdict::Accept),
                },
                RouteFilterRule {
                    then: vec![tag(4)],
                    verdict: Some(FilterVerdict::Reject),
                    ..RouteFilterRule::default()
                },
            ],
            default: FilterVerdict::Reject,
        };
        let attrs = RouteAttrs { as_path: vec![5].into(), ..RouteAttrs::default() };
        let FilterOutcome::Changed(changed) = filter.run(&route("10.0.0.0/8"), &attrs) else { panic!() };
        assert_eq!(*changed.as_path, [2, 3, 5]);
        assert_eq!((changed.local_pref, &*changed.communities), (Some(9), &[1][..]));
        assert_eq!(RouteFilter::accept().run(&route("10.0.0.0/8"), &attrs), FilterOutcome::Same);
        assert_eq!(RouteFilter::reject().run(&route("10.0.0.0/8"), &attrs), FilterOutcome::Reject);
    }

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("*.cali", "vxlan.cali", true),
            ("*.cali", "vxlan.calico", false),
            ("tunl0", "tunl0", true),
            ("tunl0", "tunl00", false),
            ("*", "", true),
            ("bpf*.cali", "bpfin.cali", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
