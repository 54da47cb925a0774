//! Taking over a host that ran Calico, and returning it. Debian's tools create what Felix leaves: chains of both
//! iptables variants, IP sets, an nf_tables table, routes and a tunnel, with Felix's names.

use crate::felix_chains::FelixMode;
use crate::soak::traffic::NumberedStream;
use crate::world::{NodeFixture, TORTIE, TestNamespace, eventually};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tortie_testkit::TestProcess;

pub const POD_ADDRESSES: [&str; 2] = ["10.77.0.5", "fd77::5"];
pub const POD_INTERFACE: &str = "cali0a1b2c3d4e5";

/// Creates a pod as Calico's plugin attaches it.
pub fn wired(host: &TestNamespace) -> TestNamespace {
    let pod = TestNamespace::new("pod");
    host.ip(&format!(
        "link add {POD_INTERFACE} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {}",
        pod.name()
    ));
    for (key, value) in [("ipv4.conf", "proxy_arp=1"), ("ipv6.conf", "proxy_ndp=1")] {
        host.exec(&["sysctl", "-qw", &format!("net.{key}.{POD_INTERFACE}.{value}")]);
    }
    host.exec("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    host.ip(&format!("link set {POD_INTERFACE} up"));
    pod.exec("sysctl -qw net.ipv6.conf.eth0.accept_dad=0");
    pod.ip("link set eth0 up");
    for address in POD_ADDRESSES {
        pod.ip(&format!("addr add {address} dev eth0"));
        host.ip(&format!("route add {address} dev {POD_INTERFACE} proto boot scope link metric 1024"));
    }
    pod.ip("route add 169.254.1.1 dev eth0 scope link");
    pod.ip("route add default via 169.254.1.1 dev eth0");
    pod
}

/// Creates an external host that the pod exchanges traffic with.
fn outside(host: &TestNamespace) -> TestNamespace {
    let outside = TestNamespace::new("outside");
    host.ip(&format!("link add eth1 type veth peer name eth0 netns {}", outside.name()));
    host.ip("addr add 172.31.0.1/24 dev eth1");
    host.ip("link set eth1 up");
    outside.ip("addr add 172.31.0.2/24 dev eth0");
    outside.ip("link set eth0 up");
    outside.ip("route add 10.77.0.0/24 via 172.31.0.1");
    outside
}

/// Writes Felix's rules to the tables of one program, for an old policy: the pod may send, and port 80 is closed.
fn chains(host: &TestNamespace, program: &str, set: &str) {
    let run = |rule: &str| host.exec(&format!("{program} {rule}"));
    let hash = "-m comment --comment cali:wUHhoiAYhphO9Mso";
    for chain in
        ["cali-FORWARD", "cali-from-wl-dispatch", &format!("cali-fw-{POD_INTERFACE}"), "cali-pri-kns.default"]
    {
        run(&format!("-N {chain}"));
    }
    run(&format!("-I FORWARD {hash} -j cali-FORWARD"));
    run(&format!("-A FORWARD {hash} -m mark --mark 0x10000/0x10000 -j ACCEPT"));
    run(&format!("-A cali-FORWARD -i cali+ {hash} -j cali-from-wl-dispatch"));
    run(&format!("-A cali-FORWARD -o cali+ -m conntrack --ctstate RELATED,ESTABLISHED {hash} -j ACCEPT"));
    run(&format!("-A cali-FORWARD -p tcp --dport 80 {hash} -j DROP"));
    run(&format!("-A cali-from-wl-dispatch -i {POD_INTERFACE} {hash} -g cali-fw-{POD_INTERFACE}"));
    run(&format!("-A cali-fw-{POD_INTERFACE} -m conntrack --ctstate RELATED,ESTABLISHED {hash} -j ACCEPT"));
    run(&format!("-A cali-fw-{POD_INTERFACE} -m set --match-set {set} src {hash} -j cali-pri-kns.default"));
    run(&format!("-A cali-pri-kns.default {hash} -j MARK --set-mark 0x10000/0x10000"));
    for (table, chain) in [("nat", "POSTROUTING"), ("mangle", "PREROUTING"), ("raw", "OUTPUT")] {
        run(&format!("-t {table} -N cali-{chain}"));
        run(&format!("-t {table} -A {chain} {hash} -j cali-{chain}"));
    }
    // Rules of another program.
    run("-N DOCKER-USER");
    run("-A FORWARD -j DOCKER-USER");
    run(&format!(
        "-A DOCKER-USER -m set --match-set mine{} src -j RETURN",
        if program.starts_with("ip6") { "6" } else { "4" }
    ));
}

const IPTABLES_PROGRAMS: [&str; 4] = ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"];
const FOREIGN_SETS: [&str; 2] = ["mine4", "mine6"];

fn leftovers(host: &TestNamespace) {
    for (set, family) in [
        ("cali40s:3ZBiMJ_Y9QQi8iQpPggPHUu", "inet"),
        ("cali60s:3ZBiMJ_Y9QQi8iQpPggPHUu", "inet6"),
        ("cali40masq-ipam-pools", "inet"),
        ("cali4t0", "inet"),
        (FOREIGN_SETS[0], "inet"),
        (FOREIGN_SETS[1], "inet6"),
    ] {
        host.exec(&["ipset", "create", set, "hash:net", "family", family]);
    }
    host.exec("ipset add cali40s:3ZBiMJ_Y9QQi8iQpPggPHUu 10.77.0.0/24");
    for program in IPTABLES_PROGRAMS {
        let family = if program.starts_with("ip6") { "60" } else { "40" };
        chains(host, program, &format!("cali{family}s:3ZBiMJ_Y9QQi8iQpPggPHUu"));
    }
    host.nft(
        "table ip calico { chain filter-cali-FORWARD { accept; }; \
            chain filter-FORWARD { type filter hook forward priority 0; jump filter-cali-FORWARD; }; }
         table arp calico-arp { chain output { type filter hook output priority 0; }; }
         table ip mine { chain forward { type filter hook forward priority 0; counter; }; }",
    );
    host.ip("link add vxlan.calico type vxlan id 4096 dstport 4789 dev eth0");
    host.ip("link set vxlan.calico up");
    host.ip("route add 10.99.0.0/26 via 172.30.0.9 dev eth0 proto 80");
    host.ip("route add blackhole 10.99.1.0/26 proto 80");
    host.ip("route add 10.98.0.0/24 via 172.30.0.9 dev eth0 proto static");
}

/// Returns everything that belongs to Felix.
fn of_felix(host: &TestNamespace) -> Vec<String> {
    let mut found = Vec::new();
    for program in IPTABLES_PROGRAMS {
        let saved = host.exec(&format!("{program}-save"));
        found.extend(
            saved.lines().filter(|line| line.contains("cali")).map(|line| format!("{program}: {line}")),
        );
    }
    let sets = host.exec("ipset list -n");
    found.extend(sets.lines().filter(|set| set.starts_with("cali")).map(str::to_owned));
    let tables = host.exec("nft list tables");
    found.extend(tables.lines().filter(|table| table.contains("calico")).map(str::to_owned));
    found.extend(host.has_link("vxlan.calico").then(|| "vxlan.calico".to_owned()));
    found.extend(
        host.ip("route show proto 80").lines().filter(|route| route.contains("10.99.")).map(str::to_owned),
    );
    found
}

/// Returns the objects of other programs, without counters.
fn of_others(host: &TestNamespace) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for program in IPTABLES_PROGRAMS {
        let saved = host.exec(&format!("{program}-save"));
        found.extend(
            saved
                .lines()
                .filter(|line| line.contains("DOCKER-USER"))
                .map(|line| line.split(" [").next().unwrap().to_owned()),
        );
    }
    found.push(
        host.exec("nft -s list table ip mine").lines().filter(|line| !line.contains("tortie: ")).collect(),
    );
    found.extend(FOREIGN_SETS.map(|set| host.exec(&["ipset", "list", "-n", set])));
    found.extend(host.routes("10.98.0.0/24"));
    found
}

