//! The action Log writes a line to the kernel log. The kernel logs packets of other network namespaces only if a setting of the
//! machine allows it, so the test runs in the guest.

use crate::world::{NodeFixture, eventually};
use serde_json::json;
use std::process::Command;
use tortie_testkit::{guest_test, run};

const LOG_ALL_NAMESPACES: &str = "/proc/sys/net/netfilter/nf_log_all_netns";

guest_test!(
    crate::machine,
    fn log_rules_write_to_the_kernel_log() {
        std::fs::write(LOG_ALL_NAMESPACES, "1").unwrap();
        let world = NodeFixture::new();
        world.felix("logPrefix: 'seen by %n'");
        let policy = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "noted"},
            "spec": {"selector": "all()", "types": ["Ingress"],
                "ingress": [{"action": "Log", "protocol": "ICMP"}, {"action": "Allow"}]},
        });
        world.calicoctl(&["apply", "-f", "-"], &policy.to_string());
        let (one, two) = (world.container(), world.container());
        let from = world.must("ADD", "c1", &one.path(), &world.config()).addresses();
        let to = world.must("ADD", "c2", &two.path(), &world.config()).addresses();
        let line = || {
            let log = run(&mut Command::new("dmesg"));
            let is_ours = |line: &&str| line.contains("seen by noted") && line.contains("OUT=calic2");
            log.lines().find(is_ours).map(str::to_owned)
        };
        eventually("a packet is logged", || one.pings(&to[0]) && line().is_some());
        let line = line().unwrap();
        for part in [&format!("SRC={}", from[0]), &format!("DST={}", to[0]), "PROTO=ICMP"] {
            assert!(line.contains(part), "{line}");
        }
        for (name, pod) in [("c1", &one), ("c2", &two)] {
            world.must("DEL", name, &pod.path(), &world.config());
        }
        std::fs::write(LOG_ALL_NAMESPACES, "0").unwrap();
    }
);
