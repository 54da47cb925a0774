//! Decodes rules.

use crate::error::DecodeError;
use crate::names::{parse_action, parse_net, parse_protocol_name};
use crate::proto::{self, http_match::path_match::PathMatch, protocol::NumberOrName};
use ipnet::IpNet;
use tortie_plan::{
    HttpMatch, HttpPathMatch, IcmpMatch, IpVersion, PeerMatch, PlannedRule, PortInterval, RuleAction,
    RuleSide, SetId,
};

/// Decodes a rule. With errors it fails closed: a rule that denies ignores the unreadable criteria, any other rule
/// matches nothing. A rule with an unknown action denies.
pub fn decode_rule(rule: &proto::Rule) -> (PlannedRule, Vec<DecodeError>) {
    let mut decoder = RuleDecoder { errors: Vec::new() };
    let decoded = decoder.rule(rule);
    let RuleDecoder { errors } = decoder;
    if !errors.is_empty() && decoded.action != RuleAction::Deny {
        return (PlannedRule::never(decoded.action), errors);
    }
    (decoded, errors)
}

struct RuleDecoder {
    errors: Vec<DecodeError>,
}

impl RuleDecoder {
    /// Returns the value, or no criterion and notes the error.
    fn or_noted<T: Default>(&mut self, decoded: Result<T, DecodeError>) -> T {
        decoded.unwrap_or_else(|error| {
            self.errors.push(error);
            T::default()
        })
    }

    fn rule(&mut self, rule: &proto::Rule) -> PlannedRule {
        let action = parse_action(&rule.action).unwrap_or_else(|error| {
            self.errors.push(error);
            RuleAction::Deny
        });
        let http = rule.http_match.as_ref().map(|http| decode_http(http, action)).transpose();
        PlannedRule {
            action,
            ip_version: self.or_noted(decode_ip_version(rule.ip_version)),
            protocol: self.or_noted(decode_protocol("protocol", rule.protocol.as_ref())),
            not_protocol: self.or_noted(decode_protocol("not_protocol", rule.not_protocol.as_ref())),
            icmp: self.or_noted(decode_icmp(rule.icmp.as_ref())),
            not_icmp: self.or_noted(decode_not_icmp(rule.not_icmp.as_ref())),
            source: self.source(rule),
            destination: self.destination(rule),
            http: self.or_noted(http).map(Box::new),
            annotations: rule.metadata.as_ref().map(|m| m.annotations.clone()).unwrap_or_default(),
        }
    }

    fn source(&mut self, rule: &proto::Rule) -> RuleSide {
        let (ports, named_ports) = self.port_choice(
            decode_ports("src_ports", &rule.src_ports),
            decode_sets("src_named_port_ip_set_ids", &rule.src_named_port_ip_set_ids),
        );
        RuleSide {
            nets: self.or_noted(decode_nets("src_net", &rule.src_net)),
            not_nets: self.or_noted(decode_nets("not_src_net", &rule.not_src_net)),
            sets: self.or_noted(decode_sets("src_ip_set_ids", &rule.src_ip_set_ids)),
            not_sets: self.or_noted(decode_sets("not_src_ip_set_ids", &rule.not_src_ip_set_ids)),
            ports,
            named_ports,
            not_ports: self.or_noted(decode_ports("not_src_ports", &rule.not_src_ports)),
            not_named_ports: self
                .or_noted(decode_sets("not_src_named_port_ip_set_ids", &rule.not_src_named_port_ip_set_ids)),
            service: None,
            peer: decode_peer(
                &rule.original_src_selector,
                &rule.original_not_src_selector,
                &rule.original_src_namespace_selector,
                rule.src_service_account_match.as_ref(),
            ),
        }
    }

    fn destination(&mut self, rule: &proto::Rule) -> RuleSide {
        let (ports, named_ports) = self.port_choice(
            decode_ports("dst_ports", &rule.dst_ports),
            decode_sets("dst_named_port_ip_set_ids", &rule.dst_named_port_ip_set_ids),
        );
        RuleSide {
            nets: self.or_noted(decode_nets("dst_net", &rule.dst_net)),
            not_nets: self.or_noted(decode_nets("not_dst_net", &rule.not_dst_net)),
            sets: self.or_noted(decode_sets("dst_ip_set_ids", &rule.dst_ip_set_ids)),
            not_sets: self.or_noted(decode_sets("not_dst_ip_set_ids", &rule.not_dst_ip_set_ids)),
            ports,
            named_ports,
            not_ports: self.or_noted(decode_ports("not_dst_ports", &rule.not_dst_ports)),
            not_named_ports: self
                .or_noted(decode_sets("not_dst_named_port_ip_set_ids", &rule.not_dst_named_port_ip_set_ids)),
            service: self.or_noted(decode_service(&rule.dst_ip_port_set_ids)),
            peer: decode_peer(
                &rule.original_dst_selector,
                &rule.original_not_dst_selector,
                &rule.original_dst_namespace_selector,
                rule.dst_service_account_match.as_ref(),
            ),
        }
    }

    /// Returns ranges and sets of ports, of which one must match. If one list cannot be read, the other does not
    /// restrict the rule either: a rule that denies would deny less.
    fn port_choice(
        &mut self,
        ranges: Result<Vec<PortInterval>, DecodeError>,
        sets: Result<Vec<SetId>, DecodeError>,
    ) -> (Vec<PortInterval>, Vec<SetId>) {
        self.or_noted(ranges.and_then(|ranges| Ok((ranges, sets?))))
    }
}

