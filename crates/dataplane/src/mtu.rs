//! The MTU of workloads: that of the interface which carries their traffic, and why that one.

use crate::kernel::Link;
use regex::Regex;
use std::collections::BTreeSet;

/// Where nothing tells: what a reasonable cloud network can carry.
const UNKNOWN: u32 = 1460;

/// What was chosen and why; shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MtuChoice {
    pub mtu: u32,
    pub interface: Option<String>,
    pub reason: String,
}

/// `carriers` are the interfaces that the default route or routes to other nodes go out of.
pub(crate) fn choose<'a>(
    configured: Option<u32>,
    pattern: &Regex,
    links: impl Iterator<Item = &'a Link>,
    carriers: &BTreeSet<u32>,
) -> MtuChoice {
    if let Some(mtu) = configured.filter(|mtu| *mtu != 0) {
        return MtuChoice { mtu, interface: None, reason: "configured".into() };
    }
    let usable: Vec<&Link> = links.filter(|link| link.is_up() && link.mtu > 0 && link.name != "lo").collect();
    let carries = |link: &&&Link| carriers.contains(&link.index);
    let matches = |link: &&&Link| pattern.is_match(&link.name);
    let smallest = |link: &&&Link| (link.mtu, link.index);
    let choice = |link: &&Link, reason: &str| MtuChoice {
        mtu: link.mtu,
        interface: Some(link.name.clone()),
        reason: reason.into(),
    };
    if let Some(link) = usable.iter().filter(matches).filter(carries).min_by_key(smallest) {
        return choice(link, "carries the default route or routes to other nodes");
    }
    if let Some(link) = usable.iter().filter(matches).min_by_key(smallest) {
        return choice(link, "smallest of the interfaces that match mtuIfacePattern");
    }
    if let Some(link) = usable.iter().filter(carries).min_by_key(smallest) {
        return choice(link, "carries the node's traffic, though no interface matches mtuIfacePattern");
    }
    MtuChoice {
        mtu: UNKNOWN,
        interface: None,
        reason: "no interface matches mtuIfacePattern or carries traffic".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, mtu: u32) -> Link {
        Link { index, name: name.into(), enabled: true, running: true, mtu, ..Link::default() }
    }

    fn chosen(links: &[Link], carriers: &[u32]) -> (u32, Option<String>) {
        let pattern = Regex::new(&tortie_plan::Settings::default().mtu_interface_pattern).unwrap();
        let choice = choose(None, &pattern, links.iter(), &carriers.iter().copied().collect());
        (choice.mtu, choice.interface)
    }

    #[test]
    fn the_interface_that_carries_the_traffic_decides_not_the_smallest() {
        let links = [link(1, "lo", 65536), link(2, "eth0", 9000), link(3, "eth1", 1500)];
        assert_eq!(chosen(&links, &[2]), (9000, Some("eth0".into())));
        assert_eq!(chosen(&links, &[]), (1500, Some("eth1".into())));
        assert_eq!(chosen(&links, &[2, 3]), (1500, Some("eth1".into())));
    }

    #[test]
    fn an_interface_outside_the_pattern_decides_only_where_none_matches() {
        assert_eq!(chosen(&[link(2, "bond0", 1400)], &[2]), (1400, Some("bond0".into())));
        assert_eq!(
            chosen(&[link(2, "bond0", 1400), link(3, "ens5", 9001)], &[2]),
            (9001, Some("ens5".into()))
        );
        assert_eq!(chosen(&[link(2, "docker0", 1500)], &[]), (1460, None));
    }

    #[test]
    fn an_interface_that_is_down_does_not_count() {
        let down = Link { running: false, ..link(2, "eth0", 1300) };
        assert_eq!(chosen(&[down, link(3, "eth1", 1500)], &[2]), (1500, Some("eth1".into())));
    }

    #[test]
    fn a_configured_value_wins() {
        let pattern = Regex::new("eth").unwrap();
        let carriers = BTreeSet::from([2]);
        assert_eq!(choose(Some(1440), &pattern, [link(2, "eth0", 9000)].iter(), &carriers).mtu, 1440);
        assert_eq!(choose(Some(0), &pattern, [link(2, "eth0", 9000)].iter(), &carriers).mtu, 9000);
    }
}
