//! Random faults under traffic, and a check of the guarantees in ARCHITECTURE.md after each. The seed is printed;
//! TORTIE_SEED repeats a run, TORTIE_SOAK_SECONDS sets its duration.

mod peer;
pub mod traffic;

use crate::world::{NodeFixture, TestNamespace, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tortie_dataplane::Netns;
use tortie_testkit::eventually_showing;
use traffic::{NumberedStream, STREAM_PORT};

/// Enough for about ten faults; a real soak test takes an hour.
const DEFAULT_SOAK_SECONDS: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SoakFault {
    DaemonKilled,
    DaemonTerminated,
    DaemonFrozen,
    FewDescriptors,
    StoreKilled,
    StoreFrozen,
    /// The datastore's files are restored from an earlier copy.
    StoreRestored,
    /// The addresses and endpoints of live containers are deleted from the datastore.
    EntriesLost,
    Garbage,
    KernelRefuses,
    TableDeleted,
    RouteDeleted,
    UnfinishedRequests,
    /// A BGP peer that sends invalid messages, sends a partial message, or sends nothing.
    StrangePeer,
    Churn,
}

const SOAK_FAULTS: [SoakFault; 15] = [
    SoakFault::DaemonKilled,
    SoakFault::DaemonTerminated,
    SoakFault::DaemonFrozen,
    SoakFault::FewDescriptors,
    SoakFault::StoreKilled,
    SoakFault::StoreFrozen,
    SoakFault::StoreRestored,
    SoakFault::EntriesLost,
    SoakFault::Garbage,
    SoakFault::KernelRefuses,
    SoakFault::TableDeleted,
    SoakFault::RouteDeleted,
    SoakFault::UnfinishedRequests,
    SoakFault::StrangePeer,
    SoakFault::Churn,
];

impl SoakFault {
    /// Returns whether the fault removes routes or rules, so that packets may be lost or pass until they are restored.
    fn excuses_packets(self) -> bool {
        matches!(self, SoakFault::TableDeleted | SoakFault::RouteDeleted)
    }
}

/// Objects of an ADD that the kernel can be made to reject.
const REJECTED_OBJECTS: [&str; 5] =
    ["route 10.77.", "neighbour 10.77.", "interface eth0", "chain ", "sysctl net.ipv4.conf.cali"];

struct SoakFixture {
    // Dropped before the namespaces.
    allowed: Vec<NumberedStream>,
    denied: Vec<NumberedStream>,
    world: NodeFixture,
    pods: Vec<(String, TestNamespace)>,
    config: Value,
    random: StdRng,
    /// Number of containers created so far.
    containers: u64,
}

fn labelled(config: &Value, role: &str) -> Value {
    let mut config = config.clone();
    config["tortie_labels"] = json!({"role": role});
    config
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let status = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(status.success(), "{} cannot be copied", from.display());
}

impl SoakFixture {
    fn new(seed: u64) -> SoakFixture {
        let mut world = NodeFixture::without_node("10.77.0.0/24");
        world.host.ip(&format!("addr add {}/32 dev lo", peer::PEER_ADDRESS));
        world.start(&[("FELIX_HEALTHENABLED", "true")]);
        let config = world.config();
        let closed = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "closed"},
            "spec": {"selector": "role == 'closed'", "types": ["Ingress"], "ingress": [{"action": "Deny"}]},
        });
        world.calicoctl(&["apply", "-f", "-"], &closed.to_string());
        let pods: Vec<_> = ["from", "open", "closed"].map(|role| (role.to_owned(), world.container())).into();
        let addresses: Vec<_> = pods
            .iter()
            .map(|(role, pod)| world.must("ADD", role, &pod.path(), &labelled(&config, role)).addresses())
            .collect();
        let from = &pods[0].1;
        let streams = |to: usize| {
            let pod = pods[to].1.path();
            addresses[to]
                .iter()
                .map(|address| NumberedStream::start(&from.path(), &pod, address, STREAM_PORT))
                .collect()
        };
        let (allowed, denied) = (streams(1), streams(2));
        SoakFixture {
            allowed,
            denied,
            world,
            pods,
            config,
            random: StdRng::seed_from_u64(seed),
            containers: 0,
        }
    }

    fn start_node(&mut self) {
        let faults = self.world.path("faults").display().to_string();
        self.world.start(&[("FELIX_HEALTHENABLED", "true"), ("TORTIE_FAULTS", &faults)]);
    }

    fn signal(&self, process: u32, signal: Signal) {
        kill(Pid::from_raw(process.try_into().unwrap()), signal).unwrap();
    }

    fn pause(&mut self) {
        std::thread::sleep(Duration::from_millis(self.random.random_range(0..1500)));
    }

    /// Adds and deletes a container.
    fn probe(&mut self) {
        self.containers += 1;
        let (name, pod) = (format!("p{}", self.containers), self.world.container());
        // Effects of the last fault may still be going away.
        eventually_showing(
            "a container gets its network",
            || self.world.cni("ADD", &name, &pod.path(), &self.config).success,
            || self.world.log(),
        );
        self.world.must("DEL", &name, &pod.path(), &self.config);
    }

    fn strike(&mut self, fault: SoakFault) {
        match fault {
            SoakFault::DaemonKilled => {
                self.world.stop();
                self.pause();
                self.start_node();
            }
            SoakFault::DaemonTerminated => {
                self.signal(self.world.pid(), Signal::SIGTERM);
                eventually("the daemon ends", || self.world.has_ended());
                self.pause();
                self.start_node();
            }
            SoakFault::DaemonFrozen => self.freeze(self.world.pid()),
            SoakFault::FewDescriptors => {
                self.world.stop();
                self.world.start_with_descriptors(128, &[("FELIX_HEALTHENABLED", "true")]);
            }
            SoakFault::StoreKilled => {
                self.world.stop_store();
                self.pause();
                self.world.start_store();
            }
            SoakFault::StoreFrozen => self.freeze(self.world.store_pid()),
            SoakFault::StoreRestored => {
                self.world.stop_store();
                copy(&self.world.path("db"), &self.world.path("backup"));
                self.world.start_store();
                self.probe();
                self.world.stop_store();
                copy(&self.world.path("backup"), &self.world.path("db"));
                self.world.start_store();
            }
            SoakFault::EntriesLost => {
                for prefix in
                    ["/calico/ipam/v2/", "/calico/resources/v3/projectcalico.org/workloadendpoints/"]
                {
                    self.world.etcdctl(&["del", "--prefix", prefix]);
                }
            }
            SoakFault::Garbage => {
                let key = "/calico/resources/v3/projectcalico.org/globalnetworkpolicies/default.garbage";
                self.world.etcdctl(&["put", key, "{\"kind\": \"GlobalNetworkPolicy\", \"spec\": 7"]);
                self.pause();
                self.world.etcdctl(&["del", key]);
            }
            SoakFault::KernelRefuses => self.refuse(),
            SoakFault::TableDeleted => self.world.host.nft("delete table inet tortie"),
            SoakFault::RouteDeleted => {
                let route = self.world.host.ip("route");
                let one = route.lines().find(|line| line.contains(" dev cali")).unwrap();
                let destination = one.split_whitespace().next().unwrap();
                self.world.host.ip(&["route", "del", destination]);
            }
            SoakFault::UnfinishedRequests => self.flood(),
            SoakFault::StrangePeer => self.strange_peer(),
            SoakFault::Churn => (0..3).for_each(|_| self.probe()),
        }
    }

    fn freeze(&mut self, process: u32) {
        self.signal(process, Signal::SIGSTOP);
        self.pause();
        self.signal(process, Signal::SIGCONT);
    }

    /// Makes the kernel reject an object; the ADD must fail and name it.
    fn refuse(&mut self) {
        self.start_node();
        let object = *REJECTED_OBJECTS.choose(&mut self.random).unwrap();
        let (faults, pod) = (self.world.path("faults"), self.world.container());
        std::fs::write(&faults, object).unwrap();
        let said = self.world.cni("ADD", "refused", &pod.path(), &self.config);
        std::fs::remove_file(&faults).unwrap();
        assert!(!said.success && said.json.to_string().contains(object), "{object}: {said:?}");
        self.world.must("DEL", "refused", &pod.path(), &self.config);
    }

    fn flood(&mut self) {
        let host = Netns::open(self.world.host.path()).unwrap();
        let connect = || (0..300).filter_map(|_| TcpStream::connect(("127.0.0.1", 9099)).ok()).collect();
        let mut streams: Vec<TcpStream> = host.run(connect).unwrap();
        for stream in &mut streams {
            let _ = stream.write_all(b"GET /readiness HTTP/1.1\r\n");
        }
        let mut requests: Vec<_> = (0..100).map(|_| self.world.connect()).collect();
        for request in &mut requests {
            let _ = request.write_all(b"{\"plugin\"");
        }
        self.probe();
    }

    /// Configures a misbehaving peer, so that the node accepts its connections, and removes it before the guarantees
    /// are checked.
    fn strange_peer(&mut self) {
        let object = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "BGPPeer", "metadata": {"name": "strange"},
            "spec": {"peerIP": peer::PEER_ADDRESS.to_string(), "asNumber": 64999},
        });
        self.world.calicoctl(&["apply", "-f", "-"], &object.to_string());
        let calls = Netns::open(self.world.host.path()).unwrap().run(peer::call_many).unwrap();
        assert!(!calls.is_empty(), "nobody listens\n{}", self.world.log());
        self.probe();
        drop(calls);
        self.world.calicoctl(&["delete", "bgppeer", "strange"], "");
    }

    fn is_well(&self) -> bool {
        let run_dir = self.world.path("run");
        let output = Command::new(crate::world::TORTIE).arg("health").arg("--run-dir").arg(run_dir).output();
        output.unwrap().status.success()
    }

    fn positions(&self) -> Vec<u64> {
        self.allowed.iter().chain(&self.denied).map(NumberedStream::position).collect()
    }

    /// Asserts the guarantees that hold after every fault; `since` are the positions of the streams before it.
    fn assert_promises(&mut self, fault: SoakFault, since: &[u64]) {
        eventually_showing("the node is well again", || self.is_well(), || self.world.log());
        self.probe();
        let healed = self.positions();
        let mut now = healed.clone();
        eventually("time passes", || {
            now = self.positions();
            now.iter().zip(&healed).all(|(now, healed)| now > &(healed + 5))
        });
        let begin = if fault.excuses_packets() { &healed[..] } else { since };
        let (open, closed) = begin.split_at(self.allowed.len());
        let (open_now, closed_now) = now.split_at(self.allowed.len());
        for ((stream, begin), end) in self.allowed.iter().zip(open).zip(open_now) {
            let all = || stream.arrived(*begin..*end) == end - begin;
            let picture = || {
                format!(
                    "{fault:?}: {} of {} packets\n{}",
                    stream.arrived(*begin..*end),
                    end - begin,
                    self.world.log()
                )
            };
            eventually_showing("every allowed packet arrives", all, picture);
        }
        for ((stream, begin), end) in self.denied.iter().zip(closed).zip(closed_now) {
            assert_eq!(
                stream.arrived(*begin..*end),
                0,
                "{fault:?}: denied packets arrived\n{}",
                self.world.log()
            );
        }
        eventually_showing(
            "no address is leaked or lost",
            || self.world.calicoctl(&["ipam", "check"], "").contains("found 0 problems"),
            || self.world.calicoctl(&["ipam", "check", "--show-problem-ips"], ""),
        );
    }

    fn end(mut self) {
        self.allowed.clear();
        self.denied.clear();
        for (name, pod) in &self.pods {
            self.world.must("DEL", name, &pod.path(), &self.config);
        }
        self.world.assert_clean("the soak");
    }
}

#[test]
fn promises_hold_under_random_faults() {
    let asked = std::env::var("TORTIE_SEED").unwrap_or_default();
    let seed = asked.parse().unwrap_or_else(|_| if asked == "random" { rand::rng().random() } else { 1 });
    let seconds = std::env::var("TORTIE_SOAK_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(DEFAULT_SOAK_SECONDS);
    println!("TORTIE_SEED={seed}");
    let mut soak = SoakFixture::new(seed);
    let mut struck: BTreeMap<SoakFault, u64> = BTreeMap::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        let fault = *SOAK_FAULTS.choose(&mut soak.random).unwrap();
        println!("{:>6} s {fault:?}", begun.elapsed().as_secs());
        let since = soak.positions();
        soak.strike(fault);
        soak.assert_promises(fault, &since);
        *struck.entry(fault).or_default() += 1;
    }
    soak.end();
    println!("faults struck: {struck:?}");
}
