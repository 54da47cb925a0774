//! Whatever sequence of events happens, eventually every node has the routes that the others announce.

use crate::net::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_bgp::{BgpFamily, PeerConfig, RouteAttrs};

const NODE_COUNT: u8 = 4;

#[derive(Clone, Debug)]
enum ConvergenceStep {
    Announce {
        node: u8,
        prefix: u8,
        med: u32,
    },
    Withdraw {
        node: u8,
        prefix: u8,
    },
    Drop {
        node: u8,
    },
    /// Blocks a connection so that it accepts no data for a while.
    Slow {
        from: u8,
        to: u8,
    },
    Release,
    Refresh {
        node: u8,
        other: u8,
    },
    Settle,
    Wait {
        seconds: u64,
    },
}

fn step() -> impl Strategy<Value = ConvergenceStep> {
    prop_oneof![
        6 => (0..NODE_COUNT, 0u8..6, 0u32..2).prop_map(|(node, prefix, med)| ConvergenceStep::Announce { node, prefix, med }),
        4 => (0..NODE_COUNT, 0u8..6).prop_map(|(node, prefix)| ConvergenceStep::Withdraw { node, prefix }),
        1 => (0..NODE_COUNT).prop_map(|node| ConvergenceStep::Drop { node }),
        2 => (0..NODE_COUNT, 0..NODE_COUNT).prop_map(|(from, to)| ConvergenceStep::Slow { from, to }),
        1 => Just(ConvergenceStep::Release),
        1 => (0..NODE_COUNT, 0..NODE_COUNT).prop_map(|(node, other)| ConvergenceStep::Refresh { node, other }),
        2 => Just(ConvergenceStep::Settle),
        1 => (0u64..100).prop_map(|seconds| ConvergenceStep::Wait { seconds }),
    ]
}

/// Returns a prefix; even numbers are IPv4, odd ones IPv6.
fn text(prefix: u8) -> String {
    match prefix % 2 {
        0 => format!("192.0.{prefix}.0/24"),
        _ => format!("2001:db8:{prefix}::/48"),
    }
}

fn mesh() -> SimulatedNetwork {
    let mut network = SimulatedNetwork::default();
    for own in 1..=NODE_COUNT {
        let mut config = config(64512, own);
        for other in (1..=NODE_COUNT).filter(|other| *other != own) {
            let session = PeerConfig { families: BgpFamily::ALL.to_vec(), ..peer(other, 64512) };
            config.peers.insert(format!("peer{other}"), session);
        }
        network.add(config);
    }
    network.run(20);
    network
}

/// Connects the nodes only through a reflector that advertises all paths.
fn star() -> SimulatedNetwork {
    let mut network = SimulatedNetwork::default();
    let hub = NODE_COUNT + 1;
    let session =
        |other| PeerConfig { families: BgpFamily::ALL.to_vec(), add_path: true, ..peer(other, 64512) };
    for own in 1..=NODE_COUNT {
        let mut config = config(64512, own);
        config.peers.insert(format!("peer{hub}"), session(hub));
        network.add(config);
    }
    let mut config = config(64512, hub);
    for other in 1..=NODE_COUNT {
        let client = PeerConfig { reflect: Some(v4(hub)), ..session(other) };
        config.peers.insert(format!("peer{other}"), client);
    }
    network.add(config);
    network.run(20);
    network
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn in_the_end_all_agree(steps in proptest::collection::vec(step(), 0..60)) {
        agree(mesh(), steps)?;
    }

    #[test]
    fn through_a_reflector_that_tells_all_paths_too(steps in proptest::collection::vec(step(), 0..60)) {
        agree(star(), steps)?;
    }
}

fn agree(mut network: SimulatedNetwork, steps: Vec<ConvergenceStep>) -> Result<(), TestCaseError> {
    let mut announced: BTreeMap<u8, BTreeMap<u8, u32>> = BTreeMap::new();
    let mut slow = Vec::new();
    for step in steps {
        match step {
            ConvergenceStep::Announce { node, prefix, med } => {
                announced.entry(prefix).or_default().insert(node, med);
                let attrs = RouteAttrs { med: Some(med), ..RouteAttrs::local() };
                network.originate_with(node.into(), &text(prefix), attrs);
            }
            ConvergenceStep::Withdraw { node, prefix } => {
                announced.entry(prefix).or_default().remove(&node);
                network.nodes[usize::from(node)].core.withdraw(net(&text(prefix)));
            }
            ConvergenceStep::Drop { node } => network.drop_connections(node.into()),
            ConvergenceStep::Slow { from, to } => slow.extend(network.try_slow(from.into(), to.into())),
            ConvergenceStep::Release => slow.drain(..).for_each(|end| network.release(end)),
            ConvergenceStep::Refresh { node, other } => {
                let now = network.now;
                // In the star a node has only one peer.
                let name = if network.nodes.len() > usize::from(NODE_COUNT) { NODE_COUNT } else { other } + 1;
                let name = format!("peer{name}");
                network.nodes[usize::from(node)].core.request_refresh(now, &name);
            }
            ConvergenceStep::Settle => network.settle(),
            ConvergenceStep::Wait { seconds } => network.run(seconds),
        }
    }
    slow.into_iter().for_each(|end| network.release(end));
    network.run(120);
    prop_assert!(network.all_up());
    for node in 0..NODE_COUNT {
        for prefix in 0..6 {
            let who = announced.get(&prefix).cloned().unwrap_or_default();
            let expected: Option<BTreeSet<IpAddr>> = if who.is_empty() {
                None
            } else if who.contains_key(&node) {
                Some(BTreeSet::new())
            } else {
                let lowest = who.values().min().unwrap();
                let nearest = who.iter().filter(|(_, med)| *med == lowest);
                let address = |node: &u8| match prefix % 2 {
                    0 => ip(&format!("10.0.0.{}", node + 1)),
                    _ => ip(&format!("fd00::{}", node + 1)),
                };
                Some(nearest.map(|(node, _)| address(node)).collect())
            };
            let got = network.routes_to(node.into(), &text(prefix)).map(|hops| hops.into_iter().collect());
            prop_assert_eq!(got, expected, "node {} and {}", node, text(prefix));
        }
    }
    Ok(())
}
