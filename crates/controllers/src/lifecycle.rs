//! Lifecycle of pools and tiers stored as custom resources of `projectcalico.org/v3`: which pools may allocate
//! addresses, and what must be gone before a pool or tier is deleted.
//!
//! No admission check compares such objects with each other, so it happens here, after the write: of two overlapping
//! pools, one allocates addresses. A finalizer delays a deletion until nothing depends on the object. It is set only
//! while something does, because no controller is left to remove it when Tortie is uninstalled.

use ipnet::IpNet;
use std::collections::BTreeMap;
use tortie_ipam::owner::attribute;
use tortie_ipam::{TunnelType, block};
use tortie_model::ipam::AddressBlock;
use tortie_model::kinds::{BUILT_IN_TIERS, Condition, IPPool, Tier};
use tortie_model::{ObjectMeta, Resource};

const POOL_FINALIZER: &str = "projectcalico.org/ippool-finalizer";
const TIER_FINALIZER: &str = "projectcalico.org/tier-controller";
const ALLOCATABLE_CONDITION: &str = "Allocatable";
const READY_CONDITION: &str = "Ready";

#[derive(Clone, Debug, PartialEq)]
// Actions are few and short-lived.
#[allow(clippy::large_enum_variant)]
pub enum LifecycleAction {
    Update(Resource),
    /// Releases the block affinities in a pool that is being deleted.
    ReleaseBlocks(IpNet),
}

/// Returns the updates of pool conditions and finalizers. `now` is in RFC 3339 format.
pub fn decide_pool_actions(
    pools: &BTreeMap<String, IPPool>,
    blocks: &BTreeMap<IpNet, &AddressBlock>,
    now: &str,
) -> Vec<LifecycleAction> {
    let mut actions = Vec::new();
    for (pool, overlaps) in rank_claims(pools) {
        let Ok(cidr) = pool.spec.cidr.parse::<IpNet>() else { continue };
        let inside: Vec<&&AddressBlock> =
            blocks.values().filter(|block| cidr.contains(&block.cidr)).collect();
        let mut changed = pool.clone();
        let (status, reason, message) = if is_terminating(&pool.metadata) {
            ("False", "Terminating", "the pool is being deleted")
        } else if overlaps {
            ("False", "CIDROverlap", "the CIDR overlaps with that of another pool")
        } else if pool.spec.disabled {
            ("False", "Disabled", "the pool is disabled")
        } else {
            ("True", "OK", "addresses can be allocated")
        };
        set_condition(&mut changed.status.conditions, ALLOCATABLE_CONDITION, status, reason, message, now);
        let is_held =
            is_terminating(&pool.metadata) && has_finalizer(&pool.metadata, POOL_FINALIZER) && !overlaps;
        let is_in_use =
            !is_terminating(&pool.metadata) && !overlaps && inside.iter().any(|block| is_used(block));
        if is_held && inside.iter().any(|block| block.affinity.is_some()) {
            actions.push(LifecycleAction::ReleaseBlocks(cidr));
        } else if is_in_use {
            add_finalizer(&mut changed.metadata, POOL_FINALIZER);
        } else if !is_held || inside.is_empty() {
            remove_finalizer(&mut changed.metadata, POOL_FINALIZER);
        }
        if changed != *pool {
            actions.push(LifecycleAction::Update(Resource::from(changed)));
        }
    }
    let cidrs: Vec<IpNet> = pools.values().filter_map(|pool| pool.spec.cidr.parse().ok()).collect();
    // Blocks of deleted pools that had no finalizer.
    let left_behind = blocks.values().filter(|block| {
        block.affinity.is_some()
            && block::is_empty(block)
            && !cidrs.iter().any(|cidr| cidr.contains(&block.cidr))
    });
    actions.extend(left_behind.map(|block| LifecycleAction::ReleaseBlocks(block.cidr)));
    actions
}

