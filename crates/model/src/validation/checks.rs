//! Checks that many kinds share.

use super::FieldChecker;
use crate::scalar::{Port, Protocol, StringEnum};
use crate::schema::forms::{MAX_NETWORK_CHARS, MAX_SELECTOR_CHARS};
use crate::selector::{self, MAX_NESTING, Selector};
use ipnet::IpNet;
use std::{collections::HashSet, fmt, hash::Hash, net::IpAddr};

/// An IP address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkFamily {
    V4,
    V6,
}

impl NetworkFamily {
    pub fn of(address: IpAddr) -> NetworkFamily {
        if address.is_ipv4() { NetworkFamily::V4 } else { NetworkFamily::V6 }
    }

    pub fn of_net(net: IpNet) -> NetworkFamily {
        NetworkFamily::of(net.addr())
    }
}

impl fmt::Display for NetworkFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NetworkFamily::V4 => "IPv4",
            NetworkFamily::V6 => "IPv6",
        })
    }
}

/// Inclusive bounds of a number.
#[derive(Clone, Copy, Debug)]
pub struct InclusiveRange<T>(pub T, pub T);

impl FieldChecker<'_> {
    /// Checks that the value is one of the names of an enumeration, or omitted.
    pub fn one_of<E: StringEnum>(&self, value: &E) {
        if !value.is_unset() {
            self.required_one_of(value);
        }
    }

    /// Checks that the value is one of the names of an enumeration.
    pub fn required_one_of<E: StringEnum>(&self, value: &E) {
        if !value.is_known() {
            self.fail(value.as_str(), format_args!("must be one of {}", E::NAMES.join(", ")));
        }
    }

    /// Checks a selector of bounded length in which `global()` is not allowed. Empty means omitted.
    pub fn selector(&self, text: &str) {
        if let Some(selector) = self.any_selector(text) {
            let meaningless = selector.uses_global();
            self.ensure(!meaningless, text, "global() can only be used in an EntityRule namespaceSelector");
        }
    }

    /// Checks the namespace selector of a rule, in which `global()` is allowed as the only term.
    pub fn rule_namespace_selector(&self, text: &str) {
        if let Some(selector) = self.any_selector(text) {
            let alone = selector.is_global() && text.trim_matches([' ', '\t']).starts_with("global(");
            self.ensure(
                alone || !selector.uses_global(),
                text,
                "global() cannot be combined with other terms",
            );
        }
    }

    fn any_selector(&self, text: &str) -> Option<Selector> {
        self.max_chars(text, MAX_SELECTOR_CHARS);
        self.ensure(
            selector::nesting(text) <= MAX_NESTING,
            text,
            format_args!("parentheses must not be nested more than {MAX_NESTING} deep"),
        );
        Selector::parse(text).map_err(|error| self.fail(text, format!("invalid selector: {error}"))).ok()
    }

    pub fn max_chars(&self, text: &str, limit: usize) {
        self.ensure(
            text.len() <= limit || text.chars().count() <= limit,
            text,
            format_args!("must be at most {limit} characters long"),
        );
    }

    pub fn max_items<T>(&self, items: &[T], limit: usize) {
        self.ensure(
            items.len() <= limit,
            format_args!("{} items", items.len()),
            format_args!("must have at most {limit} items"),
        );
    }

    /// Reports every element that repeats an earlier one.
    pub fn unique<T: Eq + Hash + fmt::Display>(&self, items: &[T]) {
        if items.len() < 2 {
            return;
        }
        let mut seen = HashSet::new();
        for (at, item) in self.each(items) {
            at.ensure(seen.insert(item), item, "duplicate value");
        }
    }

    pub fn within<T: PartialOrd + fmt::Display + Copy>(
        &self,
        value: T,
        InclusiveRange(first, last): InclusiveRange<T>,
    ) {
        self.ensure(
            first <= value && value <= last,
            value,
            format_args!("must be between {first} and {last}"),
        );
    }

    /// Checks a CIDR with a prefix length and no host bits. IPv4-mapped IPv6 networks are rejected: packets
    /// never carry such addresses, so they would match nothing.
    pub fn masked_cidr(&self, text: &str) -> Option<IpNet> {
        match parse_cidr(text) {
            Some(_) if text.len() > MAX_NETWORK_CHARS => {
                self.fail(text, format_args!("must be at most {MAX_NETWORK_CHARS} characters long"));
            }
            Some(net) if is_mapped(net) => self.fail(text, "must not be an IPv4-mapped IPv6 network"),
            Some(net) if net.trunc() != net => {
                self.fail(text, format_args!("host bits must be zero: did you mean {}?", net.trunc()));
            }
            Some(net) => return Some(net),
            None => self.fail(text, "must be an IP network in CIDR notation"),
        }
        None
    }

    /// Checks a CIDR without host bits, or an address.
    pub fn net(&self, text: &str) -> Option<IpNet> {
        match text.parse::<IpAddr>() {
            Ok(address) => Some(IpNet::from(address)),
            Err(_) => self.masked_cidr(text),
        }
    }

    /// Checks a CIDR, with or without host bits, or an address.
    pub fn cidr(&self, text: &str) -> Option<IpNet> {
        let net = text.parse::<IpAddr>().map(IpNet::from).ok().or_else(|| parse_cidr(text));
        self.ensure(net.is_some(), text, "must be an IP network in CIDR notation or an IP address");
        net
    }

    pub fn ip(&self, text: &str) -> Option<IpAddr> {
        let address = text.parse().ok();
        self.ensure(address.is_some(), text, "must be an IP address");
        address
    }

    pub fn ip_of(&self, text: &str, family: NetworkFamily) -> Option<IpAddr> {
        let address = text.parse().ok().filter(|address| NetworkFamily::of(*address) == family);
        self.ensure(address.is_some(), text, format_args!("must be an {family} address"));
        address
    }

    /// Checks the name of a network interface, or `*` for all.
    pub fn interface(&self, text: &str) {
        let fits = text == "*" || ((1..=15).contains(&text.len()) && text.bytes().all(is_name_byte));
        self.ensure(
            fits,
            text,
            "must be * or an interface name: up to 15 characters out of letters, digits, '_', '.' and '-'",
        );
    }

    /// Checks a MAC address of 6, 8 or 20 bytes.
    pub fn mac(&self, text: &str) {
        self.ensure(is_mac(text), text, "must be a MAC address");
    }

    /// Checks a port number, range or name; numbers must be in 1..65535.
    pub fn port(&self, port: &Port) {
        match port {
            Port::Number(number) => self.port_number(*number),
            Port::Range(first, _) => self.ensure(*first >= 1, port, "port range must start at 1 or above"),
            Port::Named(name) => self.ensure(
                is_port_name(name),
                name,
                "must be a port name: up to 15 lower-case letters, digits and single dashes, with a letter",
            ),
        }
    }

    pub fn port_number(&self, number: u16) {
        self.within(number, InclusiveRange(1, u16::MAX));
    }

    /// Checks a protocol name or number.
    pub fn protocol(&self, protocol: &Protocol) {
        if !matches!(protocol.number(), Some(1..)) {
            let names: Vec<&str> = Protocol::NAMES.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            self.fail(protocol, format_args!("must be one of {names} or a number between 1 and 255"));
        }
    }
}

