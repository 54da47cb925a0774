//! The settings of a workload interface.

use crate::kernel::Conf;
use crate::sysctl::Setting;
use tortie_plan::Workload;

/// What still differs from what the workload needs. `first`: also write what the kernel does not report.
pub(super) fn missing(
    interface: &str,
    conf: &Conf,
    workload: &Workload,
    rp_filter: i32,
    with_v6: bool,
    first: bool,
) -> Vec<Setting> {
    let v4 = |name: &str| format!("net/ipv4/conf/{interface}/{name}");
    let v6 = |name: &str| format!("net/ipv6/conf/{interface}/{name}");
    let mut wanted = vec![
        (conf.proxy_arp, Setting::new(v4("proxy_arp"), 1)),
        (conf.v4_forwarding, Setting::new(v4("forwarding"), 1)),
        (conf.rp_filter, Setting::new(v4("rp_filter"), rp_filter)),
        // Even where we do not program IPv6: a workload must not configure its host.
        (conf.accept_ra, Setting::lenient(v6("accept_ra"), 0)),
    ];
    if with_v6 {
        // A kernel without IPv6 matters only to who has such an address.
        let needed = workload.addresses.iter().any(|address| address.is_ipv6());
        let setting = if needed { Setting::new } else { Setting::lenient };
        wanted.push((conf.proxy_ndp, setting(v6("proxy_ndp"), 1)));
        wanted.push((conf.v6_forwarding, setting(v6("forwarding"), 1)));
    }
    let differs = |reported: Option<i32>, wanted: i32| match reported {
        Some(value) => value != wanted,
        None => first,
    };
    let mut missing: Vec<Setting> = wanted
        .into_iter()
        .filter(|(reported, setting)| differs(*reported, setting.value))
        .map(|(_, setting)| setting)
        .collect();
    if first {
        missing.push(Setting::lenient(format!("net/ipv4/neigh/{interface}/proxy_delay"), 0));
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: Conf = Conf {
        v4_forwarding: Some(1),
        proxy_arp: Some(1),
        rp_filter: Some(1),
        v6_forwarding: Some(1),
        proxy_ndp: Some(1),
        accept_ra: Some(0),
    };

    fn keys(conf: Conf, rp_filter: i32, first: bool) -> Vec<String> {
        let workload =
            Workload { interface: "cali1".into(), mac: None, addresses: Vec::new(), may_spoof: false };
        let missing = missing("cali1", &conf, &workload, rp_filter, true, first);
        missing.into_iter().map(|setting| format!("{}={}", setting.key, setting.value)).collect()
    }

    #[test]
    fn only_what_differs_is_written() {
        assert_eq!(keys(RIGHT, 1, false), [""; 0]);
        assert_eq!(keys(RIGHT, 0, false), ["net/ipv4/conf/cali1/rp_filter=0"]);
        let conf = Conf { proxy_arp: Some(0), accept_ra: Some(1), ..RIGHT };
        assert_eq!(
            keys(conf, 1, false),
            ["net/ipv4/conf/cali1/proxy_arp=1", "net/ipv6/conf/cali1/accept_ra=0"]
        );
    }

    #[test]
    fn what_cannot_be_read_back_is_written_once() {
        assert_eq!(keys(RIGHT, 1, true), ["net/ipv4/neigh/cali1/proxy_delay=0"]);
        assert_eq!(keys(Conf { proxy_ndp: None, ..RIGHT }, 1, false), [""; 0]);
    }
}
