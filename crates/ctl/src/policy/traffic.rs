//! The traffic to evaluate: a protocol, and a port or an ICMP type.

use std::fmt;
use std::str::FromStr;
use tortie_model::scalar::Protocol;
use tortie_plan::evaluate::Packet;

#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    #[error("{0:?} is no protocol: use tcp, udp, sctp, udplite, icmp, icmpv6, or protocol/47 for others")]
    UnknownProtocol(String),
    #[error("port {0:?} is not a number from 1 to 65535")]
    InvalidPort(String),
    #[error("{0} needs one port: {0}/80")]
    MissingPort(String),
    #[error("{field} {value:?} is not a number from 0 to 255")]
    InvalidIcmp { field: &'static str, value: String },
    #[error("{0} needs a type and may have a code: {0}/8 or {0}/8/0")]
    MissingIcmpType(String),
    #[error("protocol {0} has no ports")]
    NoPorts(u8),
}

/// Traffic such as `tcp/80`, or `80` for short; `icmp/8/0`; `protocol/47`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExplainedTraffic {
    pub protocol: u8,
    pub port: Option<u16>,
    pub icmp: Option<(u8, u8)>,
}

impl ExplainedTraffic {
    pub fn is_icmp(protocol: u8) -> bool {
        [Packet::ICMP, Packet::ICMPV6].contains(&protocol)
    }

    pub fn has_ports(protocol: u8) -> bool {
        [Packet::TCP, Packet::UDP, Packet::SCTP, Packet::UDPLITE].contains(&protocol)
    }
}

/// Returns the lower-case name of a protocol, or its number.
pub fn protocol_name(protocol: u8) -> String {
    let name = Protocol::NAMES.iter().find(|(_, number)| *number == protocol);
    name.map_or_else(|| format!("protocol {protocol}"), |(name, _)| name.to_lowercase())
}

impl FromStr for ExplainedTraffic {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<ExplainedTraffic, TrafficError> {
        let mut parts = text.split('/').peekable();
        let name = match parts.next().unwrap_or_default() {
            // A port alone means TCP, as in other tools.
            port if !port.is_empty()
                && port.bytes().all(|digit| digit.is_ascii_digit())
                && parts.peek().is_none() =>
            {
                return format!("tcp/{port}").parse();
            }
            "protocol" => parts.next().unwrap_or_default(),
            name => name,
        };
        let protocol = Protocol::NAMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, number)| *number)
            .or_else(|| name.parse().ok().filter(|number| *number > 0))
            .ok_or_else(|| TrafficError::UnknownProtocol(name.to_owned()))?;
        let rest: Vec<&str> = parts.collect();
        let none = ExplainedTraffic { protocol, port: None, icmp: None };
        match rest[..] {
            [port] if ExplainedTraffic::has_ports(protocol) => match port.parse() {
                Ok(port) if port > 0 => Ok(ExplainedTraffic { port: Some(port), ..none }),
                _ => Err(TrafficError::InvalidPort(port.to_owned())),
            },
            _ if ExplainedTraffic::has_ports(protocol) => Err(TrafficError::MissingPort(name.to_owned())),
            [kind] if ExplainedTraffic::is_icmp(protocol) => {
                Ok(ExplainedTraffic { icmp: Some((parse_icmp("type", kind)?, 0)), ..none })
            }
            [kind, code] if ExplainedTraffic::is_icmp(protocol) => {
                let icmp = (parse_icmp("type", kind)?, parse_icmp("code", code)?);
                Ok(ExplainedTraffic { icmp: Some(icmp), ..none })
            }
            _ if ExplainedTraffic::is_icmp(protocol) => Err(TrafficError::MissingIcmpType(name.to_owned())),
            [] => Ok(none),
            _ => Err(TrafficError::NoPorts(protocol)),
        }
    }
}

fn parse_icmp(field: &'static str, value: &str) -> Result<u8, TrafficError> {
    value.parse().map_err(|_| TrafficError::InvalidIcmp { field, value: value.to_owned() })
}

impl fmt::Display for ExplainedTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = protocol_name(self.protocol);
        match (self.port, self.icmp) {
            (Some(port), _) => write!(f, "{name}/{port}"),
            (None, Some((kind, 0))) => write!(f, "{name}/{kind}"),
            (None, Some((kind, code))) => write!(f, "{name}/{kind}/{code}"),
            (None, None) => f.write_str(&name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_printed() {
        for (text, printed) in [
            ("tcp/80", "tcp/80"),
            ("UDP/53", "udp/53"),
            ("132/5000", "sctp/5000"),
            ("udplite/9", "udplite/9"),
            ("icmp/8", "icmp/8"),
            ("icmp/3/1", "icmp/3/1"),
            ("58/128/0", "icmpv6/128"),
            ("80", "tcp/80"),
            ("protocol/47", "protocol 47"),
            ("protocol/6/80", "tcp/80"),
        ] {
            assert_eq!(text.parse::<ExplainedTraffic>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("", "\"\" is no protocol"),
            ("tpc/80", "\"tpc\" is no protocol"),
            ("0", "port \"0\" is not a number from 1 to 65535"),
            ("65536", "port \"65536\" is not a number from 1 to 65535"),
            ("protocol/0", "\"0\" is no protocol"),
            ("protocol/256", "\"256\" is no protocol"),
            ("protocol", "\"\" is no protocol"),
            ("tcp", "tcp needs one port: tcp/80"),
            ("tcp/80/81", "tcp needs one port"),
            ("tcp/0", "port \"0\" is not a number from 1 to 65535"),
            ("tcp/65536", "port \"65536\""),
            ("tcp/http", "port \"http\""),
            ("icmp", "icmp needs a type"),
            ("icmp/256", "type \"256\" is not a number from 0 to 255"),
            ("icmp/8/x", "code \"x\""),
            ("47/80", "protocol 47 has no ports"),
        ] {
            let error = text.parse::<ExplainedTraffic>().unwrap_err().to_string();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }
}