/// A ping every few milliseconds, with a log of all answers.
struct PingFlow {
    _process: TestProcess,
    log: PathBuf,
}

impl PingFlow {
    fn start(from: &TestNamespace, to: &str, log: PathBuf) -> PingFlow {
        let mut command = from.command("ping");
        let process =
            TestProcess::start(command.args(["-n", "-i", "0.01", to]).stdout(File::create(&log).unwrap()));
        PingFlow { _process: process, log }
    }

    fn answered(&self) -> BTreeSet<u32> {
        let text = std::fs::read_to_string(&self.log).unwrap();
        let number = |line: &str| line.split("icmp_seq=").nth(1)?.split(' ').next()?.parse().ok();
        text.lines().filter(|line| line.ends_with(" ms")).filter_map(number).collect()
    }

    fn goes_on(&self) {
        let wanted = self.answered().len() + 50;
        eventually("the flow goes on", || self.answered().len() >= wanted);
    }

    fn lost_nothing(&self) {
        let answered = self.answered();
        let sent: BTreeSet<u32> = (1..=*answered.last().unwrap()).collect();
        let lost: Vec<&u32> = sent.difference(&answered).collect();
        assert!(lost.is_empty(), "lost {lost:?} of {}", sent.len());
    }
}

/// Returns whether a port of the pod answers a connection attempt, even with a reset.
fn answers(from: &TestNamespace, port: u16) -> bool {
    let script = format!("exec 3<>/dev/tcp/{}/{port}", POD_ADDRESSES[0]);
    let output = from.try_exec(&["timeout", "2", "bash", "-c", &script]);
    output.status.success() || String::from_utf8_lossy(&output.stderr).contains("refused")
}

