//! Shrinks a plan on which the kernel and the evaluator differ to a minimal one.

use crate::world::{PacketFixture, TestPacket};
use std::sync::Arc;
use std::time::Duration;
use tortie_plan::{NodePlan, PlannedPolicy, PlannedRule, RuleSide};

/// Maximum number of plans to try.
const MAX_SHRINK_TRIES: usize = 400;
const SHRINK_PACKET_TIMEOUT: Duration = Duration::from_millis(200);

pub async fn shrink(world: &mut PacketFixture, mut plan: NodePlan, sent: &TestPacket) -> NodePlan {
    let mut tries = 0;
    loop {
        let mut smaller = None;
        for candidate in candidates(&plan) {
            tries += 1;
            if tries > MAX_SHRINK_TRIES {
                break;
            }
            if differs(world, &candidate, sent).await {
                smaller = Some(candidate);
                break;
            }
        }
        match smaller {
            Some(candidate) => plan = candidate,
            None => break,
        }
    }
    // Leave the kernel with the plan that is printed.
    world.apply(&plan, true).await;
    plan
}

async fn differs(world: &mut PacketFixture, plan: &NodePlan, sent: &TestPacket) -> bool {
    world.apply(plan, true).await;
    let expected = world.expected(plan, sent);
    world.send(std::slice::from_ref(sent), &[expected], SHRINK_PACKET_TIMEOUT).await != [expected]
}

/// Returns plans with one part removed each; large parts first.
fn candidates(plan: &NodePlan) -> Vec<NodePlan> {
    let mut found = Vec::new();
    let mut with = |change: &dyn Fn(&mut NodePlan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        if smaller != *plan {
            found.push(smaller);
        }
    };
    with(&|plan| plan.service_ranges.clear());
    for name in plan.host_endpoints.keys() {
        with(&|plan| {
            plan.host_endpoints.remove(name);
        });
    }
    for id in plan.workload_policies.keys() {
        with(&|plan| {
            plan.workload_policies.remove(id);
        });
        with(&|plan| plan.workload_policies.get_mut(id).unwrap().allowed_sources.clear());
        with(&|plan| plan.workload_policies.get_mut(id).unwrap().http_proxy = false);
        for tier in 0..plan.workload_policies[id].tiers.len() {
            with(&|plan| {
                plan.workload_policies.get_mut(id).unwrap().tiers.remove(tier);
            });
        }
    }
    for id in plan.policies.keys() {
        with(&|plan| {
            plan.policies.remove(id);
        });
        for egress in [false, true] {
            let rules =
                |policy: &PlannedPolicy| if egress { policy.egress.len() } else { policy.ingress.len() };
            for index in 0..rules(&plan.policies[id]) {
                let edit = |plan: &mut NodePlan, edit: &dyn Fn(&mut Vec<PlannedRule>)| {
                    let mut policy = PlannedPolicy::clone(&plan.policies[id]);
                    edit(if egress { &mut policy.egress } else { &mut policy.ingress });
                    plan.policies.insert(id.clone(), Arc::new(policy));
                };
                with(&|plan| {
                    edit(plan, &|rules| {
                        rules.remove(index);
                    });
                });
                let weaker: [fn(&mut PlannedRule); 8] = [
                    |rule| rule.http = None,
                    |rule| rule.source = RuleSide::default(),
                    |rule| rule.destination = RuleSide::default(),
                    |rule| rule.protocol = None,
                    |rule| rule.not_protocol = None,
                    |rule| rule.icmp = None,
                    |rule| rule.not_icmp = None,
                    |rule| rule.ip_version = None,
                ];
                for change in weaker {
                    with(&|plan| edit(plan, &|rules| change(&mut rules[index])));
                }
            }
        }
    }
    for (id, set) in &plan.sets {
        for member in &set.members {
            with(&|plan| {
                plan.sets.get_mut(id).unwrap().members.remove(member);
            });
        }
    }
    found
}