fn decode_ip_version(version: i32) -> Result<Option<IpVersion>, DecodeError> {
    match proto::IpVersion::try_from(version) {
        Ok(proto::IpVersion::Any) => Ok(None),
        Ok(proto::IpVersion::Ipv4) => Ok(Some(IpVersion::V4)),
        Ok(proto::IpVersion::Ipv6) => Ok(Some(IpVersion::V6)),
        Err(_) => Err(DecodeError::invalid("ip_version", version, "an IP version: 0, 4 or 6")),
    }
}

fn decode_protocol(
    field: &'static str,
    protocol: Option<&proto::Protocol>,
) -> Result<Option<u8>, DecodeError> {
    let Some(protocol) = protocol else { return Ok(None) };
    match &protocol.number_or_name {
        Some(NumberOrName::Number(number)) => decode_byte(field, *number).map(Some),
        Some(NumberOrName::Name(name)) => parse_protocol_name(field, name).map(Some),
        None => Err(DecodeError::Missing { field }),
    }
}

fn decode_byte(field: &'static str, value: i32) -> Result<u8, DecodeError> {
    u8::try_from(value).map_err(|_| DecodeError::invalid(field, value, "a number from 0 to 255"))
}

fn decode_icmp(icmp: Option<&proto::rule::Icmp>) -> Result<Option<IcmpMatch>, DecodeError> {
    match icmp {
        None => Ok(None),
        Some(proto::rule::Icmp::IcmpType(r#type)) => decode_icmp_match("icmp_type", *r#type, None).map(Some),
        Some(proto::rule::Icmp::IcmpTypeCode(both)) => {
            decode_icmp_match("icmp_type_code", both.r#type, Some(both.code)).map(Some)
        }
    }
}

fn decode_not_icmp(icmp: Option<&proto::rule::NotIcmp>) -> Result<Option<IcmpMatch>, DecodeError> {
    match icmp {
        None => Ok(None),
        Some(proto::rule::NotIcmp::NotIcmpType(r#type)) => {
            decode_icmp_match("not_icmp_type", *r#type, None).map(Some)
        }
        Some(proto::rule::NotIcmp::NotIcmpTypeCode(both)) => {
            decode_icmp_match("not_icmp_type_code", both.r#type, Some(both.code)).map(Some)
        }
    }
}

fn decode_icmp_match(field: &'static str, r#type: i32, code: Option<i32>) -> Result<IcmpMatch, DecodeError> {
    let code = code.map(|code| decode_byte(field, code)).transpose()?;
    Ok(IcmpMatch { r#type: decode_byte(field, r#type)?, code })
}

fn decode_nets(field: &'static str, texts: &[String]) -> Result<Vec<IpNet>, DecodeError> {
    texts.iter().map(|text| parse_net(field, text)).collect()
}

fn decode_ports(field: &'static str, ranges: &[proto::PortRange]) -> Result<Vec<PortInterval>, DecodeError> {
    let ports = ranges.iter().map(|range| match (u16::try_from(range.first), u16::try_from(range.last)) {
        (Ok(first), Ok(last)) if first <= last => Ok(PortInterval { first, last }),
        _ => {
            let text = format!("{}-{}", range.first, range.last);
            Err(DecodeError::invalid(field, text, "a range of ports"))
        }
    });
    ports.collect()
}

fn decode_sets(field: &'static str, ids: &[String]) -> Result<Vec<SetId>, DecodeError> {
    if ids.iter().any(String::is_empty) {
        return Err(DecodeError::Missing { field });
    }
    Ok(ids.iter().map(|id| SetId::new(id)).collect())
}

fn decode_service(ids: &[String]) -> Result<Option<SetId>, DecodeError> {
    let field = "dst_ip_port_set_ids";
    if ids.len() > 1 {
        return Err(DecodeError::TooMany { field, count: ids.len(), max: 1 });
    }
    Ok(decode_sets(field, ids)?.pop())
}

fn decode_peer(
    selector: &str,
    not_selector: &str,
    namespace_selector: &str,
    accounts: Option<&proto::ServiceAccountMatch>,
) -> Option<Box<PeerMatch>> {
    let peer = PeerMatch {
        selector: selector.to_owned(),
        not_selector: not_selector.to_owned(),
        namespace_selector: namespace_selector.to_owned(),
        service_accounts: accounts.map(|accounts| accounts.names.clone()).unwrap_or_default(),
        service_account_selector: accounts.map(|accounts| accounts.selector.clone()).unwrap_or_default(),
    };
    (peer != PeerMatch::default()).then(|| Box::new(peer))
}

fn decode_http(http: &proto::HttpMatch, action: RuleAction) -> Result<HttpMatch, DecodeError> {
    let path = |path: &proto::http_match::PathMatch| match &path.path_match {
        Some(PathMatch::Exact(path)) => Ok(HttpPathMatch::Exact(path.clone())),
        Some(PathMatch::Prefix(path)) => Ok(HttpPathMatch::Prefix(path.clone())),
        None => Err(DecodeError::Missing { field: "http_match: paths" }),
    };
    Ok(HttpMatch {
        methods: http.methods.clone(),
        paths: http.paths.iter().map(path).collect::<Result<_, _>>()?,
        matches_without_proxy: action == RuleAction::Deny,
    })
}
