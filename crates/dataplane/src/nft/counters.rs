//! What the kernel has counted, by the rules that people wrote.

use super::message::TABLE;
use super::table::TableFamily;
use crate::error::{Error, Result};
use crate::netns::Netns;
use nlink::netlink::nftables::Family;
use std::collections::BTreeMap;
use tortie_plan::Direction;

/// When a rule is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    Normal,
    PreDnat,
    Untracked,
}

/// What one rule of a policy or profile has matched since it was last written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleCounter {
    /// `np/shop/allow-web`, `profile/kns.shop`.
    pub holder: String,
    pub direction: Direction,
    pub when: When,
    /// Counted from 0 in the list of its direction.
    pub rule: usize,
    pub packets: u64,
    pub bytes: u64,
}

/// The counters of all rules that the kernel has in a namespace. Whoever wrote them need not run.
pub async fn counters(netns: &Netns) -> Result<Vec<RuleCounter>> {
    let connection = netns.nftables()?;
    let describe = |error: nlink::Error| Error::kernel(TableFamily::Inet.object(), &error);
    let tables = connection.list_tables_in(Family::Inet).await.map_err(describe)?;
    if !tables.iter().any(|table| table.name == TABLE) {
        let reason = "there is none in this network namespace: no policy is enforced here".into();
        return Err(Error::Kernel { object: TableFamily::Inet.object(), reason });
    }
    let mut sums: BTreeMap<(String, Direction, When, usize), (u64, u64)> = BTreeMap::new();
    for rule in connection.list_rules(TABLE, Family::Inet).await.map_err(describe)? {
        let comment = rule.comment_text.as_deref().unwrap_or_default();
        let index = comment.rsplit(' ').next().and_then(|index| index.parse().ok());
        let Some(((holder, direction, when), index)) = meaning(&rule.chain).zip(index) else { continue };
        // A rule of ours is several of the kernel's when it can match in several ways.
        let (packets, bytes) = sums.entry((holder.to_owned(), direction, when, index)).or_default();
        let counted = rule.counter().unwrap_or_default();
        (*packets, *bytes) = (*packets + counted.0, *bytes + counted.1);
    }
    let counter = |((holder, direction, when, rule), (packets, bytes))| RuleCounter {
        holder,
        direction,
        when,
        rule,
        packets,
        bytes,
    };
    Ok(sums.into_iter().map(counter).collect())
}

/// Whose chain it is; nothing for chains that are no policy's.
fn meaning(chain: &str) -> Option<(&str, Direction, When)> {
    let stages = [("pre-dnat-", When::PreDnat), ("untracked-", When::Untracked), ("", When::Normal)];
    let (rest, when) = stages.iter().find_map(|(prefix, when)| Some((chain.strip_prefix(prefix)?, *when)))?;
    let ways = [("in-", Direction::Ingress), ("out-", Direction::Egress)];
    ways.iter().find_map(|(prefix, direction)| Some((rest.strip_prefix(prefix)?, *direction, when)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_tell_whose_they_are() {
        use Direction::{Egress, Ingress};
        assert_eq!(meaning("in-np/shop/web"), Some(("np/shop/web", Ingress, When::Normal)));
        assert_eq!(meaning("untracked-out-gnp/x"), Some(("gnp/x", Egress, When::Untracked)));
        assert_eq!(meaning("pre-dnat-in-gnp/x"), Some(("gnp/x", Ingress, When::PreDnat)));
        for other in ["input", "output-raw", "to-cali1", "host-in/eth0", "pre-dnat", "input-after"] {
            assert_eq!(meaning(other), None, "{other}");
        }
    }
}
