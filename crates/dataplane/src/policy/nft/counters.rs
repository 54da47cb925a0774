//! Reads the kernel's counters and assigns them to policy rules.

use super::super::counters::{CountedStage, CountedVerdict, CounterSubject, RuleCounter};
use super::message::TABLE_NAME;
use super::render::{NO_PROFILE_COMMENT, TIER_END_COMMENT};
use super::table::TableFamily;
use crate::error::{DataplaneError, DataplaneResult};
use crate::netlink::attributes;
use crate::netns::Netns;
use nlink::netlink::nftables::{self as wire, Family};
use std::collections::BTreeMap;
use tortie_plan::{PolicyDirection, RuleId, RuleIndex, RuleOwner};

/// Verdict codes that end the evaluation of the table.
const NF_DROP: i32 = 0;
const NF_ACCEPT: i32 = 1;

/// Returns the counters of all policy rules in a namespace. The node that wrote them need not be running.
pub async fn read_counters(netns: &Netns) -> DataplaneResult<Vec<RuleCounter>> {
    let connection = netns.nftables()?;
    let table = TableFamily::Inet;
    let tables = connection.list_tables_in(Family::Inet).await.map_err(|error| table.error(&error))?;
    if !tables.iter().any(|table| table.name == TABLE_NAME) {
        let reason = "not found in this network namespace: no policy is enforced here".into();
        return Err(DataplaneError::Kernel { object: table.object(), reason });
    }
    let mut sums: BTreeMap<(CounterSubject, CountedStage), RuleCounter> = BTreeMap::new();
    let rules = connection.list_rules(TABLE_NAME, Family::Inet).await;
    for rule in rules.map_err(|error| table.error(&error))? {
        let comment = rule.comment_text.as_deref().unwrap_or_default();
        let Some((of, when)) = counter_subject(&rule.chain, comment) else { continue };
        // One policy rule becomes several kernel rules if it can match in several ways, and every list of
        // policies has its own end of each tier.
        let sum = sums.entry((of.clone(), when)).or_insert_with(|| {
            let verdict = read_verdict(&of, &rule.expression_bytes);
            RuleCounter { of, when, verdict, packets: 0, bytes: 0 }
        });
        let (packets, bytes) = rule.counter().unwrap_or_default();
        sum.packets = sum.packets.saturating_add(packets);
        sum.bytes = sum.bytes.saturating_add(bytes);
    }
    Ok(sums.into_values().collect())
}

/// Determines the verdict of a rule from its expressions in the kernel.
fn read_verdict(of: &CounterSubject, expressions: &[u8]) -> CountedVerdict {
    let id = match of {
        CounterSubject::Rule(id) => id,
        CounterSubject::TierEnd { .. } | CounterSubject::NoProfile { .. } => return CountedVerdict::Deny,
    };
    if matches!(&id.owner, RuleOwner::Policy(policy) if policy.kind.is_staged()) {
        return CountedVerdict::Staged;
    }
    let mut verdict = CountedVerdict::Pass;
    for (_, expression) in attributes::read(expressions) {
        let name = attributes::find(expression, wire::NFTA_EXPR_NAME).unwrap_or_default();
        match name.split(|byte| *byte == 0).next().unwrap_or_default() {
            b"reject" => verdict = CountedVerdict::Deny,
            b"log" => verdict = CountedVerdict::Log,
            b"immediate" => match verdict_code(expression) {
                Some(NF_DROP) => verdict = CountedVerdict::Deny,
                Some(NF_ACCEPT) => verdict = CountedVerdict::Allow,
                // The packet is recorded before it is denied.
                Some(wire::NFT_GOTO) => verdict = CountedVerdict::Deny,
                _ => {}
            },
            _ => {}
        }
    }
    verdict
}

fn verdict_code(expression: &[u8]) -> Option<i32> {
    let data = attributes::find(expression, wire::NFTA_EXPR_DATA)?;
    let data = attributes::find(data, wire::NFTA_IMMEDIATE_DATA)?;
    let verdict = attributes::find(data, wire::NFTA_DATA_VERDICT)?;
    let code = attributes::find(verdict, wire::NFTA_VERDICT_CODE)?;
    code.try_into().ok().map(i32::from_be_bytes)
}

