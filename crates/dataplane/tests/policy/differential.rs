//! The kernel gives the same verdicts as the evaluator: generated plans, real packets, both families. `TORTIE_SEED`
//! (a number, or `random`) selects another run, `TORTIE_PLANS` a longer one.

use crate::generate::PlanGenerator;
use crate::shrink;
use crate::world::{PacketFixture, TestPacket};
use std::time::Duration;
use tortie_plan::NodePlan;

const DEFAULT_SEED: u64 = 1;
/// Timeout for packets that are expected to arrive.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(5);
const PLAN_COUNT: usize = 60;
const PACKETS_PER_PLAN: usize = 400;

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
    let mut rounds_with_port_maps = 0;
    let mut plan = NodePlan::default();
    for round in 0..plans {
        // Restart the daemon every ten rounds with other settings; it adopts the table of its predecessor.
        if round % 10 == 0 {
            world.is_the_same_when_made_anew().await;
            world.restart(generator.settings()).await;
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
    let all = plans * PACKETS_PER_PLAN;
    assert!(allowed > all / 20 && denied > all / 20, "too one-sided: {allowed} allowed, {denied} denied");
}
