//! The cluster in the guest: three nodes in two racks, a router between them without routes to pods, and a pod on
//! each node. Starting it takes most of the time of a test, so the tests share it one after the other.

use crate::lab::{TestLab, family};
use crate::pinger::{ContinuousPing, restart_under};
use crate::stream::{STREAM_BYTES, stream};
use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tortie_testkit::eventually_showing;
use tortie_testkit::vm::tell;

/// The IPv4 pool and the IPv6 pool.
pub const POOL_NAMES: [&str; 2] = ["lab-ipv4-1", "lab-ipv6-2"];
const POD_PLACEMENT: [(&str, &str); 3] = [("one", "node1"), ("two", "node2"), ("three", "node3")];
/// The alternating addresses of node3.
const NODE3_ADDRESSES: [&str; 2] = ["10.10.2.3", "10.10.2.33"];

pub struct GuestCluster {
    pub lab: TestLab,
    /// Addresses of the pods `one`, `two` and `three`; the third is in another rack.
    addresses: Vec<Vec<String>>,
    /// The current address of node3, which changes each time it leaves and returns.
    pub node3: &'static str,
}

/// Prints how long each part of a test took, because a guest that emulates its processor is slow.
pub struct TestPhases {
    test: &'static str,
    begun: Instant,
}

impl TestPhases {
    pub fn of(test: &'static str) -> TestPhases {
        TestPhases { test, begun: Instant::now() }
    }

    pub fn done(&mut self, what: &str) {
        tell(&format!("{}: {what}: {:.1?}", self.test, self.begun.elapsed()));
        self.begun = Instant::now();
    }
}

