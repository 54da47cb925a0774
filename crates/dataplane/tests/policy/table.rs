//! The nf_tables table as nft lists it, without parts that depend on its history: handles, counters, the order of
//! chains and elements.

use crate::namespace::TestNamespace;
use serde_json::Value;
use std::collections::BTreeMap;

pub fn exists(node: &TestNamespace) -> bool {
    node.try_exec(&["nft", "list", "table", "inet", "tortie"]).status.success()
}

/// Returns the output of `nft list table` without counters.
pub fn listing(node: &TestNamespace) -> String {
    node.exec(&["nft", "-s", "list", "table", "inet", "tortie"])
}

/// Sorts the chains and sets of a listing by name: the kernel lists them in creation order.
pub fn sorted(listing: &str) -> String {
    let mut blocks: Vec<String> = Vec::new();
    for line in listing.lines() {
        let begins = line.starts_with('\t') && !line.starts_with("\t\t") && !line.starts_with("\t}");
        match blocks.last_mut() {
            Some(block) if !begins => *block = format!("{block}\n{line}"),
            _ => blocks.push(line.to_owned()),
        }
    }
    let end = |block: &String| block.trim_end_matches(['\n', '}', '\t']).to_owned();
    blocks = blocks.iter().map(end).collect();
    blocks.sort();
    blocks.join("\n")
}

/// Returns chains with their rules and sets with their elements.
pub fn contents(node: &TestNamespace) -> BTreeMap<String, Vec<String>> {
    of(node, "tortie")
}

pub fn of(node: &TestNamespace, table: &str) -> BTreeMap<String, Vec<String>> {
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
                // Packets add the keys of recorded flows.
                let listed = body["elem"].as_array().filter(|_| !name.starts_with("flow-keys-"));
                let elements = listed.cloned().unwrap_or_default();
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
