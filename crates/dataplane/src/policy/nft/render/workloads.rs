//! Renders the chains of one workload, and its permitted sources.

use super::super::flow::FlowSlot;
use super::super::ranges;
use super::super::rule::{NftAction, NftFamily, NftField, NftMatch, NftRule, NftTest, interface, state};
use super::super::table::{NftChain, NftElement, address_bytes, join};
use super::{flow, names};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv6Addr};
use tortie_plan::flow::FlowCause;
use tortie_plan::{DirectionQos, PolicyDirection, PolicySettings, WorkloadPolicy};

const TCP: u8 = 6;
const UDP: u8 = 17;
const IPIP: u8 = 4;

/// Returns rules that accept packets of known flows and drop invalid packets.
pub(super) fn tracked(settings: &PolicySettings, slot: FlowSlot) -> Vec<NftRule> {
    let known = NftMatch::connection(state::ESTABLISHED | state::RELATED);
    let mut rules = vec![NftRule::new(vec![known], vec![NftAction::Accept])];
    if settings.drop_invalid {
        let invalid = vec![NftMatch::connection(state::INVALID)];
        let drop = flow::drop_untracked(settings, slot, &FlowCause::InvalidConnection);
        rules.push(NftRule::new(invalid, drop).says("invalid"));
    }
    rules
}

/// Drops new TCP connections that do not begin with a SYN. Connection tracking would also pick up connections in the
/// middle, from either side: a deleted connection would come back with a packet of the server, and packets that policy
/// denies would pass as its replies.
fn begins(settings: &PolicySettings, slot: FlowSlot) -> NftRule {
    const SYN: u32 = 2;
    let middle = vec![
        NftMatch::connection(state::NEW),
        NftMatch::is(NftField::Protocol, [TCP]),
        NftMatch::new(NftField::TcpFlags, NftTest::Any(SYN)).not(),
    ];
    let drop = flow::drop_tracked(settings, slot, &FlowCause::InvalidConnection);
    NftRule::new(middle, drop).says("not the beginning of a connection")
}

/// Returns the chain that limits the connections of a workload. It is a separate chain because the kernel keeps the
/// count with the rule: the count survives changes of the workload's policy.
pub fn connections(limits: DirectionQos) -> Option<NftChain> {
    let beyond = NftAction::ConnectionsOver(limits.connections?);
    let tcp = NftMatch::is(NftField::Protocol, [TCP]);
    let rule = NftRule::new(vec![tcp], vec![beyond, NftAction::Count, NftAction::Reset])
        .says("too many connections");
    Some(NftChain { hook: None, rules: vec![rule] })
}

/// Renders the chain of one workload in one direction if the workload is administratively down.
pub fn down(settings: &PolicySettings, direction: PolicyDirection) -> NftChain {
    let slot = FlowSlot::of_endpoint(direction);
    let drop = flow::drop_untracked(settings, slot, &FlowCause::ClosedEndpoint);
    let down = NftRule::new(Vec::new(), drop).says("down");
    NftChain { hook: None, rules: vec![down] }
}

/// Renders the chain of one workload in one direction. `list` is the chain of its policies and profiles.
pub fn chain(
    policy: &WorkloadPolicy,
    limits: DirectionQos,
    direction: PolicyDirection,
    settings: &PolicySettings,
    list: &str,
) -> NftChain {
    let slot = FlowSlot::of_endpoint(direction);
    let packets = limits.packets.map(|rate| {
        let actions = vec![NftAction::Over(rate), NftAction::Count, NftAction::Drop];
        NftRule::new(Vec::new(), actions).says("too many packets")
    });
    let mut rules: Vec<NftRule> = packets.into_iter().chain(tracked(settings, slot)).collect();
    if limits.connections.is_some() {
        let count = NftAction::Jump(names::connections(&policy.interface, direction));
        rules.push(NftRule::new(Vec::new(), vec![count]));
    }
    if settings.cut_denied_flows {
        rules.push(begins(settings, slot));
    }
    if direction == PolicyDirection::Egress {
        let mut encapsulated = Vec::new();
        if !settings.vxlan_from_workloads {
            let port = settings.vxlan_port.to_be_bytes();
            let udp = NftMatch::is(NftField::Protocol, [UDP]);
            encapsulated.push(vec![udp, NftMatch::is(NftField::DestinationPort, port)]);
        }
        if !settings.ipip_from_workloads {
            encapsulated.push(vec![NftMatch::is(NftField::Protocol, [IPIP])]);
        }
        for matches in encapsulated {
            let rule = NftRule::new(matches, flow::drop_tracked(settings, slot, &FlowCause::Encapsulation));
            rules.push(rule.says("workloads may not encapsulate"));
        }
    }
    rules.push(NftRule::new(Vec::new(), vec![NftAction::Goto(list.to_owned())]));
    NftChain { hook: None, rules }
}

/// Returns the permitted sources of a workload as elements of interface and address. Besides its addresses these are
/// the link-local address derived from its MAC, and the unspecified address, for duplicate address detection. Any other
/// link-local address would add an entry to the host's neighbour table.
pub fn sources(policy: &WorkloadPolicy, mac: Option<[u8; 6]>, family: NftFamily) -> Vec<NftElement> {
    let name = interface(&policy.interface);
    let link_local = mac.map(tortie_plan::link_local).map(IpAddr::V6);
    let unspecified = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let all = policy.addresses.iter().copied().chain(link_local).chain([unspecified]);
    let own = all.filter(|address| policy.up && NftFamily::from(*address) == family);
    own.map(|address| NftElement::key(join(&[&name, &address_bytes(address)]))).collect()
}

pub fn source_nets(policy: &WorkloadPolicy, family: NftFamily) -> Vec<NftElement> {
    let name = interface(&policy.interface);
    let nets: &[IpNet] = if policy.up { &policy.allowed_sources } else { &[] };
    let ranges = ranges::from_nets(nets, family).into_iter();
    ranges.map(|(first, last)| NftElement::range(join(&[&name, &first]), join(&[&name, &last]))).collect()
}
