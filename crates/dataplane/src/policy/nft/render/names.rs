//! Names of kernel objects: readable, and independent of earlier state.

use super::super::flow::FlowSlot;
use super::super::rule::{NftFamily, NftRule};
use super::super::table::NftElement;
use super::PolicyStage;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use tortie_plan::flow::FlowCause;
use tortie_plan::{EndpointTier, PolicyDirection, PolicyId, SetId};

/// The kernel's limit, without the terminating NUL.
const MAX_NAME_BYTES: usize = 255;

pub const FROM_WORKLOAD_MAP: &str = "from-workload";
pub const TO_WORKLOAD_MAP: &str = "to-workload";
/// Interfaces of workloads that no prefix covers.
pub const UNCOVERED_WORKLOADS_SET: &str = "workloads";
/// Interfaces of workloads that are up.
pub const UP_WORKLOADS_SET: &str = "open-workloads";
/// Interfaces of workloads whose proxy enforces HTTP conditions. The set exists only while a rule needs it.
pub const PROXIED_WORKLOADS_SET: &str = "proxied-workloads";
/// Interfaces of the host that have their own endpoint.
pub const HOST_INTERFACES: &str = "host-interfaces";
/// Map from interface to the chain for packets that arrive there for the host.
pub const HOST_IN_MAP: &str = "host-in";
/// Chain that records new connections.
pub const FLOWS_ALLOWED: &str = "flows-allowed";
/// Chains that record and drop or reject packets.
pub const FLOWS_DENIED: &str = "flows-denied";
pub const FLOWS_REJECTED: &str = "flows-rejected";
/// Set of the ARP table: interface and address.
pub const ARP_SENDERS_SET: &str = "senders";

/// Returns the name of the set of addresses, or of named ports, of one family.
pub fn set(id: &SetId, family: NftFamily) -> String {
    format!("{}-{}", id.0.replace(':', "-"), family.digit())
}

/// Returns the name of the set of nets of one family with more than one address.
pub fn nets(id: &SetId, family: NftFamily) -> String {
    format!("{}-nets", set(id, family))
}

/// Returns the name of the set of recorded keys.
pub fn flows(allowed: bool, family: NftFamily) -> String {
    let verdict = if allowed { "allowed" } else { "denied" };
    format!("flow-keys-{verdict}-{}", family.digit())
}

/// Returns the name of the chain that records and drops packets without a label.
pub fn untracked_drop(cause: &FlowCause, slot: FlowSlot) -> String {
    format!("flows-denied-{}-{}", cause.to_string().replace(' ', "-"), slot.text())
}

pub fn sources(family: NftFamily) -> String {
    format!("sources-{}", family.digit())
}

pub fn source_nets(family: NftFamily) -> String {
    format!("sources-{}-nets", family.digit())
}

/// Returns the name of a set, map or chain for floating addresses.
pub fn floating(part: &str, family: NftFamily) -> String {
    format!("floating-{part}-{}", family.digit())
}

/// Returns the name of the set of sources whose packets get a DSCP value.
pub fn marked(dscp: u8, family: NftFamily) -> String {
    format!("dscp-{dscp}-sources-{}", family.digit())
}

pub fn marking(dscp: u8, family: NftFamily) -> String {
    format!("dscp-{dscp}-{}", family.digit())
}

/// Returns the name of the chain that counts the connections of a workload.
pub fn connections(interface: &str, direction: PolicyDirection) -> String {
    format!("connections-{}", workload(interface, direction))
}

pub fn policy(id: &PolicyId, direction: PolicyDirection, stage: PolicyStage) -> String {
    let text = direction_text(direction);
    match stage {
        PolicyStage::Normal => fitting(format!("{text}-"), id),
        PolicyStage::Forward => fitting(format!("forward-{text}-"), id),
        PolicyStage::PreDnat => fitting(format!("pre-dnat-{text}-"), id),
        PolicyStage::Untracked => fitting(format!("untracked-{text}-"), id),
    }
}

pub fn profile(name: &str, direction: PolicyDirection) -> String {
    fitting(format!("{}-profile/", direction_text(direction)), name)
}

/// Returns the name of the chain for a list of policies and profiles. Lists with the same content have the same name.
pub fn policy_list(direction: PolicyDirection, tiers: &[EndpointTier], profiles: &[String]) -> String {
    let tiers = tiers.iter().filter(|tier| !tier.policies(direction).is_empty());
    let content: Vec<_> = tiers.map(|tier| (&tier.name, tier.end, tier.policies(direction))).collect();
    format!("policies-{}-{}", direction_text(direction), content_digest(&(content, profiles)))
}

/// Returns the name of a map from protocol and port to policies.
pub fn port_map(prefix: &str, direction: PolicyDirection, elements: &BTreeSet<NftElement>) -> String {
    format!("{prefix}ports-{}-{}", direction_text(direction), content_digest(elements))
}

/// Returns the name of the chain with the policies for one key of such a map.
pub fn candidates(prefix: &str, direction: PolicyDirection, rules: &[NftRule]) -> String {
    format!("{prefix}candidates-{}-{}", direction_text(direction), content_digest(&rules))
}

/// Returns a digest of 128 bits, which makes it infeasible to choose the names of objects so that two different lists
/// collide.
fn content_digest(content: &impl Hash) -> String {
    let half = |number: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(number);
        content.hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(0), half(1))
}

pub fn workload(interface: &str, direction: PolicyDirection) -> String {
    match direction {
        PolicyDirection::Ingress => format!("to-{interface}"),
        PolicyDirection::Egress => format!("from-{interface}"),
    }
}

pub fn direction_text(direction: PolicyDirection) -> &'static str {
    match direction {
        PolicyDirection::Ingress => "in",
        PolicyDirection::Egress => "out",
    }
}

/// Truncates a name that is too long, and appends a hash of the whole name to keep it unique.
pub fn fitting(prefix: String, rest: impl Display) -> String {
    fitting_in(MAX_NAME_BYTES, format!("{prefix}{rest}"))
}

pub fn fitting_in(limit: usize, mut name: String) -> String {
    if name.len() > limit {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let mark = format!("_{:016x}", hasher.finish());
        let mut keep = limit.saturating_sub(mark.len());
        while !name.is_char_boundary(keep) {
            keep -= 1;
        }
        name.truncate(keep);
        name.push_str(&mark);
    }
    name
}
