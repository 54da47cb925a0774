//! Many containers are added and deleted repeatedly; the node's footprint must not grow.

use crate::world::{NodeFixture, TestNamespace, eventually};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const POD_COUNT: usize = 500;
const MIN_ROUNDS: usize = 3;
/// Upper limit of rounds: the allocator's caches grow for some rounds, depending on scheduling.
const MAX_ROUNDS: usize = 10;
/// Concurrent plugin calls, as on a node that starts.
const MAX_PARALLEL_CALLS: usize = 16;

/// Leak limit per container: with a leak of this size every round would end with at least `POD_COUNT` times as much more
/// memory than it began with.
const MAX_LEAK_KIB_PER_POD: u64 = 5;

/// State of a node apart from its containers. Blocks stay assigned to a node, with their routes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeFootprint {
    traces: Vec<String>,
    links: usize,
    routes: usize,
    blocks: usize,
    affinities: usize,
}

impl NodeFootprint {
    fn of(world: &NodeFixture) -> NodeFootprint {
        let keys = world.stored("--keys-only");
        let count = |part: &str| keys.lines().filter(|key| key.contains(part)).count();
        let routes = ["-4", "-6"].map(|family| world.host.ip(&[family, "route"]).lines().count());
        NodeFootprint {
            traces: world.traces(),
            links: world.host.ip(&["-o", "link"]).lines().count(),
            routes: routes.iter().sum(),
            blocks: count("/assignment/"),
            affinities: count("/ipam/v2/host/"),
        }
    }
}

/// Returns the open files of a process by kind, without inode numbers; namespaces are files too.
fn open_files(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut names: Vec<String> = entries
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|target| target.display().to_string().split(":[").next().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// Runs `work` for every pod, many in parallel.
fn for_all<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..MAX_PARALLEL_CALLS {
            scope.spawn(|| {
                loop {
                    let pod = next.fetch_add(1, Ordering::Relaxed);
                    if pod >= POD_COUNT {
                        return;
                    }
                    let outcome = work(pod);
                    done.lock().unwrap().push(outcome);
                }
            });
        }
    });
    done.into_inner().unwrap()
}

#[test]
fn many_containers_come_and_go_and_nothing_grows() {
    let mut world = NodeFixture::without_node("10.77.0.0/20");
    // With a single malloc arena, resident memory follows used memory regardless of how threads share the work.
    world.start(&[("CALICO_IPV4POOL_BLOCK_SIZE", "26"), ("MALLOC_ARENA_MAX", "1")]);
    let world = world;
    let config = world.config();
    let before = NodeFootprint::of(&world);
    // Some files are open only briefly: the sample with the fewest is the baseline.
    let looks = (0..50).map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        open_files(world.pid())
    });
    let files = looks.min_by_key(Vec::len).unwrap();
    let (mut first, mut last, mut grows, mut round) = (None, 0, true, 0);
    while round < MIN_ROUNDS || (grows && round < MAX_ROUNDS) {
        let pods = for_all(|pod| {
            let namespace = world.container();
            let said = world.must("ADD", &format!("c{pod}"), &namespace.path(), &config);
            (pod, namespace, said.addresses())
        });
        let addresses: BTreeSet<&String> = pods.iter().flat_map(|(_, _, addresses)| addresses).collect();
        assert_eq!(addresses.len(), 2 * POD_COUNT, "each has one of each family for itself");
        assert_eq!(world.host.ip(&["route"]).matches(" dev cali").count(), POD_COUNT);
        let pods: Mutex<Vec<(usize, TestNamespace, Vec<String>)>> = Mutex::new(pods);
        for_all(|_| {
            let (pod, namespace, _) = pods.lock().unwrap().pop().unwrap();
            world.must("DEL", &format!("c{pod}"), &namespace.path(), &config);
        });
        world.assert_clean("all are gone");
        eventually("the node has only its own files open", || open_files(world.pid()) == files);
        let (footprint, memory) = (NodeFootprint::of(&world), tortie_testkit::resident(world.pid()) / 1024);
        assert_eq!(
            (footprint.links, footprint.blocks),
            (before.links, footprint.affinities),
            "round {round}"
        );
        println!("round {round}: {memory} KiB");
        assert_eq!(footprint, *first.get_or_insert_with(|| footprint.clone()), "round {round}");
        grows &= memory >= last + MAX_LEAK_KIB_PER_POD * POD_COUNT as u64;
        last = memory;
        round += 1;
    }
    assert!(
        !grows,
        "each round has left more than {MAX_LEAK_KIB_PER_POD} KiB of memory for each container, {last} KiB in all"
    );
}
