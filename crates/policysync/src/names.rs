//! Texts of the protocol: actions, protocols, kinds of policy and members of sets.

use crate::error::DecodeError;
use ipnet::IpNet;
use std::net::IpAddr;
use tortie_plan::{PolicyKind, RuleAction, SetMember};

/// Prefix of the IDs of service sets with ports.
pub const SERVICE_PORTS_PREFIX: &str = "svc:";
pub const ACTIVE_STATE: &str = "active";
pub const INACTIVE_STATE: &str = "inactive";
pub const DENY_ACTION: &str = "Deny";
pub const PASS_ACTION: &str = "Pass";

const PROTOCOLS: [(&str, u8); 6] =
    [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmpv6", 58), ("sctp", 132), ("udplite", 136)];

/// Protocols that members of sets name; others are numbers.
const MEMBER_PROTOCOLS: [(&str, u8); 3] = [("tcp", 6), ("udp", 17), ("sctp", 132)];

pub fn action_name(action: RuleAction) -> &'static str {
    match action {
        RuleAction::Allow => "allow",
        RuleAction::Deny => "deny",
        RuleAction::Log => "log",
        // Felix's name. Dikastes accepts `pass` too.
        RuleAction::Pass => "next-tier",
    }
}

pub fn parse_action(text: &str) -> Result<RuleAction, DecodeError> {
    let names = [
        ("allow", RuleAction::Allow),
        ("deny", RuleAction::Deny),
        ("log", RuleAction::Log),
        ("next-tier", RuleAction::Pass),
        ("pass", RuleAction::Pass),
    ];
    let found = names.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    found
        .map(|(_, action)| action)
        .ok_or_else(|| DecodeError::invalid("action", text, "an action: allow, deny, log, pass or next-tier"))
}

pub fn parse_protocol_name(field: &'static str, text: &str) -> Result<u8, DecodeError> {
    let found = PROTOCOLS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    found.map(|(_, number)| number).ok_or_else(|| DecodeError::invalid(field, text, "a protocol"))
}

pub fn parse_policy_kind(text: &str) -> Result<PolicyKind, DecodeError> {
    let found = PolicyKind::ALL.into_iter().find(|kind| kind.name() == text);
    found.ok_or_else(|| DecodeError::invalid("policy id: kind", text, "a kind of policy"))
}

/// Parses a net, or an address as a net of full length.
pub fn parse_net(field: &'static str, text: &str) -> Result<IpNet, DecodeError> {
    let net = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().map(IpNet::from).ok());
    net.map(|net| net.trunc()).ok_or_else(|| DecodeError::invalid(field, text, "an address or a CIDR"))
}

/// Returns the text of a member: `10.0.0.0/8` or `10.0.0.1,tcp:80`.
pub fn member_text(member: &SetMember) -> String {
    match member {
        SetMember::Net(net) => net.to_string(),
        SetMember::Port { address, protocol, port } => {
            match MEMBER_PROTOCOLS.iter().find(|(_, number)| number == protocol) {
                Some((name, _)) => format!("{address},{name}:{port}"),
                None => format!("{address},{protocol}:{port}"),
            }
        }
    }
}

pub fn parse_member(text: &str) -> Result<SetMember, DecodeError> {
    let Some((address, rest)) = text.split_once(',') else {
        return parse_net("members", text).map(SetMember::Net);
    };
    parse_port_member(address, rest)
        .ok_or_else(|| DecodeError::invalid("members", text, "of the form address,protocol:port"))
}

fn parse_port_member(address: &str, rest: &str) -> Option<SetMember> {
    let (protocol, port) = rest.split_once(':')?;
    let named = PROTOCOLS.iter().find(|(name, _)| name.eq_ignore_ascii_case(protocol));
    let protocol = match named {
        Some((_, number)) => *number,
        None => protocol.parse().ok()?,
    };
    Some(SetMember::Port { address: address.parse().ok()?, protocol, port: port.parse().ok()? })
}
