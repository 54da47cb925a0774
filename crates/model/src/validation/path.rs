//! Field paths as Calico prints them: the names of Go struct fields, derived from the JSON keys.

/// First words of keys that Calico does not simply capitalise.
const SPECIAL_WORDS: &[(&str, &str)] = &[
    ("as", "AS"),
    ("aws", "AWS"),
    ("bgp", "BGP"),
    ("bpf", "BPF"),
    ("cidr", "CIDR"),
    ("cidrs", "CIDRs"),
    ("dns", "DNS"),
    ("dscp", "DSCP"),
    ("http", "HTTP"),
    ("icmp", "ICMP"),
    ("id", "ID"),
    ("ip", "IP"),
    ("ipam", "IPAM"),
    ("ipip", "IPIP"),
    ("ips", "IPs"),
    ("ipv", "IPv"),
    ("mac", "MAC"),
    ("mtu", "MTU"),
    ("nat", "NAT"),
    ("qos", "QoS"),
    ("ttl", "TTL"),
    ("uid", "UID"),
    ("vxlan", "VXLAN"),
    ("xdp", "XDP"),
];

/// Returns the field name for a JSON key: `ipipMode` -> `IPIPMode`, `cidr` -> `CIDR`, `selector` ->
/// `Selector`.
pub fn field_name(key: &str) -> String {
    let end = key.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(key.len());
    let (word, rest) = key.split_at(end);
    if let Some((_, spelled)) = SPECIAL_WORDS.iter().find(|(known, _)| *known == word) {
        return format!("{spelled}{rest}");
    }
    let mut chars = key.chars();
    chars.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + chars.as_str())
}

#[cfg(test)]
mod tests {
    use super::field_name;

    #[test]
    fn keys_become_field_names() {
        for (key, name) in [
            ("cidr", "CIDR"),
            ("ipipMode", "IPIPMode"),
            ("vxlanMode", "VXLANMode"),
            ("asNumber", "ASNumber"),
            ("peerIP", "PeerIP"),
            ("icmp", "ICMP"),
            ("notICMP", "NotICMP"),
            ("http", "HTTP"),
            ("bgp", "BGP"),
            ("uid", "UID"),
            ("ipVersion", "IPVersion"),
            ("ipv4Gateway", "IPv4Gateway"),
            ("namespaceSelector", "NamespaceSelector"),
            ("preDNAT", "PreDNAT"),
            ("assignmentMode", "AssignmentMode"),
            ("", ""),
        ] {
            assert_eq!(field_name(key), name);
        }
    }
}
