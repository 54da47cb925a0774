//! Passes any bytes to the DHCP server as a frame, and as a message of each protocol behind valid headers. A reply goes
//! only to the machine and is no longer than its link permits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::net::{Ipv4Addr, Ipv6Addr};
use tortie_dhcp::codec::frame::MacAddress;
use tortie_dhcp::codec::neighbour::AdvertisedPrefix;
use tortie_dhcp::lease::{Dhcp4Lease, Dhcp6Lease, InterfaceLease, LinkIdentity, PortState};
use tortie_dhcp::respond::respond;

const MAC: [u8; 6] = [0xfa, 0x16, 0x3e, 0, 0, 1];
const MTU: u32 = 1500;
const ETHERNET_BYTES: usize = 14;

fn describe_port() -> Option<PortState> {
    let route = |number: u8| Some((format!("192.0.{number}.0/24").parse().ok()?, Ipv4Addr::new(10, 65, 0, 9)));
    Some(PortState {
        link: LinkIdentity { mac: MacAddress([2; 6]), link_local: "fe80::1".parse().ok(), mtu: MTU },
        lease: InterfaceLease {
            mac: MacAddress(MAC),
            host_name: "web".to_owned(),
            domain: "cloud.example".to_owned(),
            lease_seconds: 3600,
            v4: Some(Dhcp4Lease {
                address: Ipv4Addr::new(10, 65, 0, 2),
                subnet: "10.65.0.0/24".parse().ok()?,
                gateway: Some(Ipv4Addr::new(10, 65, 0, 1)),
                dns_servers: vec![Ipv4Addr::new(9, 9, 9, 9)],
                routes: (0..64).filter_map(route).collect(),
            }),
            v6: Some(Dhcp6Lease {
                addresses: vec!["fd00:65::2".parse().ok()?],
                prefixes: vec![AdvertisedPrefix { net: "fd00:65::/64".parse().ok()?, is_autonomous: true }],
                is_managed: true,
                has_other: true,
                dns_servers: vec!["2620:fe::fe".parse().ok()?],
            }),
        },
    })
}

fn check(frame: &[u8], port: &PortState) {
    let mut reply = Vec::new();
    let Ok(processed) = respond(frame, port, &mut reply) else { return };
    assert_eq!(frame[6..12], MAC);
    assert_eq!(processed.reply.is_some(), !reply.is_empty());
    assert!(reply.len() <= MTU as usize + ETHERNET_BYTES);
    if processed.reply.is_some() {
        assert!(reply[..6] == MAC || reply[0] & 1 == 1);
        assert_eq!(reply[6..12], port.link.mac.0);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some(port) = describe_port() else { return };
    check(bytes, &port);
    let Ok(length) = u16::try_from(bytes.len() + 8) else { return };
    if length > 9000 {
        return;
    }
    let udp = |from: u16, to: u16| {
        [&from.to_be_bytes()[..], &to.to_be_bytes(), &length.to_be_bytes(), &[0, 0], bytes].concat()
    };
    let ip4 = [&[0x45, 0][..], &(length + 20).to_be_bytes(), &[0, 0, 0, 0, 64, 17, 0, 0], &[0; 4], &[255; 4]].concat();
    check(&[&[0xff; 6][..], &MAC, &[8, 0], &ip4, &udp(68, 67)].concat(), &port);
    // The message with the fields that a server checks first.
    let mut message = bytes.to_vec();
    if message.len() > 240 {
        message[..3].copy_from_slice(&[1, 1, 6]);
        message[24..28].fill(0);
        message[28..34].copy_from_slice(&MAC);
        message[236..240].copy_from_slice(&[99, 130, 83, 99]);
        let datagram = [&udp(68, 67)[..8], &message].concat();
        check(&[&[0xff; 6][..], &MAC, &[8, 0], &ip4, &datagram].concat(), &port);
    }
    let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets();
    let servers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2).octets();
    let ip6 = |protocol: u8, length: u16| {
        [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[protocol, 255], &source, &servers].concat()
    };
    let head = [&[0x33, 0x33, 0, 1, 0, 2][..], &MAC, &[0x86, 0xdd]].concat();
    check(&[&head[..], &ip6(17, length), &udp(546, 547)].concat(), &port);
    check(&[&head[..], &ip6(58, length - 8), bytes].concat(), &port);
});
