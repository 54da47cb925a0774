//! A route is used only while its next hop is reachable.

use crate::router::{BirdRouter, NODE_AS, RouterConfig};
use crate::world::PeeringFixture;
use serde_json::json;
use tortie_testkit::eventually_showing;

const SHARED_PREFIXES: [&str; 2] = ["10.1.0.0/16", "fd01::/32"];
const SINGLE_SOURCE_PREFIXES: [&str; 2] = ["10.2.0.0/16", "fd02::/32"];

#[test]
fn next_hops_must_be_reachable() {
    let world = PeeringFixture::new();
    let with = |nets: [&str; 2], changes: [&str; 2]| -> Vec<(String, String)> {
        nets.iter().zip(changes).map(|(net, change)| ((*net).to_owned(), change.to_owned())).collect()
    };
    let outside = world.router(RouterConfig {
        number: 2,
        asn: 65001,
        announces: with(SHARED_PREFIXES, [""; 2]),
        ..RouterConfig::default()
    });
    // Its routes are preferred, but their next hop is unknown to the node.
    let far =
        ["bgp_local_pref = 200; bgp_next_hop = 10.99.0.9;", "bgp_local_pref = 200; bgp_next_hop = fd99::9;"];
    let inside = world.router(RouterConfig {
        number: 3,
        asn: NODE_AS,
        announces: [with(SHARED_PREFIXES, far), with(SINGLE_SOURCE_PREFIXES, far)].concat(),
        ..RouterConfig::default()
    });
    let listener = world.router(RouterConfig { number: 4, asn: 65004, ..RouterConfig::default() });
    let everything = json!([{"action": "Accept"}]);
    world.apply("BGPFilter", "everything", &json!({"exportV4": everything, "exportV6": everything}));
    world.peer("outside", &outside, 65001, &json!({}));
    world.peer("inside", &inside, NODE_AS, &json!({}));
    world.peer("listener", &listener, 65004, &json!({"filters": ["everything"]}));
    [&outside, &inside, &listener].iter().for_each(|router| world.wait_until_up(router));

    let picture = || format!("{}{}{}", world.kernel(false), world.kernel(true), world.picture());
    let via = |net: &str, v6: bool| -> Option<String> {
        let routes = world.kernel(v6);
        let line = routes.lines().find(|line| line.starts_with(net))?;
        line.split_whitespace().skip_while(|word| *word != "via").nth(1).map(str::to_owned)
    };
    let heard = |net: &str, v6: bool| listener.heard(v6).iter().any(|(known, _)| known == net);
    let is = |shared: &BirdRouter, alone: Option<&BirdRouter>| {
        [false, true].into_iter().all(|v6| {
            let at = usize::from(v6);
            via(SHARED_PREFIXES[at], v6) == Some(shared.address(v6))
                && via(SINGLE_SOURCE_PREFIXES[at], v6) == alone.map(|router| router.address(v6))
                && heard(SHARED_PREFIXES[at], v6)
                && heard(SINGLE_SOURCE_PREFIXES[at], v6) == alone.is_some()
        })
    };
    // All routes have been received, and the unreachable ones are marked.
    let lost = |v6: bool| {
        let learnt = world.learnt(&inside, v6);
        learnt.len() == 2 && learnt.iter().all(|route| route["reachable"] == false && route["best"] == false)
    };
    eventually_showing("the next hop is known to be lost", || lost(false) && lost(true), picture);
    eventually_showing("only what can be reached is used", || is(&outside, None), picture);

    let way = ["-4 route add 10.99.0.0/24 via 10.88.0.3", "-6 route add fd99::/64 via fd88::3"];
    way.iter().for_each(|words| drop(world.host.ip(*words)));
    eventually_showing(
        "the better routes are used once there is a way",
        || is(&inside, Some(&inside)),
        picture,
    );

    way.iter().for_each(|words| drop(world.host.ip(&words.replace("add", "del"))));
    eventually_showing("they are given up with the way", || is(&outside, None), picture);
}
