//! Chooses the MTU of workloads: the MTU of the interface that carries their traffic, minus the overhead of
//! encapsulation. Records the reason for the choice.

use crate::kernel::KernelLink;
use regex::Regex;
use std::collections::BTreeSet;
use std::fmt;
use tortie_plan::TunnelKind;

/// Default if no interface is usable: an MTU that common cloud networks can carry.
const DEFAULT_MTU: u32 = 1460;

/// The chosen MTU and the reason, for display to users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MtuChoice {
    pub mtu: u32,
    pub interface: Option<String>,
    pub reason: String,
}

impl fmt::Display for MtuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) => write!(f, "{}: {interface} {}", self.mtu, self.reason),
            None => write!(f, "{}: {}", self.mtu, self.reason),
        }
    }
}

/// The interface that determines the MTU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MtuCarrier {
    mtu: u32,
    interface: Option<String>,
    reason: &'static str,
}

/// Selects the interface that determines the MTU. `carriers` are the interfaces of the default route and of routes to
/// other nodes.
pub fn carrier<'a>(
    pattern: &Regex,
    links: impl Iterator<Item = &'a KernelLink>,
    carriers: &BTreeSet<u32>,
) -> MtuCarrier {
    let usable: Vec<&KernelLink> =
        links.filter(|link| link.is_up() && link.mtu > 0 && link.name != "lo").collect();
    for (must_match, must_carry, reason) in [
        (true, true, "carries the default route or routes to other nodes"),
        (true, false, "is the smallest of the interfaces that match mtuIfacePattern"),
        (false, true, "carries the node's traffic, though no interface matches mtuIfacePattern"),
    ] {
        let fitting = usable.iter().filter(|link| {
            (!must_match || pattern.is_match(&link.name)) && (!must_carry || carriers.contains(&link.index))
        });
        if let Some(link) = fitting.min_by_key(|link| (link.mtu, link.index)) {
            return MtuCarrier { mtu: link.mtu, interface: Some(link.name.clone()), reason };
        }
    }
    let reason = "no interface matches mtuIfacePattern or carries traffic";
    MtuCarrier { mtu: DEFAULT_MTU, interface: None, reason }
}

/// Returns the largest MTU that fits into every tunnel of the node; each tunnel comes with its configured MTU, if any.
pub fn choose(carrier: MtuCarrier, tunnels: impl Iterator<Item = (TunnelKind, Option<u32>)>) -> MtuChoice {
    let MtuCarrier { mtu: whole, interface, reason } = carrier;
    let fitting = tunnels.map(|(kind, given)| {
        let mtu = given.unwrap_or(whole.saturating_sub(kind.overhead()));
        (mtu, kind, given)
    });
    let Some((mtu, narrowest, given)) = fitting.min_by_key(|(mtu, ..)| *mtu) else {
        return MtuChoice { mtu: whole, interface, reason: reason.into() };
    };
    if given.is_some() {
        return MtuChoice { mtu, interface: None, reason: format!("{} is set", narrowest.mtu_setting()) };
    }
    let overhead = narrowest.overhead();
    MtuChoice {
        mtu,
        interface,
        reason: format!("{reason}; {overhead} of {whole} are for {}", narrowest.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, mtu: u32) -> KernelLink {
        KernelLink { index, name: name.into(), enabled: true, running: true, mtu, ..KernelLink::default() }
    }

    fn chosen(links: &[KernelLink], carriers: &[u32]) -> (u32, Option<String>) {
        let pattern = Regex::new(&tortie_plan::DataplaneSettings::default().mtu_interface_pattern).unwrap();
        let carrier = carrier(&pattern, links.iter(), &carriers.iter().copied().collect());
        let choice = choose(carrier, std::iter::empty());
        (choice.mtu, choice.interface)
    }

    #[test]
    fn the_carrying_interface_determines_the_mtu() {
        let links = [link(1, "lo", 65536), link(2, "eth0", 9000), link(3, "eth1", 1500)];
        assert_eq!(chosen(&links, &[2]), (9000, Some("eth0".into())));
        assert_eq!(chosen(&links, &[]), (1500, Some("eth1".into())));
        assert_eq!(chosen(&links, &[2, 3]), (1500, Some("eth1".into())));
    }

    #[test]
    fn interfaces_outside_the_pattern_are_a_fallback() {
        assert_eq!(chosen(&[link(2, "bond0", 1400)], &[2]), (1400, Some("bond0".into())));
        assert_eq!(
            chosen(&[link(2, "bond0", 1400), link(3, "ens5", 9001)], &[2]),
            (9001, Some("ens5".into()))
        );
        assert_eq!(chosen(&[link(2, "docker0", 1500)], &[]), (1460, None));
    }

    #[test]
    fn an_interface_that_is_down_does_not_count() {
        let down = KernelLink { running: false, ..link(2, "eth0", 1300) };
        assert_eq!(chosen(&[down, link(3, "eth1", 1500)], &[2]), (1500, Some("eth1".into())));
    }

    #[test]
    fn largest_overhead_determines_the_mtu_unless_configured() {
        use TunnelKind::{Ipip, VxlanV4, VxlanV6};
        let text = |tunnels: &[(TunnelKind, u32)]| {
            let carrier = MtuCarrier { mtu: 1500, interface: Some("eth0".into()), reason: "carries it" };
            let tunnels = tunnels.iter().map(|(kind, mtu)| (*kind, Some(*mtu).filter(|mtu| *mtu != 0)));
            choose(carrier, tunnels).to_string()
        };
        assert_eq!(text(&[]), "1500: eth0 carries it");
        assert_eq!(text(&[(Ipip, 0)]), "1480: eth0 carries it; 20 of 1500 are for IPIP");
        assert_eq!(text(&[(Ipip, 0), (VxlanV4, 0)]), "1450: eth0 carries it; 50 of 1500 are for VXLAN");
        let both = "1430: eth0 carries it; 70 of 1500 are for VXLAN over IPv6";
        assert_eq!(text(&[(VxlanV4, 0), (VxlanV6, 0)]), both);
        assert_eq!(text(&[(VxlanV4, 1440), (VxlanV6, 0)]), both, "the other is smaller");
        assert_eq!(text(&[(VxlanV4, 1400), (VxlanV6, 0)]), "1400: vxlanMTU is set");
        assert_eq!(text(&[(VxlanV4, 8950)]), "8950: vxlanMTU is set");
    }
}
