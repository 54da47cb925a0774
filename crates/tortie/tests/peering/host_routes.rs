//! Routes of the host that other programs created are announced only if an export filter accepts them.

use crate::router::RouterConfig;
use crate::world::PeeringFixture;
use serde_json::json;
use std::collections::BTreeSet;
use tortie_testkit::eventually_showing;

#[test]
fn a_filter_announces_loopbacks_and_routes_of_others() {
    let world = PeeringFixture::new();
    for words in [
        "addr add 10.201.0.1/32 dev lo",
        "addr add fd20:1::1/128 dev lo nodad",
        "link add docker0 type bridge",
        "addr add 10.202.0.1/24 dev docker0",
        "addr add fd20:2::1/64 dev docker0 nodad",
        "link set docker0 up",
        "route add 10.203.0.0/24 via 10.88.0.9 proto static",
        "route add fd20:3::/64 via fd88::9 proto static",
    ] {
        world.host.ip(words);
    }
    let router = world.router(RouterConfig { number: 2, asn: 65001, ..RouterConfig::default() });
    // A BGP route is preferred to a static route of the host.
    let far = world.router(RouterConfig {
        number: 3,
        asn: 65003,
        announces: [("10.203.0.0/24", ""), ("fd20:3::/64", "")]
            .map(|(net, with)| (net.into(), with.into()))
            .to_vec(),
        ..RouterConfig::default()
    });
    world.peer("router", &router, 65001, &json!({}));
    world.peer("far", &far, 65003, &json!({}));
    world.wait_until_up(&router);
    world.wait_until_up(&far);
    far.announce(false);
    let heard = |v6: bool| -> BTreeSet<String> { router.heard(v6).into_iter().map(|(net, _)| net).collect() };
    let picture = || format!("{:?} {:?}\n{}", heard(false), heard(true), world.picture());
    let hears = |what: &str, v4: &[&str], v6: &[&str]| {
        let wanted = [v4, v6].map(|nets| nets.iter().map(|net| (*net).to_owned()).collect::<BTreeSet<_>>());
        eventually_showing(what, || [heard(false), heard(true)] == wanted, picture);
    };
    hears("nothing is announced without a filter", &[], &[]);

    let inside =
        |net: &str| json!([{"cidr": net, "matchOperator": "In", "action": "Accept"}, {"action": "Reject"}]);
    world.apply(
        "BGPFilter",
        "host",
        &json!({"exportV4": inside("10.200.0.0/14"), "exportV6": inside("fd20::/16")}),
    );
    world.peer("router", &router, 65001, &json!({"filters": ["host"]}));
    hears(
        "what the filter accepts",
        &["10.201.0.1/32", "10.202.0.0/24", "10.203.0.0/24"],
        &["fd20:1::1/128", "fd20:2::/64", "fd20:3::/64"],
    );
    let path =
        || router.heard(false).into_iter().find(|(net, _)| net == "10.203.0.0/24").unwrap_or_default().1;
    assert!(path().contains("BGP.as_path: 64512\n"), "{}", path());
    far.announce(true);
    eventually_showing("what a peer announces is better", || path().contains("64512 65003"), picture);
    far.announce(false);
    eventually_showing(
        "the host's own is announced again",
        || path().contains("BGP.as_path: 64512\n"),
        picture,
    );
    assert!(world.host.routes("10.203.0.0/24").iter().any(|route| route.contains("proto static")));

    world.apply("BGPConfiguration", "default", &json!({"ignoredInterfaces": ["docker*"]}));
    world.host.ip("addr del 10.201.0.1/32 dev lo");
    hears("what is ignored or gone is withdrawn", &["10.203.0.0/24"], &["fd20:1::1/128", "fd20:3::/64"]);
}
