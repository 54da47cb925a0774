//! Frames of clients, and the state of an interface.

use std::net::{Ipv4Addr, Ipv6Addr};
use tortie_dhcp::codec::frame::MacAddress;
use tortie_dhcp::codec::neighbour::AdvertisedPrefix;
use tortie_dhcp::lease::{Dhcp4Lease, Dhcp6Lease, InterfaceLease, LinkIdentity, PortState};

pub const CLIENT_MAC: [u8; 6] = [0xfa, 0x16, 0x3e, 0, 0, 1];
pub const CLIENT_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
pub const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
pub const CLIENT_DUID: [u8; 10] = [0, 3, 0, 1, 0xfa, 0x16, 0x3e, 0, 0, 1];

pub fn port() -> PortState {
    PortState {
        link: LinkIdentity {
            mac: MacAddress([0xfe, 0x16, 0x3e, 0, 0, 1]),
            link_local: "fe80::fc16:3eff:fe00:1".parse().ok(),
            mtu: 1450,
        },
        lease: InterfaceLease {
            mac: MacAddress(CLIENT_MAC),
            host_name: "web".to_owned(),
            domain: "cloud.example".to_owned(),
            lease_seconds: 3600,
            v4: Some(Dhcp4Lease {
                address: Ipv4Addr::new(10, 65, 0, 2),
                subnet: "10.65.0.0/24".parse().unwrap(),
                gateway: Some(Ipv4Addr::new(10, 65, 0, 1)),
                dns_servers: vec![Ipv4Addr::new(9, 9, 9, 9)],
                routes: Vec::new(),
            }),
            v6: Some(Dhcp6Lease {
                addresses: vec!["fd00:65::2".parse().unwrap()],
                prefixes: vec![AdvertisedPrefix {
                    net: "fd00:65::/64".parse().unwrap(),
                    is_autonomous: false,
                }],
                is_managed: true,
                has_other: true,
                dns_servers: vec!["2620:fe::fe".parse().unwrap()],
            }),
        },
    }
}

/// A DHCPv4 message; tests change fields before they build the frame.
#[derive(Clone)]
pub struct Client4 {
    pub mac: [u8; 6],
    pub chaddr: [u8; 6],
    pub source: Ipv4Addr,
    pub ciaddr: Ipv4Addr,
    pub giaddr: Ipv4Addr,
    pub flags: u16,
    pub options: Vec<u8>,
}

impl Client4 {
    pub fn new(message_type: u8) -> Client4 {
        Client4 {
            mac: CLIENT_MAC,
            chaddr: CLIENT_MAC,
            source: Ipv4Addr::UNSPECIFIED,
            ciaddr: Ipv4Addr::UNSPECIFIED,
            giaddr: Ipv4Addr::UNSPECIFIED,
            flags: 0,
            options: vec![53, 1, message_type],
        }
    }

    pub fn with(mut self, code: u8, value: &[u8]) -> Client4 {
        self.options.extend([code, u8::try_from(value.len()).unwrap()]);
        self.options.extend(value);
        self
    }

    pub fn frame(&self) -> Vec<u8> {
        let mut message = vec![1, 1, 6, 0, 1, 2, 3, 4, 0, 0];
        message.extend(self.flags.to_be_bytes());
        message.extend(self.ciaddr.octets());
        message.extend([0; 8]);
        message.extend(self.giaddr.octets());
        message.extend(self.chaddr);
        message.resize(236, 0);
        message.extend([99, 130, 83, 99]);
        message.extend(&self.options);
        message.push(255);
        let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
        let udp = [&[0, 68, 0, 67][..], &length(message.len() + 8), &[0, 0], &message].concat();
        let total = length(udp.len() + 20);
        let ip = [&[0x45, 0][..], &total, &[0, 0, 0, 0, 64, 17, 0, 0], &self.source.octets(), &[255; 4]];
        [&[0xff; 6][..], &self.mac, &[8, 0], &ip.concat(), &udp].concat()
    }
}

/// Builds an option of DHCPv6.
pub fn option6(code: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap();
    [&code.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
}

/// Builds an association with addresses.
pub fn association(id: u8, addresses: &[&str]) -> Vec<u8> {
    let mut value = vec![0, 0, 0, id, 0, 0, 0, 0, 0, 0, 0, 0];
    for address in addresses {
        let address: Ipv6Addr = address.parse().unwrap();
        value.extend(option6(5, &[&address.octets()[..], &[0; 8]].concat()));
    }
    option6(3, &value)
}

/// Builds a DHCPv6 message of a client with its identifier and a request for name servers and domains.
pub fn message6(message_type: u8, options: &[Vec<u8>]) -> Vec<u8> {
    let head = [vec![message_type, 7, 8, 9], option6(1, &CLIENT_DUID), option6(6, &[0, 23, 0, 24])];
    [head.concat(), options.concat()].concat()
}

pub fn frame6(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let udp = [&[2, 34, 2, 35][..], &length(message.len() + 8), &[0, 0], message].concat();
    packet6(source, destination, 17, 64, &udp)
}

pub fn solicitation(source: Ipv6Addr, hop_limit: u8, message: &[u8]) -> Vec<u8> {
    packet6(source, "ff02::2".parse().unwrap(), 58, hop_limit, message)
}

fn packet6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let header = [&[0x60, 0, 0, 0][..], &length, &[protocol, hop_limit], &source.octets()].concat();
    let ethernet = [&[0x33, 0x33, 0, 1, 0, 2][..], &CLIENT_MAC, &[0x86, 0xdd]].concat();
    [ethernet, header, destination.octets().to_vec(), payload.to_vec()].concat()
}

/// Computes the sum of the Internet checksum over a datagram and its pseudo header; zero if the checksum is right.
pub fn sum_with_checksum(addresses: &[u8], protocol: u8, payload: &[u8]) -> u16 {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let all = [addresses, &length, &[0, 0, 0, protocol], payload].concat();
    let words = all.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// Returns the options of a DHCPv4 reply by code; checks lengths and checksums.
pub fn options_of(frame: &[u8]) -> std::collections::BTreeMap<u8, Vec<u8>> {
    let ip = &frame[14..];
    assert_eq!(usize::from(ip[2]) << 8 | usize::from(ip[3]), ip.len());
    assert_eq!(sum_with_checksum(&ip[12..20], 17, &ip[20..]), 0, "UDP checksum");
    let mut rest = &ip[28 + 240..];
    let mut options = std::collections::BTreeMap::new();
    while rest[0] != 255 {
        let length = usize::from(rest[1]);
        options.entry(rest[0]).or_insert_with(Vec::new).extend(&rest[2..2 + length]);
        rest = &rest[2 + length..];
    }
    options
}
