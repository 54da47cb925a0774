//! Reads the policy table, counters and packets of a node from the kernel.

use super::packets::TEST_DSCP;
use regex::Regex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Comments of built-in rules.
pub const ENDPOINT_TO_HOST_COMMENT: &str = "the host is closed to workloads";
pub const ENCAPSULATION_COMMENT: &str = "workloads may not encapsulate";
/// Counter key for all rules that log.
pub const LOG_COUNTER: &str = "log";

/// Packet counts by cause: a policy, a profile, or the comment of another rule.
pub type RuleCounters = BTreeMap<String, u64>;

pub struct NodeKernel {
    namespace: String,
}

impl NodeKernel {
    pub fn of(namespace: &str) -> NodeKernel {
        NodeKernel { namespace: namespace.to_owned() }
    }

    fn nft(&self, words: &[&str]) -> String {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, "nft"]).args(words).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn table(&self, options: &[&str]) -> String {
        self.nft(&[options, &["list", "table", "inet", "tortie"]].concat())
    }

    pub fn counters(&self) -> RuleCounters {
        let rule = Regex::new(r#"counter packets (\d+) bytes \d+ (.*)comment "([^"]*)""#).unwrap();
        let mut counters = RuleCounters::new();
        for found in rule.captures_iter(&self.table(&[])) {
            let packets: u64 = found[1].parse().unwrap();
            // Comments of policy and profile rules end with a rule number.
            let holder = found[3].rsplit_once(' ').filter(|(_, rule)| rule.parse::<u32>().is_ok());
            let cause = holder.map_or(&found[3], |(holder, _)| holder);
            *counters.entry(cause.to_owned()).or_default() += packets;
            if found[2].starts_with("log ") {
                *counters.entry(LOG_COUNTER.to_owned()).or_default() += packets;
            }
        }
        counters
    }

    /// Records the numbers of test packets from now on, before any policy applies.
    pub fn watch_packets(&self) {
        self.nft(&[&format!(
            "table inet probe {{
                set entered4 {{ typeof ip id; size 65535; flags dynamic; }}
                set entered6 {{ typeof ip6 flowlabel; size 65535; flags dynamic; }}
                chain enter {{
                    type filter hook prerouting priority -400;
                    ip dscp {TEST_DSCP} add @entered4 {{ ip id }}
                    ip6 dscp {TEST_DSCP} add @entered6 {{ ip6 flowlabel }}
                }}
            }}"
        )]);
    }

    pub fn entered(&self, number: u16) -> bool {
        ["entered4", "entered6"].iter().any(|set| {
            let text = self.nft(&["-j", "list", "set", "inet", "probe", set]);
            let listing: Value = serde_json::from_str(&text).unwrap();
            let objects = listing["nftables"].as_array().unwrap().iter();
            let mut elements = objects.filter_map(|object| object["set"]["elem"].as_array()).flatten();
            elements.any(|element| {
                element.as_u64().or(element["elem"]["val"].as_u64()) == Some(u64::from(number))
            })
        })
    }
}