/// Returns the object that the counter of a rule belongs to; `None` for rules that do not belong to a policy.
fn counter_subject(chain: &str, comment: &str) -> Option<(CounterSubject, CountedStage)> {
    let stages = [
        ("pre-dnat-", CountedStage::PreDnat),
        ("untracked-", CountedStage::Untracked),
        ("forward-", CountedStage::Normal),
        ("", CountedStage::Normal),
    ];
    let (rest, when) = stages.iter().find_map(|(prefix, when)| Some((chain.strip_prefix(prefix)?, *when)))?;
    if let Some(owned) = parse_rule_id(rest, comment) {
        return Some((CounterSubject::Rule(owned), when));
    }
    let direction = endpoint_direction(chain)?;
    let end = match comment.strip_prefix(TIER_END_COMMENT) {
        Some(tier) => CounterSubject::TierEnd { tier: tier.to_owned(), direction },
        None if comment == NO_PROFILE_COMMENT => CounterSubject::NoProfile { direction },
        None => return None,
    };
    Some((end, CountedStage::Normal))
}

/// Parses the identity of a rule of a policy or profile: the owner from its chain, the index from its comment.
fn parse_rule_id(chain: &str, comment: &str) -> Option<RuleId> {
    let index = RuleIndex::at(comment.rsplit(' ').next()?.parse().ok()?);
    if let Some(owner) = chain.strip_prefix("in-") {
        return Some(RuleId { owner: owner.parse().ok()?, direction: PolicyDirection::Ingress, index });
    }
    let owner = chain.strip_prefix("out-")?.parse().ok()?;
    Some(RuleId { owner, direction: PolicyDirection::Egress, index })
}

/// Returns the direction that a chain of an endpoint handles, as seen from the endpoint.
fn endpoint_direction(chain: &str) -> Option<PolicyDirection> {
    const INGRESS: [&str; 3] = ["policies-in-", "host-in/", "host-forward-in/"];
    const EGRESS: [&str; 3] = ["policies-out-", "host-out/", "host-forward-out/"];
    if INGRESS.iter().any(|prefix| chain.starts_with(prefix)) {
        return Some(PolicyDirection::Ingress);
    }
    EGRESS.iter().any(|prefix| chain.starts_with(prefix)).then_some(PolicyDirection::Egress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_and_comments_tell_what_is_counted() {
        use PolicyDirection::{Egress, Ingress};
        let rule = |chain: &str, comment: &str| match counter_subject(chain, comment) {
            Some((CounterSubject::Rule(id), when)) => Some((id.to_string(), when)),
            _ => None,
        };
        assert_eq!(
            rule("in-np/shop/web", "np/shop/web 0"),
            Some(("np/shop/web ingress rule 1".to_owned(), CountedStage::Normal))
        );
        assert_eq!(
            rule("untracked-out-gnp/x", "gnp/x 3"),
            Some(("gnp/x egress rule 4".to_owned(), CountedStage::Untracked))
        );
        assert_eq!(
            rule("pre-dnat-in-gnp/x", "gnp/x 0"),
            Some(("gnp/x ingress rule 1".to_owned(), CountedStage::PreDnat))
        );
        assert_eq!(
            rule("forward-in-gnp/x", "gnp/x 1"),
            Some(("gnp/x ingress rule 2".to_owned(), CountedStage::Normal))
        );
        let end = |direction| {
            Some((CounterSubject::TierEnd { tier: "default".into(), direction }, CountedStage::Normal))
        };
        assert_eq!(counter_subject("policies-in-0a1b", "end of tier default"), end(Ingress));
        assert_eq!(counter_subject("host-out/eth0", "end of tier default"), end(Egress));
        let none = Some((CounterSubject::NoProfile { direction: Egress }, CountedStage::Normal));
        assert_eq!(counter_subject("policies-out-0a1b", "no profile allows it"), none);
        for other in
            ["input", "output-raw", "to-cali1", "policies-in-0a1b", "host-in/eth0", "pre-dnat", "input-after"]
        {
            assert_eq!(counter_subject(other, "invalid"), None, "{other}");
        }
    }
}