pub fn endpoint() -> String {
    let networks = [format!("{}/32", POD_ADDRESSES[0]), format!("{}/128", POD_ADDRESSES[1])];
    json!({
        "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
        "metadata": {"name": "n1-cni-old-eth0", "namespace": "default"},
        "spec": {
            "node": "n1", "orchestrator": "cni", "containerID": "old", "endpoint": "eth0",
            "interfaceName": POD_INTERFACE, "ipNetworks": networks, "profiles": ["open"],
        },
    })
    .to_string()
}

pub const PROFILE: &str = "{apiVersion: projectcalico.org/v3, kind: Profile, metadata: {name: open}, spec: {ingress: \
    [{action: Deny, protocol: TCP, destination: {ports: [81]}}, {action: Deny, protocol: UDP, destination: {ports: [81]}}, \
    {action: Allow}], egress: [{action: Allow}]}}";
const DENIED_PORT: u16 = 81;

/// Returns the command `tortie node --leave` on the host.
fn leave(world: &NodeFixture, more: &[&str]) -> Command {
    let mut command = world.host.command(TORTIE);
    command.args(["node", "--leave", "--state-dir"]).arg(world.path("state"));
    command.arg("--run-dir").arg(world.path("run")).args(more).stdin(Stdio::null());
    command
}

