//! The kernel gives the same verdicts as the evaluator: generated plans, real packets, both families. `TORTIE_SEED`
//! (a number, or `random`) selects another run, `TORTIE_PLANS` a longer one.

use crate::generate::PlanGenerator;
use crate::shrink;
use crate::world::{PacketFixture, PacketLocation, TestPacket};
use std::collections::BTreeSet;
use std::time::Duration;
use tortie_plan::NodePlan;
use tortie_plan::evaluate::{ConntrackState, Packet};
use tortie_plan::flow::{FlowDecision, FlowKey, FlowSourceSettings, FlowTuple};

const DEFAULT_SEED: u64 = 1;
/// Timeout for packets that are expected to arrive.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for flow events: a loaded machine reads counters less often.
const COUNT_TIMEOUT: Duration = Duration::from_secs(60);
const PLAN_COUNT: usize = 60;
const PACKETS_PER_PLAN: usize = 400;

/// Records flows without limits, so that the key of every packet can be compared.
const RECORDED: FlowSourceSettings = FlowSourceSettings {
    new_keys_per_second: 1_000_000,
    max_keys: 65_535,
    key_timeout: Duration::from_secs(3600),
    count_interval: Duration::from_millis(100),
    connection_interval: Duration::from_secs(3600),
};

/// Returns the key that a packet must have in flow events; `None` if the node records nothing about it: no rule has
/// decided, or the packet has no connection.
fn recorded_key(world: &PacketFixture, plan: &NodePlan, sent: &TestPacket) -> Option<FlowKey> {
    let decision = world.judge(plan, sent).1?;
    let Packet { source, destination, protocol, .. } = sent.packet;
    let FlowDecision { egress, ingress, host_ingress, host_egress, .. } = &decision;
    let passages = usize::from(host_ingress.is_some()) + usize::from(host_egress.is_some());
    let none = egress.is_none() && ingress.is_none() && passages == 0;
    // Packets of tunnels between nodes are not tracked.
    let is_tunnel =
        !plan.tunnels.is_empty() && protocol == Packet::UDP && !matches!(sent.from, PacketLocation::Pod(_));
    // Before DNAT, a packet is denied with its original destination.
    let may_be_original = sent.original.is_some() && !decision.allowed && host_ingress.is_some();
    if none || may_be_original || passages > 1 || is_tunnel || sent.connection != ConntrackState::New {
        return None;
    }
    let port = match sent.packet.icmp {
        Some((kind, code)) => u16::from_be_bytes([kind, code]),
        None if [6, 17, 132, 136].contains(&sent.packet.protocol) => sent.packet.destination_port,
        None => 0,
    };
    let tuple = FlowTuple { source, destination, protocol, destination_port: port };
    Some(FlowKey { tuple, decision })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_judges_as_the_evaluator_does() {
    let seed = match std::env::var("TORTIE_SEED").as_deref() {
        Ok("random") => rand::random(),
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => DEFAULT_SEED,
    };
    let plans = std::env::var("TORTIE_PLANS").map_or(PLAN_COUNT, |plans| plans.parse().unwrap());
    println!("TORTIE_SEED={seed}");
    let mut generator = PlanGenerator::new(seed);
    let mut world = PacketFixture::new().await;
    let (mut allowed, mut denied) = (0, 0);
    let mut identities = 0;
    let mut rounds_with_port_maps = 0;
    let mut plan = NodePlan::default();
    for round in 0..plans {
        // Restart the daemon every ten rounds with other settings; it adopts the table of its predecessor.
        if round % 10 == 0 {
            world.is_the_same_when_made_anew().await;
            let mut settings = generator.settings();
            settings.policy.flows = (round % 20 == 0).then_some(RECORDED);
            world.restart(settings).await;
        }
        // In every fourth round only the proxies of workloads come and go.
        if round % 4 == 3 {
            plan.workload_policies.values_mut().for_each(|policy| policy.http_proxy ^= true);
        } else {
            plan = generator.plan();
        }
        world.apply(&plan, round % 3 == 0).await;
        rounds_with_port_maps += usize::from(world.listing().contains("map ports-"));
        let packets: Vec<TestPacket> = (0..PACKETS_PER_PLAN).map(|_| generator.packet(&plan)).collect();
        let expected: Vec<bool> = packets.iter().map(|sent| world.expected(&plan, sent)).collect();
        let found = world.send(&packets, &expected, ARRIVAL_TIMEOUT).await;
        if round % 20 < 10 {
            let all = packets.iter().filter_map(|sent| recorded_key(&world, &plan, sent));
            let wanted: BTreeSet<FlowKey> = all.collect();
            identities += wanted.len();
            let missing: Vec<FlowKey> = {
                let seen = world.flow_keys(&wanted, COUNT_TIMEOUT).await;
                wanted.difference(seen).cloned().collect()
            };
            let near: Vec<_> = missing.iter().map(|missing| world.similar_keys(missing)).collect();
            assert!(
                missing.is_empty(),
                "TORTIE_SEED={seed} round {round}: missing {missing:#?}, seen {near:#?}"
            );
        }
        allowed += expected.iter().filter(|allowed| **allowed).count();
        denied += expected.iter().filter(|allowed| !**allowed).count();
        let wrong = (0..packets.len()).find(|index| expected[*index] != found[*index]);
        if let Some(index) = wrong {
            let small = shrink::shrink(&mut world, plan, &packets[index]).await;
            panic!(
                "TORTIE_SEED={seed} round {round}: the evaluator says {}, the kernel {}\n{:#?}\n{:#?}\n{}",
                expected[index],
                found[index],
                packets[index],
                small,
                world.listing()
            );
        }
    }
    println!(
        "{allowed} packets allowed, {denied} denied; port maps in {rounds_with_port_maps} of {plans} rounds"
    );
    assert!(
        rounds_with_port_maps >= plans / 4,
        "port maps in only {rounds_with_port_maps} of {plans} rounds"
    );
    println!("{identities} keys had the identities of the evaluator's rules");
    assert!(identities > plans * PACKETS_PER_PLAN / 10, "only {identities} keys were compared");
    let all = plans * PACKETS_PER_PLAN;
    assert!(allowed > all / 20 && denied > all / 20, "too one-sided: {allowed} allowed, {denied} denied");
}
