//! Encodes a CNI request for the node's daemon, and answers VERSION locally.

use crate::error::quote_json;
use std::os::unix::fs::MetadataExt;

/// Maximum size of a network configuration on standard input, in bytes.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

pub const SUPPORTED_VERSIONS: &[&str] = &["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The environment variables of the CNI protocol that the plugin forwards to the daemon.
pub const FORWARDED_VARIABLES: &[&str] =
    &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE"];

/// The plugin that the container runtime called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CniPlugin {
    Calico,
    CalicoIpam,
}

impl CniPlugin {
    pub const fn name(self) -> &'static str {
        match self {
            CniPlugin::Calico => "calico",
            CniPlugin::CalicoIpam => "calico-ipam",
        }
    }

    pub fn from_name(name: &str) -> Option<CniPlugin> {
        [CniPlugin::Calico, CniPlugin::CalicoIpam].into_iter().find(|plugin| plugin.name() == name)
    }

    pub(crate) const fn about(self) -> &'static str {
        match self {
            CniPlugin::Calico => "Calico CNI plugin",
            CniPlugin::CalicoIpam => "Calico CNI IPAM",
        }
    }
}

/// Returns the response to VERSION, which does not need the daemon.
pub(crate) fn version_response() -> String {
    let listed: Vec<String> = SUPPORTED_VERSIONS.iter().map(|version| quote_json(version)).collect();
    format!("{{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[{}]}}", listed.join(","))
}

/// Encodes the request as one JSON object. The network configuration is passed as a string, without being parsed.
pub(crate) fn encode_request(plugin: CniPlugin, command: &str, config: &str, own_namespace: bool) -> String {
    let mut text = format!("{{\"plugin\":{},\"command\":{}", quote_json(plugin.name()), quote_json(command));
    text.push_str(",\"env\":{");
    let set =
        FORWARDED_VARIABLES.iter().filter_map(|name| std::env::var(name).ok().map(|value| (name, value)));
    for (i, (name, value)) in set.enumerate() {
        if i > 0 {
            text.push(',');
        }
        text.push_str(&quote_json(name));
        text.push(':');
        text.push_str(&quote_json(&value));
    }
    text.push_str(if own_namespace { "},\"own_netns\":true" } else { "},\"own_netns\":false" });
    text.push_str(",\"config\":");
    text.push_str(&quote_json(config));
    text.push('}');
    text
}

/// Returns whether the container's network namespace is the one that the plugin runs in.
pub(crate) fn is_own_namespace() -> bool {
    let wanted = std::env::var("CNI_NETNS").ok().and_then(|path| read_inode(&path));
    wanted.is_some() && wanted == read_inode("/proc/self/ns/net")
}

fn read_inode(path: &str) -> Option<(u64, u64)> {
    std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok()
}
