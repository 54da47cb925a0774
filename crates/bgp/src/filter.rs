//! Route filters: ordered rules that accept a route, reject it or modify its attributes.

use crate::prefix_set::PrefixSet;
use crate::rib::attrs::Attrs;
use ipnet::IpNet;
use std::ops::RangeInclusive;
pub use tortie_plan::bgp::{Community, PrefixOperator};

/// A filter. The first matching rule with a verdict decides; without one, the default applies.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    pub rules: Vec<Rule>,
    pub default: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Reject,
}

/// A match and its consequence for the routes that match. Without a verdict, the changes are applied and evaluation
/// continues with the next rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    pub when: Match,
    pub then: Vec<Change>,
    pub verdict: Option<Verdict>,
}

/// Match conditions. All that are set must hold; an empty match selects every route.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
    pub prefix: Option<PrefixMatch>,
    pub source: Option<Source>,
    /// The device of a route that originates here; `*` matches any characters. Learnt routes have no device.
    pub device: Option<String>,
    /// Selects only service routes that originate here.
    pub service: bool,
    pub peer: Option<PeerType>,
    pub community: Option<Community>,
    /// AS numbers with which the AS_PATH must begin.
    pub as_path_prefix: Vec<u32>,
    pub local_pref: Option<RangeInclusive<u32>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PrefixMatch {
    pub operator: PrefixOperator,
    pub set: PrefixSet,
    /// Range in which the prefix length must lie as well.
    pub length: Option<RangeInclusive<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
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
pub enum Change {
    AddCommunity(Community),
    /// Prepends these AS numbers, so that the AS_PATH begins with them in this order.
    PrependPath(Vec<u32>),
    SetLocalPref(u32),
    /// Sets the preference that is compared before all BGP attributes; see [`Attrs::preference`].
    SetPreference(u16),
}

/// The properties of a route that a filter matches beside the attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteContext {
    pub prefix: IpNet,
    pub source: Source,
    pub peer: PeerType,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Reject,
    Same,
    Changed(Attrs),
}

impl Filter {
    pub fn accept() -> Filter {
        Filter { rules: Vec::new(), default: Verdict::Accept }
    }

    pub fn reject() -> Filter {
        Filter { rules: Vec::new(), default: Verdict::Reject }
    }

    pub(crate) fn run(&self, route: &RouteContext, attrs: &Attrs) -> Outcome {
        let mut changed: Option<Attrs> = None;
        let mut verdict = self.default;
        for rule in &self.rules {
            if !rule.when.matches(route, changed.as_ref().unwrap_or(attrs)) {
                continue;
            }
            if !rule.then.is_empty() && rule.verdict != Some(Verdict::Reject) {
                let target = changed.get_or_insert_with(|| attrs.clone());
                rule.then.iter().for_each(|change| change.apply(target));
            }
            if let Some(decided) = rule.verdict {
                verdict = decided;
                break;
            }
        }
        match (verdict, changed) {
            (Verdict::Reject, _) => Outcome::Reject,
            (Verdict::Accept, None) => Outcome::Same,
            (Verdict::Accept, Some(attrs)) => Outcome::Changed(attrs),
        }
    }
}