/// Returns whether the block has an address that keeps the pool. Nodes release the addresses of their tunnels
/// themselves.
fn is_used(block: &AddressBlock) -> bool {
    block::allocations(block).any(|allocation| {
        let is_tunnel =
            allocation.attribute(attribute::TYPE_ATTRIBUTE).and_then(TunnelType::of_attribute).is_some();
        !allocation.is_cooling_down() && !is_tunnel
    })
}

/// Returns the pools in order of precedence for their addresses, and whether each overlaps with one before it:
/// allocating pools first, then terminating, disabled and new ones; within each group the oldest first.
fn rank_claims(pools: &BTreeMap<String, IPPool>) -> Vec<(&IPPool, bool)> {
    let mut all: Vec<&IPPool> = pools.values().collect();
    all.sort_by_key(|pool| {
        (claim_rank(pool), pool.metadata.creation_timestamp.clone(), pool.metadata.name.clone())
    });
    let mut taken: Vec<IpNet> = Vec::new();
    let mut claims = Vec::new();
    for pool in all {
        let Ok(cidr) = pool.spec.cidr.parse::<IpNet>() else { continue };
        let overlaps = taken.iter().any(|other| other.contains(&cidr) || cidr.contains(other));
        if !overlaps {
            taken.push(cidr);
        }
        claims.push((pool, overlaps));
    }
    claims
}

