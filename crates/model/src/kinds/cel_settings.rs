//! CEL validation rules with which kube-apiserver checks pools, BGP resources, endpoints and settings.

use super::cel::{is_set, rule, rule_at};
use serde_json::{Value, json};

const DEFAULT_ONLY_FIELDS: [&str; 7] = [
    "nodeToNodeMeshEnabled",
    "asNumber",
    "serviceLoadBalancerIPs",
    "serviceExternalIPs",
    "serviceClusterIPs",
    "nodeMeshPassword",
    "nodeMeshMaxRestartTime",
];

/// Returns a rule that allows at most one of two text fields.
fn at_most_one(a: &str, b: &str) -> Value {
    rule_at(b, &format!("!({} && {})", is_set(a), is_set(b)), &format!("{a} and {b} cannot both be set"))
}

/// Returns an expression that is true if packets of a pool are encapsulated in this mode.
fn is_wrapped(field: &str) -> String {
    format!("(has(self.{field}) && self.{field} != 'Never')")
}

fn is_used_for(word: &str) -> String {
    format!("(has(self.allowedUses) && '{word}' in self.allowedUses)")
}

/// Returns an expression that is true if a pool does not overlap a range.
fn is_apart_from(range: &str) -> String {
    format!("!cidr('{range}').containsCIDR(self.cidr) && !cidr(self.cidr).containsCIDR('{range}')")
}

pub(super) fn ip_pool() -> Value {
    let balancer = is_used_for("LoadBalancer");
    let is_v4 = "cidr(self.cidr).ip().family() == 4";
    let size =
        format!("(has(self.blockSize) && self.blockSize != 0 ? self.blockSize : ({is_v4} ? 26 : 122))");
    json!([
        rule_at("cidr", "isCIDR(self.cidr)", "the CIDR of a pool must be a network such as 10.0.0.0/16"),
        rule_at(
            "cidr",
            "!isCIDR(self.cidr) || cidr(self.cidr) == cidr(self.cidr).masked()",
            "the CIDR of a pool must have no bits set behind its prefix",
        ),
        rule_at(
            "cidr",
            &format!(
                "!isCIDR(self.cidr) || ({} && {})",
                is_apart_from("169.254.0.0/16"),
                is_apart_from("fe80::/10")
            ),
            "the CIDR of a pool must not overlap the link-local ranges 169.254.0.0/16 and fe80::/10",
        ),
        rule_at(
            "blockSize",
            &format!(
                "!isCIDR(self.cidr) || ({is_v4} ? {size} >= 20 && {size} <= 32 : {size} >= 116 && {size} <= 128)"
            ),
            "must be between 20 and 32 (IPv4) or between 116 and 128 (IPv6)",
        ),
        rule_at(
            "cidr",
            &format!(
                "!isCIDR(self.cidr) || (has(self.disabled) && self.disabled) || cidr(self.cidr).prefixLength() <= {size}"
            ),
            "the pool is smaller than one of its blocks (blockSize)",
        ),
        rule_at("cidr", "self.cidr == oldSelf.cidr", "the CIDR of a pool cannot be changed"),
        rule_at(
            "blockSize",
            "!has(oldSelf.blockSize) || (has(self.blockSize) && self.blockSize == oldSelf.blockSize)",
            "the block size of a pool cannot be changed",
        ),
        rule_at(
            "ipipMode",
            &format!("!({} && {})", is_wrapped("ipipMode"), is_wrapped("vxlanMode")),
            "ipipMode and vxlanMode cannot both be used on one pool",
        ),
        rule_at(
            "ipipMode",
            &format!("!(self.cidr.contains(':') && {})", is_wrapped("ipipMode")),
            "IPIP cannot carry IPv6: ipipMode must be Never",
        ),
        rule_at(
            "allowedUses",
            &format!("!{balancer} || size(self.allowedUses) == 1"),
            "LoadBalancer cannot be combined with other uses",
        ),
        rule_at(
            "allowedUses",
            &format!("!{balancer} || !({} || {})", is_wrapped("ipipMode"), is_wrapped("vxlanMode")),
            "a pool for load balancers cannot be encapsulated",
        ),
        rule_at(
            "disableBGPExport",
            &format!("!{balancer} || !has(self.disableBGPExport) || !self.disableBGPExport"),
            "disableBGPExport must be false on a pool for load balancers",
        ),
        rule_at(
            "nodeSelector",
            &format!("!{balancer} || !has(self.nodeSelector) || self.nodeSelector == 'all()'"),
            "nodeSelector must be all() on a pool for load balancers",
        ),
        rule_at(
            "namespaceSelector",
            &format!("!{} || !{}", is_used_for("Tunnel"), is_set("namespaceSelector")),
            "namespaceSelector cannot be used on a pool for tunnel addresses",
        ),
    ])
}

/// Returns a rule for a field that has no meaning without the mesh.
fn needs_mesh(field: &str) -> Value {
    rule_at(
        field,
        &format!("!has(self.{field}) || !has(self.nodeToNodeMeshEnabled) || self.nodeToNodeMeshEnabled"),
        &format!("{field} cannot be set when nodeToNodeMeshEnabled is false"),
    )
}

