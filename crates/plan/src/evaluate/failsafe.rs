//! Failsafe ports: ports of the host that no policy can block.

use super::packet::Packet;
use crate::policy::PolicyDirection;
use crate::settings::{FailsafePort, PolicySettings};
use std::net::IpAddr;

/// Returns whether a packet to or from the host itself passes regardless of the policies of its host endpoint.
pub fn is_failsafe(settings: &PolicySettings, direction: PolicyDirection, packet: &Packet) -> bool {
    let (list, remote) = match direction {
        PolicyDirection::Ingress => (&settings.failsafe_inbound, packet.source),
        PolicyDirection::Egress => (&settings.failsafe_outbound, packet.destination),
    };
    listed(list, packet.protocol, packet.destination_port, remote)
}

/// Returns whether a packet is a reply to one that the failsafe list of the other direction allows.
pub(super) fn is_failsafe_reply(
    settings: &PolicySettings,
    direction: PolicyDirection,
    packet: &Packet,
) -> bool {
    let (list, remote) = match direction {
        PolicyDirection::Ingress => (&settings.failsafe_outbound, packet.source),
        PolicyDirection::Egress => (&settings.failsafe_inbound, packet.destination),
    };
    listed(list, packet.protocol, packet.source_port, remote)
}

fn listed(list: &[FailsafePort], protocol: u8, port: u16, remote: IpAddr) -> bool {
    list.iter().any(|safe| {
        safe.protocol == protocol && safe.port == port && safe.net.is_none_or(|net| net.contains(&remote))
    })
}
