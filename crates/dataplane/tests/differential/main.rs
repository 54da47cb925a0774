//! The kernel judges packets as the evaluator does: generated plans, real packets, both families. Needs root, iproute2,
//! nftables and ping. `TORTIE_SEED` repeats a run, `TORTIE_PLANS` makes a longer one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod generate;
// Shared with the other tests of the kernel, which use more of it.
#[allow(dead_code)]
#[path = "../kernel/namespace.rs"]
mod namespace;
mod packets;
mod shrink;
mod world;

use generate::Generator;
use world::{Sent, World};

const PLANS: usize = 60;
const PACKETS: usize = 400;

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_judges_as_the_evaluator_does() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = number("TORTIE_SEED").unwrap_or_else(rand::random);
    let plans = number("TORTIE_PLANS").map_or(PLANS, |plans| usize::try_from(plans).unwrap());
    println!("TORTIE_SEED={seed}");
    let mut generator = Generator::new(seed);
    let mut world = World::new().await;
    let (mut allowed, mut denied) = (0, 0);
    for round in 0..plans {
        // A new daemon now and then, with other settings: it finds the table of the one before.
        if round % 10 == 0 {
            world.restart(generator.settings()).await;
        }
        let plan = generator.plan();
        world.apply(&plan, round % 3 == 0).await;
        let packets: Vec<Sent> = (0..PACKETS).map(|_| generator.packet()).collect();
        let expected: Vec<bool> = packets.iter().map(|sent| world.expected(&plan, sent)).collect();
        let found = world.send(&packets, &expected).await;
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
    println!("{allowed} packets allowed, {denied} denied");
    let all = plans * PACKETS;
    assert!(allowed > all / 20 && denied > all / 20, "too one-sided: {allowed} allowed, {denied} denied");
}