/// Returns the cluster, locked for one test.
pub fn cluster() -> MutexGuard<'static, GuestCluster> {
    static CLUSTER: LazyLock<Mutex<GuestCluster>> = LazyLock::new(|| Mutex::new(GuestCluster::up()));
    CLUSTER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GuestCluster {
    fn up() -> GuestCluster {
        let begun = Instant::now();
        let lab = TestLab::up(&["--nodes", "3", "--topology", "l3", "--bgp", "mesh"]);
        let addresses = POD_PLACEMENT.map(|(pod, node)| lab.add(pod, node, &[])).into();
        tell(&format!("the cluster is up after {:.1?}", begun.elapsed()));
        GuestCluster { lab, addresses, node3: NODE3_ADDRESSES[0] }
    }

    pub fn address(&self, pod: &str, v6: bool) -> &str {
        let place = POD_PLACEMENT.iter().position(|(name, _)| *name == pod).unwrap();
        family(&self.addresses[place], v6)
    }

    /// Returns the namespace of a node or a pod.
    pub fn netns(&self, place: &str) -> String {
        let pod = POD_PLACEMENT.iter().any(|(name, _)| *name == place);
        format!("tortie-{}-{}{place}", self.lab.name, if pod { "pod-" } else { "" })
    }

    pub fn fabric(&self) -> String {
        self.netns("net")
    }

    pub fn try_exec(&self, place: &str, words: &str) -> Output {
        let words = words.split_whitespace();
        Command::new("ip").args(["netns", "exec", &self.netns(place)]).args(words).output().unwrap()
    }

    pub fn exec(&self, place: &str, words: &str) -> String {
        let output = self.try_exec(place, words);
        assert!(output.status.success(), "{place}: {words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn ip(&self, place: &str, words: &str) -> String {
        let words = words.split_whitespace();
        tortie_testkit::run(Command::new("ip").args(["-n", &self.netns(place)]).args(words))
    }

    pub fn eventually(&self, what: &str, so: impl FnMut() -> bool) {
        eventually_showing(what, so, || {
            let show = |node: &str| {
                let lists =
                    ["-d link", "addr", "rule", "-6 rule", "route show table all", "-6 route show table all"];
                lists.map(|list| self.ip(node, list)).concat()
            };
            format!("{}\n{}\n{}", self.lab.picture(), show("node1"), show("node3"))
        });
    }

    pub fn pings(&self, from: &str, to: &str) -> bool {
        self.try_exec(from, &format!("ping -n -c 1 -W 2 {to}")).status.success()
    }

    /// Asserts that two pods reach each other.
    pub fn reach(&self, one: &str, other: &str, v6: bool) {
        for (from, to) in [(one, other), (other, one)] {
            let address = self.address(to, v6);
            self.eventually(&format!("{from} reaches {to} at {address}"), || self.pings(from, address));
        }
    }

    /// Asserts that a packet of the path MTU arrives unfragmented, that a larger one does not, and that a TCP stream
    /// adapts.
    pub fn full_size(&self, from: &str, to: &str, v6: bool, mtu: usize) {
        let address = self.address(to, v6);
        let headers = if v6 { 48 } else { 28 };
        let ping = format!("ping -n -c 1 -W 10 -M do -s {} {address}", mtu - headers);
        self.eventually(&format!("{from}: {ping}"), || self.try_exec(from, &ping).status.success());
        let larger = format!("ping -n -c 1 -W 1 -M do -s {} {address}", mtu - headers + 1);
        assert!(!self.try_exec(from, &larger).status.success(), "{from}: {larger}: the way takes more");
        let (from, to) = (self.netns(from), self.netns(to));
        assert_eq!(stream(&from, &to, address.parse().unwrap()), STREAM_BYTES);
    }

    /// Starts pings between two pods in both directions.
    pub fn pingers(&self, one: &str, other: &str, v6: bool) -> Vec<ContinuousPing> {
        let pinger =
            |from: &str, to: &str| ContinuousPing::every("0.02", &self.lab, from, self.address(to, v6));
        let pingers = vec![pinger(one, other), pinger(other, one)];
        pingers.iter().for_each(|pinger| pinger.wait_for_more(5));
        pingers
    }

    /// Kills and stops the daemon, restarting it each time, while packets are in flight; asserts that none is lost.
    pub fn restart_under(&self, pingers: &[ContinuousPing], node: &str) {
        let lost = || pingers.iter().map(ContinuousPing::lost).sum::<usize>();
        let before = lost();
        restart_under(&self.lab, pingers, node, 5);
        assert_eq!(lost(), before, "packets are lost by a restart of {node}");
    }

    /// Removes node3 and its pod.
    pub fn node3_leaves(&self) {
        self.lab.run(&["pod", "del", "three"]);
        self.lab.run(&["node", "stop", "node3"]);
        self.lab.run(&["ctl", "delete", "node", "node3"]);
    }

    /// Starts node3 again with another address and another pod.
    pub fn node3_comes_back(&mut self) {
        self.node3 = if self.node3 == NODE3_ADDRESSES[0] { NODE3_ADDRESSES[1] } else { NODE3_ADDRESSES[0] };
        self.ip("node3", "-4 addr flush dev eth0");
        self.ip("node3", &format!("addr add {}/24 dev eth0", self.node3));
        self.ip("node3", "route replace default via 10.10.2.254");
        self.lab.run(&["node", "start", "node3"]);
        self.addresses[2] = self.lab.add("three", "node3", &[]);
    }

    /// Returns whether a node has a route, rule or set that contains this address.
    pub fn knows(&self, node: &str, address: &str) -> bool {
        let known = self.ip(node, "route show table all") + &self.exec(node, "nft list table inet tortie");
        known.split(|c: char| !c.is_ascii_digit() && c != '.').any(|word| word == address)
    }

    /// Makes a change while packets are in flight, and prints how long it took and how many were lost.
    pub fn under(
        &self,
        pingers: &[ContinuousPing],
        what: &str,
        change: impl FnOnce(),
        so: impl FnMut() -> bool,
    ) {
        let lost = || pingers.iter().map(ContinuousPing::lost).sum::<usize>();
        let before = lost();
        change();
        let begun = Instant::now();
        self.eventually(what, so);
        let took = begun.elapsed();
        pingers.iter().for_each(|pinger| pinger.wait_for_more(10));
        let (lost, talks) = (lost() - before, pingers.len());
        tell(&format!("{what}: after {took:.1?}, {lost} packets of {talks} talks at 50 a second lost"));
    }

    pub fn patch(&self, kind: &str, name: &str, spec: &str) {
        self.lab.run(&["ctl", "patch", kind, name, "-p", &format!(r#"{{"spec": {spec}}}"#)]);
    }
}
