//! Selects the policies of a list by protocol and destination port before any of them is evaluated. A policy whose rules
//! all name a protocol and destination ports cannot match other packets, so skipping it changes neither a verdict nor a
//! counter. A map leads from protocol and port to the policies that remain, in their order; the cost of a decision does
//! not grow with the number of the others.

use super::super::rule::{NftAction, NftField, NftMatch, NftRule};
use super::super::table::{NftChain, NftElement, join};
use super::names;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{PlannedRule, PolicyDirection, PortInterval};

/// Protocols whose packets have ports.
pub const PROTOCOLS_WITH_PORTS: [u8; 4] = [6, 17, 132, 136];

/// Minimum number of consecutive policies that a map replaces: the lookup costs as much as a few jumps.
const MIN_DISPATCHED_POLICIES: usize = 16;
/// Maximum number of keys of one policy, which bounds maps and chains by a multiple of the number of policies. A policy
/// with more is evaluated for every packet.
const MAX_POLICY_KEYS: usize = 16;

/// The key of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortKey {
    pub protocol: u8,
    pub port: u16,
}

impl PortKey {
    /// The fields of a packet that form its key. The kernel skips the rule for packets without ports.
    const FIELDS: [NftField; 2] = [NftField::Protocol, NftField::DestinationPort];

    fn bytes(self) -> Vec<u8> {
        join(&[&[self.protocol], &self.port.to_be_bytes()])
    }
}

/// Returns the keys of all packets that the rules can match. Returns `None` if they can also match packets without such
/// a key, or if there are too many keys.
pub fn port_keys(rules: &[PlannedRule]) -> Option<BTreeSet<PortKey>> {
    let mut keys = BTreeSet::new();
    for rule in rules {
        let protocol = rule.protocol.filter(|protocol| PROTOCOLS_WITH_PORTS.contains(protocol))?;
        let destination = &rule.destination;
        if destination.ports.is_empty() || !destination.named_ports.is_empty() {
            return None;
        }
        for PortInterval { first, last } in &destination.ports {
            if usize::from(last.saturating_sub(*first)) >= MAX_POLICY_KEYS {
                return None;
            }
            keys.extend((*first..=*last).map(|port| PortKey { protocol, port }));
        }
        if keys.len() > MAX_POLICY_KEYS {
            return None;
        }
    }
    Some(keys)
}

/// The jump to the chain of one policy.
#[derive(Debug)]
pub struct PolicyJump {
    pub chain: String,
    /// The packets that the policy can match; `None` if they are not restricted to certain ports.
    pub keys: Option<BTreeSet<PortKey>>,
    /// Whether the policy may pass packets to the next tier.
    pub may_pass: bool,
}

/// Rules, and the maps and chains that only they refer to.
#[derive(Debug, Default)]
pub struct DispatchedRules {
    pub rules: Vec<NftRule>,
    pub maps: BTreeMap<String, BTreeSet<NftElement>>,
    pub chains: BTreeMap<String, NftChain>,
}

/// Renders the jumps to the policies of one tier.
#[derive(Clone, Copy)]
pub struct JumpRenderer {
    /// First part of the names of maps and chains: objects of one name have one owner.
    pub prefix: &'static str,
    pub direction: PolicyDirection,
    /// The bit of the mark of packets that a policy has passed.
    pub passed: u32,
}

impl JumpRenderer {
    /// Returns the condition that excludes packets which an earlier policy of the tier may have passed.
    pub fn unless_passed(self, may_have_passed: bool) -> Vec<NftMatch> {
        if may_have_passed { vec![NftMatch::mark(self.passed).not()] } else { Vec::new() }
    }

    /// Adds the jumps to the policies, in their order. Returns whether one of them may have passed the packet.
    pub fn add_policies(self, jumps: &[PolicyJump], rendered: &mut DispatchedRules) -> bool {
        let mut may_have_passed = false;
        for run in jumps.chunk_by(|one, next| one.keys.is_some() == next.keys.is_some()) {
            let selective = run.first().is_some_and(|jump| jump.keys.is_some());
            if selective && run.len() >= MIN_DISPATCHED_POLICIES {
                let map = self.add_map(run, rendered);
                let dispatch = NftAction::Dispatch { fields: PortKey::FIELDS.to_vec(), map };
                rendered.rules.push(NftRule::new(self.unless_passed(may_have_passed), vec![dispatch]));
                may_have_passed |= run.iter().any(|jump| jump.may_pass);
            } else {
                rendered.rules.extend(self.jump_rules(run, &mut may_have_passed));
            }
        }
        may_have_passed
    }