impl Match {
    fn matches(&self, route: &RouteContext, attrs: &Attrs) -> bool {
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

impl PrefixMatch {
    /// Returns whether the prefix matches. The negated operators negate the whole condition, including the length
    /// range.
    pub fn matches(&self, net: &IpNet) -> bool {
        let long_enough = || self.length.as_ref().is_none_or(|range| range.contains(&net.prefix_len()));
        match self.operator {
            PrefixOperator::In => self.set.covers(net) && long_enough(),
            PrefixOperator::NotIn => !(self.set.covers(net) && long_enough()),
            PrefixOperator::Equal => self.set.contains(net) && long_enough(),
            PrefixOperator::NotEqual => !(self.set.contains(net) && long_enough()),
        }
    }
}

impl Change {
    fn apply(&self, attrs: &mut Attrs) {
        match self {
            Change::AddCommunity(community) => attrs.add_community(*community),
            Change::PrependPath(path) => attrs.as_path = [path.as_slice(), &attrs.as_path].concat().into(),
            Change::SetLocalPref(value) => attrs.local_pref = Some(*value),
            Change::SetPreference(value) => attrs.preference = *value,
        }
    }
}

/// Returns whether `text` matches `pattern`, in which `*` matches any characters or none. Backtracks only to the
/// latest star, so the cost is at most the product of the two lengths.
pub fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut star, mut mark) = (0, None, 0);
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
        RouteContext { prefix: prefix.parse().unwrap(), source: Source::Peers, peer: PeerType::Internal }
    }

    fn prefix(operator: PrefixOperator, net: &str, length: Option<RangeInclusive<u8>>) -> Match {
        let set = [net.parse().unwrap()].into_iter().collect();
        Match { prefix: Some(PrefixMatch { operator, set, length }), ..Match::default() }
    }

    fn accepts(when: Match, route: RouteContext, attrs: &Attrs) -> bool {
        let rule = Rule { when, verdict: Some(Verdict::Accept), ..Rule::default() };
        Filter { rules: vec![rule], default: Verdict::Reject }.run(&route, attrs) != Outcome::Reject
    }

    #[test]
    fn prefix_operators() {
        use PrefixOperator::*;
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
            assert_eq!(accepts(when, route(net), &Attrs::default()), expected, "{operator:?} {net}");
        }
        let when = prefix(In, "fd00:1::/32", Some(64..=80));
        for (net, expected) in
            [("fd00:1::/48", false), ("fd00:1::/64", true), ("fd00:1::/80", true), ("fd00:1::/96", false)]
        {
            assert_eq!(accepts(when.clone(), route(net), &Attrs::default()), expected, "{net}");
        }
        let when = prefix(NotIn, "10.0.0.0/8", Some(16..=24));
        for (net, expected) in [("10.0.0.0/8", true), ("10.1.0.0/16", false), ("10.1.2.128/25", true)] {
            assert_eq!(accepts(when.clone(), route(net), &Attrs::default()), expected, "{net}");
        }
    }

    #[test]
    fn all_criteria_must_hold() {
        let attrs = Attrs {
            as_path: vec![64512, 64513].into(),
            communities: vec![7].into(),
            large_communities: vec![LargeCommunity::new(1, 2, 3)].into(),
            local_pref: Some(50),
            ..Attrs::default()
        };
        let route = route("10.0.0.0/24");
        let holds = |when: Match| accepts(when, route, &attrs);
        assert!(holds(Match::default()));
        assert!(holds(Match { as_path_prefix: vec![64512], ..Match::default() }));
        assert!(!holds(Match { as_path_prefix: vec![64513], ..Match::default() }));
        assert!(holds(Match { community: Some(Community::Standard(0, 7)), ..Match::default() }));
        assert!(!holds(Match { community: Some(Community::Standard(0, 8)), ..Match::default() }));
        let large = Community::Large(1, 2, 3);
        assert!(holds(Match { community: Some(large), ..Match::default() }));
        assert!(holds(Match { local_pref: Some(50..=50), ..Match::default() }));
        assert!(!holds(Match { local_pref: Some(51..=u32::MAX), ..Match::default() }));
        assert!(!holds(Match { source: Some(Source::Local), ..Match::default() }));
        assert!(!holds(Match { peer: Some(PeerType::External), ..Match::default() }));
        assert!(!holds(Match { device: Some("*".into()), ..Match::default() }));
        assert!(!holds(Match { community: Some(large), peer: Some(PeerType::External), ..Match::default() }));
    }

    #[test]
    fn changes_accumulate_until_a_verdict() {
        let tag = |value| Change::AddCommunity(Community::Standard(0, value));
        let filter = Filter {
            rules: vec![
                Rule { then: vec![tag(1)], ..Rule::default() },
                Rule {
                    when: Match { community: Some(Community::Standard(0, 1)), ..Match::default() },
                    then: vec![Change::PrependPath(vec![2, 3]), Change::SetLocalPref(9), tag(1)],
                    verdict: Some(Verdict::Accept),
                },
                Rule { then: vec![tag(4)], verdict: Some(Verdict::Reject), ..Rule::default() },
            ],
            default: Verdict::Reject,
        };
        let attrs = Attrs { as_path: vec![5].into(), ..Attrs::default() };
        let Outcome::Changed(changed) = filter.run(&route("10.0.0.0/8"), &attrs) else { panic!() };
        assert_eq!(*changed.as_path, [2, 3, 5]);
        assert_eq!((changed.local_pref, &*changed.communities), (Some(9), &[1][..]));
        assert_eq!(Filter::accept().run(&route("10.0.0.0/8"), &attrs), Outcome::Same);
        assert_eq!(Filter::reject().run(&route("10.0.0.0/8"), &attrs), Outcome::Reject);
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
