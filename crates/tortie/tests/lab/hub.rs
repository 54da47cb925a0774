//! Hubs between the datastore and the nodes are killed and restarted while pods exchange traffic and policy changes.
//! `TORTIE_NODES` sets the number of nodes; those after the second have no pods.

use crate::pinger::ContinuousPing;
use crate::{TestLab, family};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tortie_testkit::{TestProcess, eventually, eventually_showing};

impl TestLab {
    fn node_log(&self, node: &str) -> String {
        std::fs::read_to_string(self.dir().join("nodes").join(node).join("log")).unwrap()
    }

    /// Applies a policy with one ingress rule for the pods with app=web.
    fn apply_policy(&self, name: &str, rule: &str) {
        let file = self.dir().join(format!("{name}.yaml"));
        let text = format!(
            "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata:\n  name: {name}\nspec:\n  \
             selector: app == 'web'\n  ingress:\n  - {rule}\n"
        );
        std::fs::write(&file, text).unwrap();
        self.run(&["ctl", "apply", "-f", file.to_str().unwrap()]);
    }
}

const ALLOW_CLIENT_RULE: &str = "{action: Allow, source: {selector: role == 'client'}}";

/// Records all writes to a node's kernel.
struct KernelWriteMonitor {
    _processes: [TestProcess; 2],
    files: [PathBuf; 2],
}

impl KernelWriteMonitor {
    fn start(lab: &TestLab, node: &str) -> KernelWriteMonitor {
        let files = ["nft", "ip"].map(|name| lab.dir().join(format!("{node}-{name}")));
        let words = [&["nft", "monitor"][..], &["ip", "monitor", "route", "link"]];
        let processes = [0, 1].map(|index| {
            let mut command = lab.command(&[&["exec", node, "--"], words[index]].concat());
            TestProcess::start(command.stdout(File::create(&files[index]).unwrap()))
        });
        let listener = KernelWriteMonitor { _processes: processes, files };
        // The monitors are running once they report changes of this test.
        eventually("the listeners hear", || {
            let run = |words: &[&str]| lab.output(&[&["exec", node, "--"], words].concat());
            run(&["nft", "add table inet probe"]);
            run(&["nft", "delete table inet probe"]);
            run(&["ip", "route", "replace", "192.0.2.0/24", "dev", "lo"]);
            run(&["ip", "route", "del", "192.0.2.0/24", "dev", "lo"]);
            listener.said(0).contains("probe") && listener.said(1).contains("192.0.2.0")
        });
        listener
    }

    fn said(&self, index: usize) -> String {
        std::fs::read_to_string(&self.files[index]).unwrap()
    }

    /// Returns the changes that were not made by this test.
    fn written(&self) -> Vec<String> {
        let foreign =
            |line: &&str| ["probe", "192.0.2.0", "# new generation"].iter().any(|word| line.contains(word));
        let said = self.said(0) + &self.said(1);
        said.lines().filter(|line| !foreign(line)).map(str::to_owned).collect()
    }
}

fn node_count() -> usize {
    std::env::var("TORTIE_NODES").map_or(2, |text| text.parse().unwrap())
}

#[test]
fn hubs_die_under_policy_churn_and_nobody_notices() {
    let begun = Instant::now();
    let lab = TestLab::up(&["--nodes", &node_count().to_string(), "--hub", "2"]);
    println!("{} nodes and two hubs are up after {:.1?}", node_count(), begun.elapsed());
    println!("{}", lab.run(&["top", "--count", "1", "--interval", "1"]));
    let web = lab.add("web", "node1", &["--label", "app=web"]);
    lab.add("client", "node2", &["--label", "role=client"]);
    lab.add("other", "node2", &[]);
    let web = family(&web, false);
    lab.apply_policy("open", ALLOW_CLIENT_RULE);
    eventually("policy holds", || lab.pings("client", web) && !lab.pings("other", web));
    let (allowed, denied) =
        (ContinuousPing::start(&lab, "client", web), ContinuousPing::start(&lab, "other", web));
    allowed.wait_for_more(20);

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for port in 1.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                lab.apply_policy(
                    "churn",
                    &format!("{{action: Allow, protocol: TCP, destination: {{ports: [{port}]}}}}"),
                );
            }
        });
        for hub in ["1", "2", "1"] {
            lab.run(&["hub", "stop", hub, "--kill"]);
            allowed.wait_for_more(100);
            lab.run(&["hub", "start", hub]);
            allowed.wait_for_more(20);
        }
        done.store(true, Ordering::Relaxed);
    });
    allowed.none_lost();
    assert_eq!(denied.answers(), 0, "a verdict changed");
    for node in (1..=node_count()).map(|number| format!("node{number}")) {
        let followed = lab.node_log(&node).matches("following the hub").count();
        assert!(followed >= 2, "{node} followed {followed} hubs:\n{}", lab.node_log(&node));
    }
    // The nodes have received the last change and receive the next.
    lab.apply_policy("open", "{action: Deny}");
    eventually_showing("the change holds", || !lab.pings("client", web), || lab.node_log("node1"));
}