pub(super) fn bgp_configuration() -> Value {
    json!([
        needs_mesh("nodeMeshPassword"),
        needs_mesh("nodeMeshMaxRestartTime"),
        rule_at(
            "communities",
            &format!("!{} || {}", is_set("communities"), is_set("prefixAdvertisements")),
            "communities are used by prefixAdvertisements only, and there are none",
        ),
    ])
}

/// Returns rules for fields that are allowed only in the cluster-wide object.
pub(super) fn bgp_configuration_object() -> Vec<Value> {
    let rules = DEFAULT_ONLY_FIELDS.map(|field| {
        rule_at(
            &format!("spec.{field}"),
            &format!("self.metadata.name == 'default' || !has(self.spec) || !has(self.spec.{field})"),
            &format!("{field} can only be set on the BGPConfiguration named default"),
        )
    });
    rules.into()
}

pub(super) fn bgp_peer() -> Value {
    json!([
        at_most_one("node", "nodeSelector"),
        at_most_one("peerIP", "peerSelector"),
        at_most_one("localWorkloadSelector", "peerIP"),
        at_most_one("localWorkloadSelector", "peerSelector"),
        rule_at(
            "asNumber",
            &format!("!{} || !has(self.asNumber) || self.asNumber == 0", is_set("peerSelector")),
            "asNumber cannot be set together with peerSelector",
        ),
        rule_at(
            "asNumber",
            &format!("!{} || (has(self.asNumber) && self.asNumber != 0)", is_set("localWorkloadSelector")),
            "asNumber must be set when localWorkloadSelector is",
        ),
        rule_at(
            "reachableBy",
            &format!("!{} || {}", is_set("reachableBy"), is_set("peerIP")),
            "reachableBy needs a peerIP"
        ),
        rule_at(
            "reachableBy",
            &format!(
                "!{} || !{} || self.reachableBy.contains(':') != self.peerIP.matches('^[0-9.]+(:[0-9]+)?$')",
                is_set("reachableBy"),
                is_set("peerIP")
            ),
            "reachableBy must be of the same address family as peerIP"
        ),
        rule_at(
            "keepOriginalNextHop",
            "!has(self.keepOriginalNextHop) || !self.keepOriginalNextHop || !has(self.nextHopMode)",
            "keepOriginalNextHop cannot be set together with nextHopMode, which replaces it",
        ),
    ])
}

pub(super) fn bgp_filter_rule() -> Value {
    json!([
        rule_at(
            "matchOperator",
            &format!("{} == {}", is_set("cidr"), is_set("matchOperator")),
            "cidr and matchOperator must both be set or both be left out",
        ),
        rule_at(
            "prefixLength",
            &format!("!has(self.prefixLength) || {}", is_set("cidr")),
            "prefixLength needs a cidr"
        ),
        rule_at(
            "operations",
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
        rule_at("node", &is_set("node"), "node must be set"),
        rule_at(
            "interfaceName",
            &format!("{} || {}", is_set("interfaceName"), is_set("expectedIPs")),
            "at least one of interfaceName and expectedIPs must be set",
        ),
    ])
}

/// Returns a rule for an address of one family.
fn is_address(field: &str, family: u8) -> Value {
    rule_at(
        field,
        &format!("!{} || (isIP(self.{field}) && ip(self.{field}).family() == {family})", is_set(field)),
        &format!("must be an IPv{family} address"),
    )
}

pub(super) fn felix_configuration() -> Value {
    json!([
        rule_at(
            "routeTableRange",
            "!has(self.routeTableRange) || !has(self.routeTableRanges)",
            "routeTableRange and routeTableRanges cannot both be set",
        ),
        is_address("natOutgoingAddress", 4),
        is_address("deviceRouteSourceAddress", 4),
        is_address("deviceRouteSourceAddressIPv6", 6),
    ])
}

pub(super) fn felix_configuration_object() -> Vec<Value> {
    vec![rule_at(
        "spec.nodeSelector",
        "!(self.metadata.name == 'default' || self.metadata.name.startsWith('node.')) || !has(self.spec) || \
         !has(self.spec.nodeSelector) || self.spec.nodeSelector == ''",
        "nodeSelector cannot be set on the objects named default and node.<name>",
    )]
}

pub(super) fn route_table_range() -> Value {
    json!([rule_at("min", "self.min <= self.max", "min must not be greater than max")])
}

/// Returns a rule for lists with few elements that are not declared as sets, because they are replaced as a
/// whole.
pub(super) fn unique() -> Value {
    json!([rule("self.all(a, self.exists_one(b, a == b))", "must have every entry once")])
}

pub(super) fn unique_templates() -> Value {
    json!([rule(
        "self.all(a, self.exists_one(b, a.generateName == b.generateName))",
        "generateName of every template must be different"
    )])
}

pub(super) fn host_endpoint_template() -> Value {
    json!([rule_at(
        "interfaceCIDRs",
        &format!("{} || {}", is_set("interfaceCIDRs"), is_set("interfacePattern")),
        "at least one of interfaceCIDRs and interfacePattern must be set",
    )])
}

/// Returns the rules for kinds with a single object.
pub(super) fn singleton() -> Vec<Value> {
    vec![rule_at(
        "metadata",
        "self.metadata.name == 'default'",
        "the name must be default: there is only one",
    )]
}
