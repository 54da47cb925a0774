//! How things are called in the kernel: readable, and the same whatever happened before.

use super::super::rule::Family;
use super::Stage;
use std::fmt::Display;
use tortie_plan::{Direction, PolicyId, SetId};

/// What the kernel allows, without the end mark.
const LIMIT: usize = 255;

pub(crate) const FROM: &str = "from-workload";
pub(crate) const TO: &str = "to-workload";
/// Interfaces of workloads that no prefix covers.
pub(crate) const WORKLOADS: &str = "workloads";
/// Interfaces of workloads that may pass anything at all.
pub(crate) const OPEN: &str = "open-workloads";
/// Interfaces of the host that have an endpoint of their own.
pub(crate) const HOST_INTERFACES: &str = "host-interfaces";
/// From interface to the chain of what comes to the host there.
pub(crate) const HOST_IN: &str = "host-in";
/// Of the ARP family: interface and address.
pub(crate) const SENDERS: &str = "senders";

/// The set of the addresses, or of the named ports, of one family.
pub(crate) fn set(id: &SetId, family: Family) -> String {
    format!("{}-{}", id.0.replace(':', "-"), family.digit())
}

/// The set of the nets of one family that are more than an address.
pub(crate) fn nets(id: &SetId, family: Family) -> String {
    format!("{}-nets", set(id, family))
}

pub(crate) fn sources(family: Family) -> String {
    format!("sources-{}", family.digit())
}

pub(crate) fn source_nets(family: Family) -> String {
    format!("sources-{}-nets", family.digit())
}

/// Sets, maps and chains of floating addresses.
pub(crate) fn floating(part: &str, family: Family) -> String {
    format!("floating-{part}-{}", family.digit())
}

/// The sources whose packets get a code point.
pub(crate) fn marked(dscp: u8, family: Family) -> String {
    format!("dscp-{dscp}-sources-{}", family.digit())
}

pub(crate) fn marking(dscp: u8, family: Family) -> String {
    format!("dscp-{dscp}-{}", family.digit())
}

/// Where the connections of a workload are counted.
pub(crate) fn connections(interface: &str, direction: Direction) -> String {
    format!("connections-{}", workload(interface, direction))
}

pub(crate) fn policy(id: &PolicyId, direction: Direction, stage: Stage) -> String {
    let text = direction_text(direction);
    match stage {
        Stage::Normal | Stage::Forward => fitting(format!("{text}-"), id),
        Stage::PreDnat => fitting(format!("pre-dnat-{text}-"), id),
        Stage::Untracked => fitting(format!("untracked-{text}-"), id),
    }
}

pub(crate) fn profile(name: &str, direction: Direction) -> String {
    fitting(format!("{}-profile/", direction_text(direction)), name)
}

pub(crate) fn workload(interface: &str, direction: Direction) -> String {
    match direction {
        Direction::Ingress => format!("to-{interface}"),
        Direction::Egress => format!("from-{interface}"),
    }
}

pub(crate) fn direction_text(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    }
}

/// Names that are too long are cut, and made unique again by a number from the whole of it.
pub(crate) fn fitting(prefix: String, rest: impl Display) -> String {
    fitting_in(LIMIT, format!("{prefix}{rest}"))
}

pub(crate) fn fitting_in(limit: usize, mut name: String) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
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