    /// Returns a jump to each policy. Policies after one that may pass must skip the packets that it has passed.
    fn jump_rules<'j>(
        self,
        jumps: impl IntoIterator<Item = &'j PolicyJump>,
        may_have_passed: &mut bool,
    ) -> Vec<NftRule> {
        let mut rules = Vec::new();
        for jump in jumps {
            let action = NftAction::Jump(jump.chain.clone());
            rules.push(NftRule::new(self.unless_passed(*may_have_passed), vec![action]));
            *may_have_passed |= jump.may_pass;
        }
        rules
    }

    /// Adds the map for these policies and the chains of its keys that several of them share. Returns the name of the
    /// map. Both are named after their content, so a changed map is a new one: the kernel lets a packet continue with
    /// the rules with which it began, but not with the elements.
    fn add_map(self, run: &[PolicyJump], rendered: &mut DispatchedRules) -> String {
        let mut candidates: BTreeMap<PortKey, Vec<&PolicyJump>> = BTreeMap::new();
        for jump in run {
            for key in jump.keys.iter().flatten() {
                candidates.entry(*key).or_default().push(jump);
            }
        }
        let mut elements = BTreeSet::new();
        for (key, jumps) in candidates {
            let target = match jumps.as_slice() {
                [only] => only.chain.clone(),
                several => {
                    let rules = self.jump_rules(several.iter().copied(), &mut false);
                    let name = names::candidates(self.prefix, self.direction, &rules);
                    rendered.chains.insert(name.clone(), NftChain { hook: None, rules });
                    name
                }
            };
            elements.insert(NftElement::jump(key.bytes(), &target));
        }
        let name = names::port_map(self.prefix, self.direction, &elements);
        rendered.maps.insert(name.clone(), elements);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::table::ElementData;
    use super::*;
    use proptest::prelude::*;
    use tortie_plan::RuleAction;

    const PASSED: u32 = 0x20000;
    const RENDERER: JumpRenderer =
        JumpRenderer { prefix: "", direction: PolicyDirection::Ingress, passed: PASSED };

    fn key(protocol: u8, port: u16) -> PortKey {
        PortKey { protocol, port }
    }

    fn rule(protocol: u8, first: u16, last: u16) -> PlannedRule {
        let mut rule = PlannedRule::new(RuleAction::Allow);
        rule.protocol = Some(protocol);
        rule.destination.ports = vec![PortInterval { first, last }];
        rule
    }

    #[test]
    fn only_rules_with_few_ports_have_keys() {
        let keys = |rules: &[PlannedRule]| port_keys(rules).map(Vec::from_iter);
        assert_eq!(
            keys(&[rule(6, 80, 81), rule(17, 53, 53)]),
            Some(vec![key(6, 80), key(6, 81), key(17, 53)])
        );
        assert_eq!(keys(&[rule(6, 65535, 65535)]), Some(vec![key(6, 65535)]));
        assert_eq!(keys(&[rule(6, 9, 3)]), Some(Vec::new()), "it matches no packet");
        assert_eq!(keys(&[rule(6, 1, 16)]).unwrap().len(), MAX_POLICY_KEYS);
        assert_eq!(keys(&[rule(6, 1, 17)]), None);
        assert_eq!(keys(&[rule(6, 0, 65535)]), None);
        assert_eq!(keys(&[rule(6, 1, 10), rule(6, 101, 110)]), None);
        assert_eq!(keys(&[rule(1, 80, 80)]), None, "ICMP has no ports");
        assert_eq!(keys(&[rule(6, 80, 80), PlannedRule::new(RuleAction::Deny)]), None);
        let mut named = rule(6, 80, 80);
        named.destination.named_ports = vec![tortie_plan::SetId::new("n:web")];
        assert_eq!(keys(&[named]), None, "the set may contain any port");
        let mut any_protocol = rule(6, 80, 80);
        any_protocol.protocol = None;
        assert_eq!(keys(&[any_protocol]), None);
        let mut excluded = PlannedRule::new(RuleAction::Allow);
        excluded.protocol = Some(6);
        excluded.destination.not_ports = vec![PortInterval { first: 80, last: 80 }];
        assert_eq!(keys(&[excluded]), None);
    }

    /// Evaluates rules as the kernel does and returns the policies that are evaluated. A policy in `passing` passes the
    /// packet.
    fn walk(
        rules: &[NftRule],
        rendered: &DispatchedRules,
        packet: PortKey,
        passing: &[String],
    ) -> Vec<String> {
        let mut visited = Vec::new();
        let mut marked = false;
        walk_chain(rules, rendered, packet, passing, &mut visited, &mut marked);
        visited
    }

    fn walk_chain(
        rules: &[NftRule],
        rendered: &DispatchedRules,
        packet: PortKey,
        passing: &[String],
        visited: &mut Vec<String>,
        marked: &mut bool,
    ) {
        for rule in rules {
            assert!(rule.matches.iter().all(|condition| *condition == NftMatch::mark(PASSED).not()));
            if *marked && !rule.matches.is_empty() {
                continue;
            }
            let target = match rule.actions.as_slice() {
                [NftAction::Jump(chain)] => chain.clone(),
                [NftAction::Dispatch { map, .. }] => {
                    let key: Box<[u8]> = packet.bytes().into();
                    let Some(element) = rendered.maps[map].iter().find(|element| element.key == key) else {
                        continue;
                    };
                    let ElementData::Jump(chain) = &element.data else { panic!("{element:?}") };
                    chain.to_string()
                }
                other => panic!("{other:?}"),
            };
            if let Some(chain) = rendered.chains.get(&target) {
                walk_chain(&chain.rules, rendered, packet, passing, visited, marked);
            } else {
                *marked |= passing.contains(&target);
                visited.push(target);
            }
        }
    }

    fn jumps() -> impl Strategy<Value = Vec<PolicyJump>> {
        let port =
            (prop_oneof![Just(6u8), Just(17)], 0..6u16).prop_map(|(protocol, port)| key(protocol, port));
        let keys = prop_oneof![
            1 => Just(None),
            20 => prop::collection::btree_set(port, 0..4).prop_map(Some),
        ];
        prop::collection::vec((keys, prop::bool::weighted(0.1)), 0..80).prop_map(|jumps| {
            let numbered = jumps.into_iter().enumerate();
            numbered
                .map(|(number, (keys, may_pass))| PolicyJump {
                    chain: format!("in-gnp/{number}"),
                    keys,
                    may_pass,
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn dispatch_evaluates_what_can_match_in_order(jumps in jumps(), protocol in 6..8u8, port in 0..7u16) {
            let packet = key(protocol, port);
            let can_match = |jump: &&PolicyJump| jump.keys.as_ref().is_none_or(|keys| keys.contains(&packet));
            let passing: Vec<String> = jumps
                .iter()
                .filter(can_match)
                .filter(|jump| jump.may_pass)
                .map(|jump| jump.chain.clone())
                .collect();
            let mut rendered = DispatchedRules::default();
            let may_have_passed = RENDERER.add_policies(&jumps, &mut rendered);
            prop_assert_eq!(may_have_passed, jumps.iter().any(|jump| jump.may_pass));

            let mut may_have_passed = false;
            let sequence = RENDERER.jump_rules(&jumps, &mut may_have_passed);
            let matching: Vec<&String> = jumps.iter().filter(can_match).map(|jump| &jump.chain).collect();
            let mut expected = walk(&sequence, &rendered, packet, &passing);
            expected.retain(|chain| matching.contains(&chain));
            let mut visited = walk(&rendered.rules, &rendered, packet, &passing);
            let all = visited.len();
            visited.retain(|chain| matching.contains(&chain));
            prop_assert_eq!(&visited, &expected);
            // Only short runs of policies that cannot match are evaluated in vain.
            let runs = jumps.chunk_by(|one, next| one.keys.is_some() == next.keys.is_some());
            let short: usize = runs.map(<[PolicyJump]>::len).filter(|length| *length < MIN_DISPATCHED_POLICIES).sum();
            prop_assert!(all - visited.len() <= short);
        }
    }

    #[test]
    fn rules_grow_with_policies_and_ports_alone() {
        let policy = |number: u16| PolicyJump {
            chain: format!("in-gnp/{number}"),
            keys: Some(BTreeSet::from([key(6, number % 1000)])),
            may_pass: false,
        };
        for (count, rules, chains) in [(15, 15, 0), (16, 1, 0), (1000, 1, 0), (10_000, 1, 1000)] {
            let mut rendered = DispatchedRules::default();
            let jumps: Vec<PolicyJump> = (0..count).map(policy).collect();
            assert!(!RENDERER.add_policies(&jumps, &mut rendered));
            assert_eq!((rendered.rules.len(), rendered.chains.len()), (rules, chains), "{count} policies");
            let elements: usize = rendered.maps.values().map(BTreeSet::len).sum();
            assert_eq!(elements, if count < 16 { 0 } else { usize::from(count).min(1000) });
            assert!(rendered.chains.values().all(|chain| chain.rules.len() == 10));
        }
    }
}