/// Parses a CIDR. The prefix length is required, and leading zeros are rejected everywhere because some
/// parsers read them as octal.
pub(crate) fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, bits) = text.split_once('/')?;
    let canonical = bits == "0" || !bits.starts_with(['0', '+']);
    let address: IpAddr = address.parse().ok().filter(|_| canonical)?;
    IpNet::new(address, bits.parse().ok()?).ok()
}

fn is_mapped(net: IpNet) -> bool {
    matches!(net.addr(), IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// Returns whether names of interfaces, ports and block owners may contain the byte.
pub(crate) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

/// Returns whether the text is a MAC address: `aa:bb:cc:dd:ee:ff`, with dashes, or in dotted groups of four
/// digits.
fn is_mac(text: &str) -> bool {
    let forms = [(':', 2, [6, 8, 20]), ('-', 2, [6, 8, 20]), ('.', 4, [3, 4, 10])];
    forms.into_iter().any(|(separator, digits, counts)| {
        let groups: Vec<&str> = text.split(separator).collect();
        counts.contains(&groups.len())
            && groups
                .iter()
                .all(|group| group.len() == digits && group.bytes().all(|digit| digit.is_ascii_hexdigit()))
    })
}

/// Returns whether Kubernetes accepts the port name.
fn is_port_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.bytes().any(|b| b.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(check: impl Fn(&FieldChecker<'_>)) -> bool {
        FieldChecker::run(check).is_ok()
    }

    #[test]
    fn networks_and_addresses() {
        for (text, masked, net, cidr) in [
            ("10.0.0.0/8", true, true, true),
            ("10.0.0.5/8", false, false, true),
            ("10.0.0.5", false, true, true),
            ("fd00::/8", true, true, true),
            ("fd00::1", false, true, true),
            ("10.0.0.0/33", false, false, false),
            ("10.0.0.0/08", false, false, false),
            ("010.0.0.0/8", false, false, false),
            ("10.0.0/8", false, false, false),
            ("", false, false, false),
            ("web", false, false, false),
        ] {
            assert_eq!(passes(|at| _ = at.masked_cidr(text)), masked, "masked {text}");
            assert_eq!(passes(|at| _ = at.net(text)), net, "net {text}");
            assert_eq!(passes(|at| _ = at.cidr(text)), cidr, "cidr {text}");
        }
        assert!(passes(|at| _ = at.ip_of("::1", NetworkFamily::V6)));
        assert!(!passes(|at| _ = at.ip_of("1.1.1.1", NetworkFamily::V6)));
    }

    #[test]
    fn names_of_interfaces_ports_and_macs() {
        for (text, fits) in
            [("eth0", true), ("*", true), ("a.b_c-d", true), ("", false), ("sixteen-chars-xx", false)]
        {
            assert_eq!(passes(|at| at.interface(text)), fits, "{text}");
        }
        for (text, fits) in [
            ("http", true),
            ("web-8080", true),
            ("80", true),
            ("HTTP", false),
            ("a--b", false),
            ("-a", false),
        ] {
            assert_eq!(passes(|at| at.port(&text.parse().unwrap())), fits, "{text}");
        }
        for (text, fits) in [("0", false), ("0:5", false), ("1:65535", true)] {
            assert_eq!(passes(|at| at.port(&text.parse().unwrap())), fits, "{text}");
        }
        for (text, fits) in [
            ("ee:ee:ee:ee:ee:ee", true),
            ("EE-11-22-33-44-55", true),
            ("0011.2233.4455", true),
            ("ee:ee", false),
            ("", false),
        ] {
            assert_eq!(passes(|at| at.mac(text)), fits, "{text}");
        }
        for (text, fits) in [("TCP", true), ("tcp", false), ("0", false), ("255", true), ("UDPLite", true)] {
            assert_eq!(passes(|at| at.protocol(&Protocol::from(text))), fits, "{text}");
        }
    }
}
