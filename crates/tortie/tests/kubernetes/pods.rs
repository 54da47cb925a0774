//! Pods as kubectl lists them, and requests from them.

use crate::cluster::KubernetesLab;
use serde_json::Value;
use std::fs;
use std::net::IpAddr;
use tortie_dataplane::Netns;

#[derive(Clone, Debug)]
pub struct ListedPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub node: String,
    pub ready: bool,
    /// Addresses in the order of `status.podIPs`.
    pub addresses: Vec<IpAddr>,
}

impl ListedPod {
    /// Parses the JSON of a pod list; returns nothing if it is unreadable.
    pub fn read(list: &str) -> Vec<ListedPod> {
        let list: Value = serde_json::from_str(list).unwrap_or_default();
        let pod = |item: &Value| {
            let text =
                |pointer: &str| item.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let listed =
                |pointer: &str| item.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
            let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
            ListedPod {
                namespace: text("/metadata/namespace"),
                name: text("/metadata/name"),
                uid: text("/metadata/uid"),
                node: text("/spec/nodeName"),
                ready: listed("/status/conditions").iter().any(is_ready),
                addresses: listed("/status/podIPs")
                    .iter()
                    .filter_map(|ip| ip["ip"].as_str()?.parse().ok())
                    .collect(),
            }
        };
        list["items"].as_array().into_iter().flatten().map(pod).collect()
    }

    pub fn is_ready(&self) -> bool {
        self.ready && self.addresses.len() == 2
    }

    /// Returns the network namespace of its containers, found by the cgroup of one of their processes.
    pub fn netns(&self) -> Netns {
        let group = format!("/pod{}/", self.uid);
        let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let mut inside = processes.filter(|process| {
            fs::read_to_string(process.join("cgroup")).is_ok_and(|text| text.contains(&group))
        });
        let process = inside.next().unwrap_or_else(|| panic!("no process of {self:?}"));
        Netns::open(process.join("ns/net")).unwrap()
    }
}

/// Fetches a page from inside a pod; returns an empty string if there is no answer.
pub fn fetch(cluster: &KubernetesLab, from: &ListedPod, address: IpAddr, port: u16) -> String {
    let line = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} {port}");
    let answer = cluster.kubectl(&["exec", "-n", &from.namespace, &from.name, "--", "sh", "-c", &line]);
    let body = answer.replace('\r', "");
    body.split_once("\n\n").map(|(_, body)| body.trim().to_owned()).unwrap_or_default()
}
