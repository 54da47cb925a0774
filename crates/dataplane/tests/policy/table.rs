//! The table as nft shows it, without what depends on its history: handles, counters, the order of chains and elements.

use crate::namespace::Namespace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;

impl Namespace {
    /// Has nft read commands.
    pub fn nft(&self, commands: &str) {
        let mut nft = self.command("nft");
        nft.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut nft = nft.spawn().unwrap();
        nft.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "{commands}");
    }
}

pub fn exists(node: &Namespace) -> bool {
    node.try_exec(&["nft", "list", "table", "inet", "tortie"]).status.success()
}

/// Chains with their rules, sets with their elements.
pub fn contents(node: &Namespace) -> BTreeMap<String, Vec<String>> {
    of(node, "tortie")
}

pub fn of(node: &Namespace, table: &str) -> BTreeMap<String, Vec<String>> {
    let text = node.exec(&["nft", "-j", "-s", "list", "table", "inet", table]);
    let listing: Value = serde_json::from_str(&text).unwrap();
    let mut contents: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for object in listing["nftables"].as_array().unwrap() {
        let (kind, body) = object.as_object().unwrap().iter().next().unwrap();
        let name = body["name"].as_str().unwrap_or_default();
        match kind.as_str() {
            "chain" => {
                let hook = format!("{} {} {} {}", body["type"], body["hook"], body["prio"], body["policy"]);
                contents.entry(format!("chain {name}")).or_default().insert(0, hook);
            }
            "rule" => {
                let chain = body["chain"].as_str().unwrap();
                let rule = format!("{} {}", body["expr"], body["comment"]);
                contents.entry(format!("chain {chain}")).or_default().push(rule);
            }
            "set" | "map" => {
                let elements = body["elem"].as_array().cloned().unwrap_or_default();
                let mut elements: Vec<String> = elements.iter().map(Value::to_string).collect();
                elements.sort();
                elements.insert(0, format!("{} {} {}", body["type"], body["flags"], body["map"]));
                contents.insert(format!("{kind} {name}"), elements);
            }
            _ => {}
        }
    }
    contents
}