fn claim_rank(pool: &IPPool) -> u8 {
    let allocatable =
        pool.status.conditions.iter().find(|condition| condition.r#type == ALLOCATABLE_CONDITION);
    match allocatable.map(|condition| condition.status.as_str()) {
        _ if is_terminating(&pool.metadata) => 1,
        Some("True") => 0,
        _ if pool.spec.disabled => 2,
        _ => 3,
    }
}

/// Returns the updates of tier conditions and finalizers. `policies` is the number of policies per tier. Built-in
/// tiers need no finalizer.
pub fn decide_tier_actions(
    tiers: &BTreeMap<String, Tier>,
    policies: &BTreeMap<&str, usize>,
    now: &str,
) -> Vec<LifecycleAction> {
    let updates = tiers.values().filter_map(|tier| {
        let mut changed = tier.clone();
        let remaining = policies.get(tier.metadata.name.as_str()).copied().unwrap_or_default();
        let is_built_in = BUILT_IN_TIERS.iter().any(|known| known.name == tier.metadata.name);
        match (is_terminating(&tier.metadata), remaining) {
            _ if is_built_in => remove_finalizer(&mut changed.metadata, TIER_FINALIZER),
            (false, 1..) => add_finalizer(&mut changed.metadata, TIER_FINALIZER),
            (false, 0) | (true, 0) => remove_finalizer(&mut changed.metadata, TIER_FINALIZER),
            (true, remaining) => {
                let message = format!("Waiting for policies to be removed: {remaining}");
                set_condition(
                    &mut changed.status.conditions,
                    READY_CONDITION,
                    "False",
                    "Terminating",
                    &message,
                    now,
                );
            }
        }
        (changed != *tier).then(|| LifecycleAction::Update(Resource::from(changed)))
    });
    updates.collect()
}

fn is_terminating(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some()
}

fn has_finalizer(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().any(|name| name == finalizer)
}

fn add_finalizer(meta: &mut ObjectMeta, finalizer: &str) {
    if !has_finalizer(meta, finalizer) {
        meta.finalizers.push(finalizer.to_owned());
    }
}

fn remove_finalizer(meta: &mut ObjectMeta, finalizer: &str) {
    meta.finalizers.retain(|name| name != finalizer);
}

/// Sets a condition. The transition time changes only with the status.
fn set_condition(
    conditions: &mut Vec<Condition>,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: &str,
) {
    let position = conditions.iter().position(|condition| condition.r#type == kind);
    let before = position.map(|position| conditions.remove(position));
    let since =
        before.filter(|before| before.status == status).and_then(|before| before.last_transition_time);
    let condition = Condition {
        r#type: kind.to_owned(),
        status: status.to_owned(),
        observed_generation: 0,
        last_transition_time: since.or_else(|| Some(now.to_owned())),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    conditions.insert(position.unwrap_or(conditions.len()), condition);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};
    use tortie_ipam::BlockOwner;
    use tortie_model::{Kind, StoreKey, StoreValue};

    const NOW: &str = "2026-03-01T10:20:30Z";

    fn object(kind: Kind, name: &str, meta: Json, spec: Json) -> Resource {
        let mut metadata = meta;
        metadata["name"] = name.into();
        let text = json!({"metadata": metadata, "spec": spec}).to_string();
        match StoreValue::decode(&StoreKey::resource(kind, "", name), text.as_bytes()).unwrap() {
            StoreValue::Resource(resource) => resource,
            other => panic!("{other:?}"),
        }
    }

    #[derive(Default)]
    struct LifecycleTestWorld {
        pools: BTreeMap<String, IPPool>,
        blocks: Vec<AddressBlock>,
    }

    impl LifecycleTestWorld {
        fn add(&mut self, name: &str, cidr: &str, created: &str) {
            let Resource::IPPool(pool) =
                object(Kind::IPPool, name, json!({"creationTimestamp": created}), json!({"cidr": cidr}))
            else {
                panic!()
            };
            self.pools.insert(name.to_owned(), *pool);
        }

        /// Executes actions as an API server would, until none are left.
        fn settle(&mut self) {
            for _ in 0..10 {
                let blocks = self.blocks.iter().map(|block| (block.cidr, block)).collect();
                let actions = decide_pool_actions(&self.pools, &blocks, NOW);
                if actions.is_empty() {
                    return;
                }
                for action in actions {
                    match action {
                        LifecycleAction::Update(Resource::IPPool(pool)) => {
                            let name = pool.metadata.name.clone();
                            let gone = is_terminating(&pool.metadata) && pool.metadata.finalizers.is_empty();
                            if gone {
                                self.pools.remove(&name);
                            } else {
                                self.pools.insert(name, *pool);
                            }
                        }
                        LifecycleAction::ReleaseBlocks(cidr) => {
                            self.blocks
                                .retain(|block| !cidr.contains(&block.cidr) || !block::is_empty(block));
                            let left = self.blocks.iter_mut().filter(|block| cidr.contains(&block.cidr));
                            left.for_each(block::disown);
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            panic!("there is no end to it");
        }

        fn reason(&self, name: &str) -> &str {
            &self.pools[name].status.conditions[0].reason
        }

        fn delete(&mut self, name: &str) {
            self.pools.get_mut(name).unwrap().metadata.deletion_timestamp = Some(NOW.to_owned());
        }
    }

    #[test]
    fn of_pools_that_overlap_one_hands_out_addresses() {
        let mut world = LifecycleTestWorld::default();
        world.add("late", "10.0.0.0/16", "2026-01-02T00:00:00Z");
        world.add("early", "10.0.128.0/17", "2026-01-01T00:00:00Z");
        world.add("apart", "10.1.0.0/16", "2026-01-03T00:00:00Z");
        world.settle();
        assert_eq!(["early", "late", "apart"].map(|name| world.reason(name)), ["OK", "CIDROverlap", "OK"]);
        assert!(world.pools["late"].metadata.finalizers.is_empty());
        // An older pool that is added later does not take over the addresses.
        world.add("oldest", "10.1.0.0/24", "2025-01-01T00:00:00Z");
        world.settle();
        assert_eq!(["apart", "oldest"].map(|name| world.reason(name)), ["OK", "CIDROverlap"]);
        world.pools.get_mut("apart").unwrap().spec.disabled = true;
        world.settle();
        assert_eq!(world.reason("apart"), "Disabled");
        world.delete("early");
        world.settle();
        assert_eq!(world.reason("late"), "OK", "it has got what the other had");
    }

    #[test]
    fn a_pool_stays_until_addresses_are_released() {
        let mut world = LifecycleTestWorld::default();
        world.add("p", "10.0.0.0/16", NOW);
        world.settle();
        let mut used = block::fresh(
            "10.0.0.0/29".parse().unwrap(),
            &BlockOwner::host("n1"),
            None,
            jiff::Timestamp::UNIX_EPOCH,
        );
        let holder = tortie_ipam::AddressHolder::new(Some("h"), BTreeMap::new());
        block::allocate(&mut used, 1, &holder, &tortie_ipam::reservation::ReservedRanges::new([]));
        let empty = block::fresh(
            "10.0.0.8/29".parse().unwrap(),
            &BlockOwner::host("n1"),
            None,
            jiff::Timestamp::UNIX_EPOCH,
        );
        world.blocks = vec![empty.clone()];
        world.settle();
        assert!(world.pools["p"].metadata.finalizers.is_empty(), "nobody has an address");
        world.blocks = vec![used, empty];
        world.settle();
        assert_eq!(world.pools["p"].metadata.finalizers, [POOL_FINALIZER]);
        world.delete("p");
        world.settle();
        assert_eq!((world.reason("p"), world.blocks.len()), ("Terminating", 1));
        world.blocks.clear();
        world.settle();
        assert!(world.pools.is_empty());
    }

    #[test]
    fn what_a_pool_leaves_behind_is_given_up() {
        let mut world = LifecycleTestWorld::default();
        world.add("p", "10.0.0.0/16", NOW);
        let fresh = |cidr: &str| {
            block::fresh(cidr.parse().unwrap(), &BlockOwner::host("n1"), None, jiff::Timestamp::UNIX_EPOCH)
        };
        let mut tunnel = fresh("10.0.0.0/29");
        let kind = BTreeMap::from([(attribute::TYPE_ATTRIBUTE.to_owned(), "vxlanTunnelAddress".to_owned())]);
        let holder = tortie_ipam::AddressHolder::new(Some("vxlan-tunnel-addr-n1"), kind);
        block::allocate(&mut tunnel, 1, &holder, &tortie_ipam::reservation::ReservedRanges::new([]));
        world.blocks = vec![tunnel, fresh("10.0.0.8/29")];
        world.settle();
        assert!(world.pools["p"].metadata.finalizers.is_empty(), "a tunnel does not keep it");
        world.pools.clear();
        world.settle();
        assert_eq!(world.blocks.len(), 1, "what still has an address is its node's");
    }

    #[test]
    fn a_tier_stays_until_its_policies_are_gone() {
        let Resource::Tier(tier) = object(Kind::Tier, "t", json!({}), json!({})) else { panic!() };
        let all = |tier: &Tier| BTreeMap::from([("t".to_owned(), tier.clone())]);
        let updated = |tier: &Tier, count: usize| match &decide_tier_actions(
            &all(tier),
            &BTreeMap::from([("t", count)]),
            NOW,
        )[..]
        {
            [LifecycleAction::Update(Resource::Tier(tier))] => Some((**tier).clone()),
            [] => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(updated(&tier, 0), None, "nothing depends on it");
        let mut tier = updated(&tier, 2).unwrap();
        assert_eq!(tier.metadata.finalizers, [TIER_FINALIZER]);
        assert_eq!(updated(&tier, 2), None);
        tier.metadata.deletion_timestamp = Some(NOW.to_owned());
        let waiting = updated(&tier, 2).unwrap();
        let condition = &waiting.status.conditions[0];
        assert_eq!(
            (condition.reason.as_str(), condition.message.as_str()),
            ("Terminating", "Waiting for policies to be removed: 2")
        );
        assert_eq!(updated(&waiting, 2), None);
        assert!(updated(&waiting, 0).unwrap().metadata.finalizers.is_empty());
    }
}