/// Returns how long all hubs stay down (`TORTIE_OUTAGE_SECONDS`), in addition to the time until the nodes notice.
fn outage() -> Duration {
    let seconds = std::env::var("TORTIE_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

#[test]
fn without_any_hub_nodes_keep_working_and_resume() {
    let lab = TestLab::up(&["--nodes", "2", "--hub", "2", "--datastore", "etcd"]);
    let web = lab.add("web", "node1", &["--label", "app=web"]);
    lab.add("client", "node2", &["--label", "role=client"]);
    let web = family(&web, false);
    lab.apply_policy("open", ALLOW_CLIENT_RULE);
    lab.apply_policy("more", "{action: Allow, protocol: TCP, destination: {ports: [1]}}");
    eventually("policy holds", || lab.pings("client", web));
    let rules = || lab.run(&["exec", "node1", "--", "nft", "list", "ruleset"]);
    eventually("the node has both policies", || rules().contains("more"));
    let listeners = [KernelWriteMonitor::start(&lab, "node1"), KernelWriteMonitor::start(&lab, "node2")];
    let ping = ContinuousPing::start(&lab, "client", web);

    lab.run(&["hub", "stop", "1", "--kill"]);
    let status = lab.status();
    let hubs: Vec<bool> = status["hubs"].as_array().unwrap().iter().map(|hub| hub["pid"].is_u64()).collect();
    assert_eq!(hubs, [false, true], "{status}");
    assert!(lab.picture().contains("hub 1  10."), "{}", lab.picture());
    let table = lab.run(&["top", "--count", "1", "--interval", "1"]);
    assert!(table.contains("hub 1  stopped") && table.contains("hub 2  running"), "{table}");
    lab.run(&["hub", "stop", "2", "--kill"]);
    let lost = |node: &str| lab.node_log(node).matches("the datastore is out of reach").count();
    eventually("the nodes notice", || lost("node1") == 1 && lost("node2") == 1);
    std::thread::sleep(outage());
    ping.wait_for_more(500);
    for hub in ["1", "2"] {
        lab.run(&["hub", "start", hub]);
    }
    let back = |node: &str| lab.node_log(node).matches("the datastore is back").count();
    eventually("the nodes are back", || back("node1") == 1 && back("node2") == 1);
    for listener in &listeners {
        assert_eq!(listener.written(), Vec::<String>::new(), "nothing had changed");
    }
    ping.none_lost();

    lab.run(&["hub", "stop", "1", "--kill"]);
    lab.run(&["hub", "stop", "2", "--kill"]);
    eventually("the nodes notice again", || lost("node1") == 2 && lost("node2") == 2);
    lab.apply_policy("open", "{action: Deny}");
    assert!(lab.pings("client", web), "without a hub everything stays as it is");
    lab.run(&["hub", "start", "2"]);
    eventually_showing("the change holds", || !lab.pings("client", web), || lab.node_log("node1"));
    assert_eq!(listeners[1].written(), Vec::<String>::new(), "node2 has no part in it");
    let written = listeners[0].written().join("\n");
    assert!(!written.contains("more"), "the other policy was not touched:\n{written}");
}