#[test]
fn a_calico_host_is_migrated_and_restored() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let (pod, peer) = (wired(&world.host), outside(&world.host));
    leftovers(&world.host);
    world.host.exec("iptables-nft -P FORWARD DROP");
    world.calicoctl(&["apply", "-f", "-"], PROFILE);
    world.calicoctl(&["apply", "-f", "-"], &endpoint());
    let others = of_others(&world.host);
    let flow = PingFlow::start(&pod, "172.31.0.2", world.path("flow"));
    flow.goes_on();
    assert!(!answers(&peer, 80), "Felix's old policy is in force");

    world.start(&[]);
    eventually("what Felix left is gone", || of_felix(&world.host).is_empty());
    flow.goes_on();
    // Our policy is in force now: allowed traffic passes, denied traffic does not.
    eventually("what our policy allows is answered", || answers(&peer, 80));
    assert!(!answers(&peer, 81), "our policy is in force");
    assert_eq!(of_others(&world.host), others);

    let refused = leave(&world, &["--now"]).output().unwrap();
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("in use by another")
    );
    world.stop();
    // Let other chains accept forwarded packets: without Tortie's policy no packet is marked as allowed.
    world.host.exec("iptables-nft -P FORWARD ACCEPT");
    let output = leave(&world, &["--now"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    flow.goes_on();
    flow.lost_nothing();
    let ruleset = world.host.exec("nft list ruleset");
    assert!(!ruleset.contains("tortie"), "{ruleset}");
    for program in IPTABLES_PROGRAMS {
        let saved = world.host.exec(&format!("{program}-save"));
        assert!(!saved.contains("tortie"), "{saved}");
    }
    assert!(!world.path("run").exists() && !world.path("state").exists());
    assert_eq!(of_others(&world.host), others);
    assert_eq!(world.host.routes(&format!("{}/32", POD_ADDRESSES[0])).len(), 1, "the pod's route stays");
    assert!(answers(&peer, 81), "nobody's policy is in force");
}

#[test]
fn policy_stays_until_felix_guards_every_pod() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let (pod, peer) = (wired(&world.host), outside(&world.host));
    world.calicoctl(&["apply", "-f", "-"], PROFILE);
    world.calicoctl(&["apply", "-f", "-"], &endpoint());
    for (number, mode) in FelixMode::ALL.into_iter().enumerate() {
        world.start(&[("FELIX_PROMETHEUSMETRICSENABLED", "true")]);
        eventually("what Felix left is gone", || of_felix(&world.host).is_empty());
        let flow = PingFlow::start(&pod, "172.31.0.2", world.path("flow"));
        let denied = NumberedStream::start(&peer.path(), &pod.path(), POD_ADDRESSES[0], DENIED_PORT);
        flow.goes_on();
        // Felix is started beside the node: it has written chains, but no hook jumps to them yet.
        world.host.exec(&["sh", "-c", &mode.chains(POD_INTERFACE, DENIED_PORT)]);
        let health =
            || Command::new(TORTIE).args(["health", "--run-dir"]).arg(world.path("run")).output().unwrap();
        eventually("the node reports a second policy engine", || {
            String::from_utf8_lossy(&health().stdout).contains("two policy engines")
        });
        let metrics = || world.host.try_exec("curl -s http://127.0.0.1:9091/metrics").stdout;
        eventually("so do its metrics", || {
            String::from_utf8_lossy(&metrics()).contains("tortie_second_policy_engine 1\n")
        });
        // Each run logs it once, to the same file.
        let logged = world.log().matches("Felix's chains appeared: two policy engines").count();
        assert_eq!(logged, number + 1, "{}", world.log());

        world.stop();
        let refused = leave(&world, &["--felix-timeout", "0"]).output().unwrap();
        let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{mode:?}: {refused:?}");
        for part in [
            format!("{POD_INTERFACE} (IPv4)"),
            format!("{POD_INTERFACE} (IPv6)"),
            "nothing was removed".to_owned(),
        ] {
            assert!(reason.contains(&part), "{mode:?}: {part} is not in {reason}");
        }
        assert!(world.path("state/nodename").exists(), "{mode:?}");

        let leaving = leave(&world, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        flow.goes_on();
        assert!(
            world.host.exec("nft list tables").contains("inet tortie"),
            "{mode:?}: Felix guards nothing yet"
        );
        world.host.exec(&["sh", "-c", &mode.hooks()]);
        let output = leaving.wait_with_output().unwrap();
        assert!(output.status.success(), "{mode:?}: {output:?}");
        let ruleset = world.host.exec("nft list ruleset");
        assert!(!ruleset.contains("tortie"), "{mode:?}: {ruleset}");
        flow.goes_on();
        flow.lost_nothing();
        assert_eq!(denied.arrived(0..u64::MAX), 0, "{mode:?}: of {} denied packets", denied.position());
    }
}

/// Perl script that loads an XDP program that passes everything, and pins it.
const PIN_XDP_SCRIPT: &str = r#"
my ($arch, $pin) = @ARGV;
my $call = $arch eq "aarch64" ? 280 : 321;
my $pass = pack("CCsl", 0xb7, 0, 0, 2) . pack("CCsl", 0x95, 0, 0, 0);
my $licence = "GPL\0";
my $at = sub { unpack("Q", pack("P", $_[0])) };
my $load = pack("LLQQLLQLLa16", 6, 2, $at->($pass), $at->($licence), 0, 0, 0, 0, 0, "prefilter");
my $program = syscall($call, 5, $load, length $load);
die "load: $!" if $program < 0;
my $path = "$pin\0";
my $put = pack("QLL", $at->($path), $program, 0);
die "pin: $!" if syscall($call, 6, $put, length $put) != 0;
"#;

#[test]
fn only_xdp_programs_of_felix_are_removed() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    std::fs::write(world.path("pin.pl"), PIN_XDP_SCRIPT).unwrap();
    // The node's namespace has its own mounts, and pins exist in one mount only.
    let script = format!(
        "set -e; mount -t bpf bpf /sys/fs/bpf; mkdir -p /sys/fs/bpf/calico/xdp /sys/fs/bpf/others
         pin() {{ perl {} $(uname -m) $1; ip link set dev $2 xdpgeneric pinned $1; }}
         pin /sys/fs/bpf/calico/xdp/prefilter_v1_eth0 eth0; pin /sys/fs/bpf/others/prefilter_v1_wire0 wire0
         touch {}; while [ ! -e {} ]; do sleep 0.05; done; exec \"$0\" \"$@\"",
        world.path("pin.pl").display(),
        world.path("attached").display(),
        world.path("looked").display()
    );
    let has_program = |host: &TestNamespace, interface: &str| {
        host.exec(&["ip", "-d", "link", "show", interface]).contains("prog/xdp")
    };
    let (attached, looked) = (world.path("attached"), world.path("looked"));
    let host = world.host.name().to_owned();
    let before = std::thread::spawn(move || {
        eventually("the programs are attached", || attached.exists());
        let show = |interface| {
            let command = ["netns", "exec", &host, "ip", "-d", "link", "show", interface];
            std::process::Command::new("ip").args(command).output().unwrap().stdout
        };
        let both =
            ["eth0", "wire0"].map(|interface| String::from_utf8_lossy(&show(interface)).contains("prog/xdp"));
        std::fs::write(looked, "").unwrap();
        both
    });
    world.start_by(&["sh", "-c", &script], &[]);
    assert_eq!(before.join().unwrap(), [true, true], "so that the rest shows something");
    eventually("Felix's program goes", || !has_program(&world.host, "eth0"));
    assert!(has_program(&world.host, "wire0"), "{}", world.log());
    let listing = || {
        let pid = world.pid().to_string();
        let command = ["-t", &pid, "-m", "ls", "/sys/fs/bpf/calico/xdp", "/sys/fs/bpf/others"];
        let output = std::process::Command::new("nsenter").args(command).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    eventually("so does its pin", || !listing().contains("prefilter_v1_eth0"));
    assert!(listing().contains("prefilter_v1_wire0"), "{}", listing());
}
