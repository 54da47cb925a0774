//! The rules about pools, BGP, endpoints and settings that a Kubernetes API server can check by itself.

use super::cel::rule;
use serde_json::{Value, json};

const DEFAULT_ONLY: [&str; 7] = [
    "nodeToNodeMeshEnabled",
    "asNumber",
    "serviceLoadBalancerIPs",
    "serviceExternalIPs",
    "serviceClusterIPs",
    "nodeMeshPassword",
    "nodeMeshMaxRestartTime",
];

/// An expression that is true when the text field is there and not empty.
fn is_set(field: &str) -> String {
    format!("(has(self.{field}) && size(self.{field}) > 0)")
}

/// Two text fields of which at most one may be set.
fn at_most_one(a: &str, b: &str) -> Value {
    rule(&format!("!({} && {})", is_set(a), is_set(b)), &format!("{a} and {b} cannot both be set"))
}

pub(super) fn ip_pool() -> Value {
    let wrapped = |field: &str| format!("(has(self.{field}) && self.{field} != 'Never')");
    let used_for = |word: &str| format!("(has(self.allowedUses) && '{word}' in self.allowedUses)");
    let balancer = used_for("LoadBalancer");
    json!([
        rule("self.cidr == oldSelf.cidr", "the CIDR of a pool cannot be changed"),
        rule(
            "!has(oldSelf.blockSize) || (has(self.blockSize) && self.blockSize == oldSelf.blockSize)",
            "the block size of a pool cannot be changed",
        ),
        rule(
            &format!("!({} && {})", wrapped("ipipMode"), wrapped("vxlanMode")),
            "ipipMode and vxlanMode cannot both be used on one pool",
        ),
        rule(
            &format!("!(self.cidr.contains(':') && {})", wrapped("ipipMode")),
            "IPIP cannot carry IPv6: ipipMode must be Never",
        ),
        rule(
            &format!("!{balancer} || size(self.allowedUses) == 1"),
            "LoadBalancer cannot be combined with other uses",
        ),
        rule(
            &format!("!{balancer} || !({} || {})", wrapped("ipipMode"), wrapped("vxlanMode")),
            "a pool for load balancers cannot be encapsulated",
        ),
        rule(
            &format!("!{balancer} || !has(self.disableBGPExport) || !self.disableBGPExport"),
            "disableBGPExport must be false on a pool for load balancers",
        ),
        rule(
            &format!("!{balancer} || !has(self.nodeSelector) || self.nodeSelector == 'all()'"),
            "nodeSelector must be all() on a pool for load balancers",
        ),
        rule(
            &format!("!{} || !{}", used_for("Tunnel"), is_set("namespaceSelector")),
            "namespaceSelector cannot be used on a pool for tunnel addresses",
        ),
    ])
}

pub(super) fn bgp_configuration() -> Value {
    let needs_mesh = |field: &str| {
        rule(
            &format!("!has(self.{field}) || !has(self.nodeToNodeMeshEnabled) || self.nodeToNodeMeshEnabled"),
            &format!("{field} cannot be set when nodeToNodeMeshEnabled is false"),
        )
    };
    json!([
        needs_mesh("nodeMeshPassword"),
        needs_mesh("nodeMeshMaxRestartTime"),
        rule(
            &format!("!{} || {}", is_set("communities"), is_set("prefixAdvertisements")),
            "communities are used by prefixAdvertisements only, and there are none",
        ),
    ])
}

/// What only the object of the whole cluster may say.
pub(super) fn bgp_configuration_object() -> Vec<Value> {
    let only = |field: &&str| {
        rule(
            &format!("self.metadata.name == 'default' || !has(self.spec) || !has(self.spec.{field})"),
            &format!("{field} can only be set on the BGPConfiguration named default"),
        )
    };
    DEFAULT_ONLY.iter().map(only).collect()
}

pub(super) fn bgp_peer() -> Value {
    json!([
        at_most_one("node", "nodeSelector"),
        at_most_one("peerIP", "peerSelector"),
        at_most_one("localWorkloadSelector", "peerIP"),
        at_most_one("localWorkloadSelector", "peerSelector"),
        rule(
            &format!("!{} || !has(self.asNumber) || self.asNumber == 0", is_set("peerSelector")),
            "asNumber cannot be set together with peerSelector",
        ),
        rule(
            &format!("!{} || (has(self.asNumber) && self.asNumber != 0)", is_set("localWorkloadSelector")),
            "asNumber must be set when localWorkloadSelector is",
        ),
        rule(&format!("!{} || {}", is_set("reachableBy"), is_set("peerIP")), "reachableBy needs a peerIP"),
        rule(
            "!has(self.keepOriginalNextHop) || !self.keepOriginalNextHop || !has(self.nextHopMode)",
            "keepOriginalNextHop cannot be set together with nextHopMode, which replaces it",
        ),
    ])
}

pub(super) fn bgp_filter_rule() -> Value {
    json!([
        rule(
            &format!("{} == {}", is_set("cidr"), is_set("matchOperator")),
            "cidr and matchOperator must both be set or both be left out",
        ),
        rule(&format!("!has(self.prefixLength) || {}", is_set("cidr")), "prefixLength needs a cidr"),
        rule(
            &format!("!{} || self.action == 'Accept'", is_set("operations")),
            "operations can only be used with the action Accept",
        ),
    ])
}

pub(super) fn bgp_filter_operation() -> Value {
    let count =
        ["addCommunity", "prependASPath", "setPriority"].map(|field| format!("(has(self.{field}) ? 1 : 0)"));
    json!([rule(&format!("{} == 1", count.join(" + ")), "exactly one operation must be set")])
}

pub(super) fn host_endpoint() -> Value {
    json!([
        rule(&is_set("node"), "node must be set"),
        rule(
            &format!("{} || {}", is_set("interfaceName"), is_set("expectedIPs")),
            "at least one of interfaceName and expectedIPs must be set",
        ),
    ])
}

pub(super) fn felix_configuration() -> Value {
    json!([rule(
        "!has(self.routeTableRange) || !has(self.routeTableRanges)",
        "routeTableRange and routeTableRanges cannot both be set",
    )])
}

pub(super) fn felix_configuration_object() -> Vec<Value> {
    vec![rule(
        "!(self.metadata.name == 'default' || self.metadata.name.startsWith('node.')) || !has(self.spec) || \
         !has(self.spec.nodeSelector) || self.spec.nodeSelector == ''",
        "nodeSelector cannot be set on the objects named default and node.<name>",
    )]
}

/// Kinds of which there is one object.
pub(super) fn singleton() -> Vec<Value> {
    vec![rule("self.metadata.name == 'default'", "the name must be default: there is only one")]
}
