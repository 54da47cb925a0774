//! Every criterion and operation of BGPFilter, in both directions and families, verified with a real router. All
//! cases share one node and two routers; the filters change one after the other.

use crate::router::{BirdRouter, NODE_AS, RouterConfig};
use crate::world::PeeringFixture;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use tortie_testkit::eventually_showing;

const OUTSIDE_AS: u32 = 65001;
/// LOCAL_PREF of the highest priority.
const MAX_LOCAL_PREF: u32 = 2_147_483_647;

/// Prefixes that the routers announce, in both families. The longer ones are inside the first.
const ANNOUNCED_PREFIXES: [(&str, [&str; 2]); 6] = [
    ("wide", ["10.1.0.0/16", "fd01:1::/32"]),
    ("narrow", ["10.1.2.0/24", "fd01:1:2::/48"]),
    ("fine", ["10.1.2.128/25", "fd01:1:2:8000::/56"]),
    ("other", ["10.2.0.0/16", "fd01:2::/32"]),
    ("urgent", ["10.3.0.0/16", "fd03::/32"]),
    ("calm", ["10.4.0.0/16", "fd04::/32"]),
];

/// Prefixes of the test by name.
#[derive(Clone, Debug)]
struct NamedPrefixes {
    v6: bool,
    names: BTreeMap<&'static str, String>,
}

impl NamedPrefixes {
    fn cidr(&self, name: &str) -> &str {
        &self.names[name]
    }

    fn of<T>(&self, v4: T, v6: T) -> T {
        if self.v6 { v6 } else { v4 }
    }

    /// Returns a rule for a prefix.
    fn rule(&self, name: &str, operator: &str, action: &str) -> Value {
        json!({"cidr": self.cidr(name), "matchOperator": operator, "action": action})
    }

    fn name_of(&self, prefix: &str) -> String {
        let known = self.names.iter().find(|(_, net)| *net == prefix);
        known.map_or(format!("unknown {prefix}"), |(name, _)| (*name).to_owned())
    }
}

type FilterRules = dyn Fn(&NamedPrefixes) -> Value;

#[derive(Clone, Copy, Debug, PartialEq)]
enum FilterDirection {
    Import,
    Export,
}

struct FilterFixture {
    world: PeeringFixture,
    outside: BirdRouter,
    inside: BirdRouter,
    nets: [NamedPrefixes; 2],
}

impl FilterFixture {
    fn router(&self, name: &str) -> &BirdRouter {
        if name == "outside" { &self.outside } else { &self.inside }
    }

    fn set(&self, filter: &str, way: FilterDirection, rules: &FilterRules) {
        let [v4, v6] = &self.nets;
        let spec = match way {
            FilterDirection::Import => json!({"importV4": rules(v4), "importV6": rules(v6)}),
            FilterDirection::Export => json!({"exportV4": rules(v4), "exportV6": rules(v6)}),
        };
        self.world.apply("BGPFilter", filter, &spec);
    }

    /// Returns the names of the routes that pass between the node and a router.
    fn passing(&self, router: &str, way: FilterDirection, v6: bool) -> BTreeSet<String> {
        let (router, nets) = (self.router(router), &self.nets[usize::from(v6)]);
        match way {
            // A filter that accepts everything announces the host's own networks too.
            FilterDirection::Export => {
                let heard = router.heard(v6).into_iter();
                let known =
                    heard.filter(|(prefix, _)| !["10.88.0.0/24", "fd88::/64"].contains(&prefix.as_str()));
                known.map(|(prefix, _)| nets.name_of(&prefix)).collect()
            }
            FilterDirection::Import => {
                // BIRD may wait for seconds before it sends its routes again; any command wakes it.
                router.birdc("show status");
                let learnt = self.world.learnt(router, v6);
                learnt.iter().map(|route| nets.name_of(route["prefix"].as_str().unwrap())).collect()
            }
        }
    }

    fn wait(&self, what: &str, router: &str, way: FilterDirection, wanted: &[&str]) {
        let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        for v6 in [false, true] {
            let passing = || self.passing(router, way, v6);
            let picture = || format!("passes: {:?}\nwanted: {wanted:?}\n{}", passing(), self.world.picture());
            eventually_showing(&format!("{way:?} {what}"), || passing() == wanted, picture);
        }
    }

    /// Asserts that with these rules exactly these routes pass, in both families.
    fn expect(&self, filter: &str, way: FilterDirection, what: &str, rules: &FilterRules, wanted: &[&str]) {
        let router = if filter == "inside" { "inside" } else { "outside" };
        // The check must not succeed because of the previous state.
        if self.passing(router, way, true).len() == wanted.len() {
            self.set(filter, way, &|_| json!([{"action": "Reject"}]));
            self.wait("nothing", router, way, &[]);
            if wanted.is_empty() {
                self.set(filter, way, &|_| json!([{"action": "Accept"}]));
                eventually_showing(
                    "something passes",
                    || !self.passing(router, way, true).is_empty(),
                    || self.world.picture(),
                );
            }
        }
        self.set(filter, way, rules);
        self.wait(what, router, way, wanted);
    }

    fn heard(&self, router: &str, name: &str, v6: bool) -> String {
        let prefix = self.nets[usize::from(v6)].cidr(name);
        let heard = self.router(router).heard(v6);
        heard
            .into_iter()
            .find(|(known, _)| known == prefix)
            .map(|(_, attributes)| attributes)
            .unwrap_or_default()
    }

    fn learnt(&self, router: &str, name: &str, v6: bool) -> Value {
        let prefix = self.nets[usize::from(v6)].cidr(name);
        let learnt = self.world.learnt(self.router(router), v6);
        learnt.into_iter().find(|route| route["prefix"] == prefix).unwrap_or_default()
    }

    fn wait_for(&self, what: &str, so: impl Fn(bool) -> bool) {
        eventually_showing(
            what,
            || so(false) && so(true),
            || {
                let heard =
                    [&self.outside, &self.inside].map(|router| [router.heard(false), router.heard(true)]);
                format!("{heard:#?}\n{}", self.world.picture())
            },
        );
    }
}

/// Returns the announcements of these names, each with BIRD statements for its attributes.
fn announced(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    let of = |(name, change): &(&str, &str)| {
        let (_, nets) = ANNOUNCED_PREFIXES.iter().find(|(known, _)| known == name).unwrap();
        nets.map(|net| (net.to_owned(), (*change).to_owned()))
    };
    changes.iter().flat_map(of).collect()
}

/// Returns the block of four addresses that contains an address.
fn block(address: &str) -> String {
    match address.parse::<Ipv4Addr>() {
        Ok(v4) => format!("{}/30", Ipv4Addr::from(u32::from(v4) & !3)),
        Err(_) => format!("{}/126", Ipv6Addr::from(u128::from(address.parse::<Ipv6Addr>().unwrap()) & !3)),
    }
}

fn scene() -> FilterFixture {
    let mut world = PeeringFixture::new();
    let pool = |world: &PeeringFixture, name: &str, cidr: &str, bits: u8, silent: bool| {
        let spec = json!({"cidr": cidr, "blockSize": bits, "disableBGPExport": silent, "ipipMode": "Never", "vxlanMode": "Never"});
        world.apply("IPPool", name, &spec);
    };
    // Blocks of one address are announced as routes to a workload's interface.
    pool(&world, "hosts-v4", "10.78.0.0/24", 32, false);
    pool(&world, "hosts-v6", "fd78::/120", 128, false);
    pool(&world, "silent-v4", "10.79.0.0/24", 30, true);
    pool(&world, "silent-v6", "fd79::/120", 126, true);
    let plain = world.pod("plain", ["default-ipv4-ippool", "default-ipv6-ippool"]);
    let host = world.pod("host", ["hosts-v4", "hosts-v6"]);
    let silent = world.pod("silent", ["silent-v4", "silent-v6"]);
    let nets = [false, true].map(|v6| {
        let own = |addresses: &[String]| addresses.iter().find(|a| a.contains(':') == v6).unwrap().clone();
        let mut names: BTreeMap<&'static str, String> =
            ANNOUNCED_PREFIXES.iter().map(|(name, nets)| (*name, nets[usize::from(v6)].to_owned())).collect();
        names.insert("block", block(&own(&plain)));
        names.insert("silent", block(&own(&silent)));
        names.insert("host", format!("{}/{}", own(&host), if v6 { 128 } else { 32 }));
        NamedPrefixes { v6, names }
    });
    let outside = world.router(RouterConfig {
        number: 2,
        asn: OUTSIDE_AS,
        announces: announced(&[
            ("wide", "bgp_community.add((65001,7));"),
            ("narrow", "bgp_large_community.add((65001,1,2));"),
            ("fine", ""),
            ("other", "bgp_path.prepend(65009);"),
        ]),
        ..RouterConfig::default()
    });
    let inside = world.router(RouterConfig {
        number: 3,
        asn: NODE_AS,
        announces: announced(&[
            (
                "urgent",
                &format!("bgp_local_pref = {}; bgp_large_community.add((64512,1,2));", MAX_LOCAL_PREF - 500),
            ),
            ("calm", "bgp_community.add((64512,9)); bgp_path.prepend(65077);"),
        ]),
        ..RouterConfig::default()
    });
    for name in ["first", "missing", "second", "inside"] {
        world.apply("BGPFilter", name, &json!({}));
    }
    world.peer("outside", &outside, OUTSIDE_AS, &json!({"filters": ["first", "missing", "second"]}));
    world.peer("inside", &inside, NODE_AS, &json!({"filters": ["inside"]}));
    [&outside, &inside].iter().for_each(|router| world.wait_until_up(router));
    FilterFixture { world, outside, inside, nets }
}

#[test]
fn filters_decide_as_they_say() {
    let scene = scene();
    // Without a matching rule: our blocks and borrowed addresses pass, but no block of a pool with disableBGPExport
    // and no learned route outside all pools. A workload address inside one of our blocks is not advertised
    // separately.
    scene.wait("by default", "outside", FilterDirection::Export, &["block", "host"]);
    scene.wait("by default", "outside", FilterDirection::Import, &["wide", "narrow", "fine", "other"]);
    scene.wait("by default", "inside", FilterDirection::Import, &["urgent", "calm"]);
    scene.wait("by default", "inside", FilterDirection::Export, &["block", "host"]);
    // A filter that does not exist is skipped.
    scene.set("missing", FilterDirection::Export, &|_| json!([{"action": "Reject"}]));
    scene.wait("a filter that rejects all", "outside", FilterDirection::Export, &[]);
    scene.world.calicoctl(&["delete", "bgpfilter", "missing"], "");
    scene.wait("a filter that is gone", "outside", FilterDirection::Export, &["block", "host"]);
    exports(&scene);
    imports(&scene);
    operations(&scene);
}

fn exports(scene: &FilterFixture) {
    let expect = |what: &str, rules: &FilterRules, wanted: &[&str]| {
        scene.expect("first", FilterDirection::Export, what, rules, wanted)
    };
    expect(
        "accept passes by a silent pool",
        &|n| json!([n.rule("silent", "Equal", "Accept")]),
        &["block", "host", "silent"],
    );
    expect("In", &|n| json!([n.rule("host", "In", "Reject")]), &["block"]);
    expect("NotIn", &|n| json!([n.rule("host", "NotIn", "Reject")]), &["host"]);
    expect("Equal", &|n| json!([n.rule("block", "Equal", "Reject")]), &["host"]);
    expect("NotEqual", &|n| json!([n.rule("block", "NotEqual", "Reject")]), &["block"]);
    expect("interface of a workload", &|_| json!([{"interface": "cali*", "action": "Reject"}]), &["block"]);
    expect("another interface", &|_| json!([{"interface": "eth*", "action": "Reject"}]), &["block", "host"]);
    expect(
        "a prefix length",
        &|n| {
            let cidr = n.of("10.64.0.0/11", "fd00::/8");
            let length = json!({"min": n.of(30, 126), "max": n.of(30, 126)});
            json!([{"cidr": cidr, "matchOperator": "In", "prefixLength": length, "action": "Reject"}])
        },
        &["host"],
    );
    expect(
        "source",
        &|_| json!([{"source": "RemotePeers", "action": "Accept"}]),
        &["block", "host", "urgent", "calm"],
    );
    expect(
        "the other kind of peer",
        &|_| json!([{"peerType": "iBGP", "action": "Reject"}]),
        &["block", "host"],
    );
    expect("this kind of peer", &|_| json!([{"peerType": "eBGP", "action": "Reject"}]), &[]);
    expect(
        "priority of a learnt route",
        &|_| json!([{"priority": 500, "source": "RemotePeers", "action": "Accept"}]),
        &["block", "host", "urgent"],
    );
    expect("priority of our own", &|_| json!([{"priority": 1024, "action": "Reject"}]), &[]);
    let community = |value: &'static str| move |_: &NamedPrefixes| json!([{"communities": {"values": [value]}, "action": "Accept"}]);
    expect("a community", &community("64512:9"), &["block", "host", "calm"]);
    expect("a large community", &community("64512:1:2"), &["block", "host", "urgent"]);
    expect(
        "the path",
        &|_| json!([{"asPathPrefix": [65077], "action": "Accept"}]),
        &["block", "host", "calm"],
    );
    expect(
        "the first rule that matches",
        &|n| json!([n.rule("host", "Equal", "Accept"), {"action": "Reject"}]),
        &["host"],
    );
    // If no rule matches, the next filter applies, and then the defaults.
    scene.set("second", FilterDirection::Export, &|n| json!([n.rule("host", "Equal", "Reject")]));
    expect("the next filter", &|n| json!([n.rule("silent", "Equal", "Accept")]), &["block", "silent"]);
    scene.set("second", FilterDirection::Export, &|_| json!([]));
    expect("none", &|_| json!([]), &["block", "host"]);
}

fn imports(scene: &FilterFixture) {
    let all = ["wide", "narrow", "fine", "other"];
    let expect = |what: &str, rules: &FilterRules, wanted: &[&str]| {
        scene.expect("first", FilterDirection::Import, what, rules, wanted)
    };
    expect("In", &|n| json!([n.rule("wide", "In", "Reject")]), &["other"]);
    expect("NotIn", &|n| json!([n.rule("wide", "NotIn", "Reject")]), &["wide", "narrow", "fine"]);
    expect("Equal", &|n| json!([n.rule("wide", "Equal", "Reject")]), &["narrow", "fine", "other"]);
    expect("NotEqual", &|n| json!([n.rule("wide", "NotEqual", "Reject")]), &["wide"]);
    let length = |operator: &'static str, min: Option<[u8; 2]>, max: Option<[u8; 2]>| {
        move |n: &NamedPrefixes| {
            let mut rule = n.rule("wide", operator, "Reject");
            rule["prefixLength"] = json!({});
            for (key, given) in [("min", min), ("max", max)] {
                if let Some([v4, v6]) = given {
                    rule["prefixLength"][key] = json!(n.of(v4, v6));
                }
            }
            json!([rule])
        }
    };
    expect("at least so long", &length("In", Some([24, 48]), None), &["wide", "other"]);
    expect("at most so long", &length("In", None, Some([24, 48])), &["fine", "other"]);
    expect("just so long", &length("In", Some([24, 48]), Some([24, 48])), &["wide", "fine", "other"]);
    expect("anything but so long", &length("NotIn", Some([24, 48]), Some([24, 48])), &["narrow"]);
    expect("source", &|_| json!([{"source": "RemotePeers", "action": "Reject"}]), &[]);
    expect("the other kind of peer", &|_| json!([{"peerType": "iBGP", "action": "Reject"}]), &all);
    expect("this kind of peer", &|_| json!([{"peerType": "eBGP", "action": "Reject"}]), &[]);
    let community = |value: &'static str| move |_: &NamedPrefixes| json!([{"communities": {"values": [value]}, "action": "Reject"}]);
    expect("a community", &community("65001:7"), &["narrow", "fine", "other"]);
    expect("a large community", &community("65001:1:2"), &["wide", "fine", "other"]);
    let path =
        |path: &'static [u32]| move |_: &NamedPrefixes| json!([{"asPathPrefix": path, "action": "Reject"}]);
    expect("how the path begins", &path(&[65001, 65009]), &["wide", "narrow", "fine"]);
    expect("not how it goes on", &path(&[65009]), &all);
    expect(
        "all criteria at once",
        &|n| {
            let mut rule = n.rule("wide", "In", "Reject");
            rule["communities"] = json!({"values": ["65001:7"]});
            json!([rule])
        },
        &["narrow", "fine", "other"],
    );
    expect(
        "accept some, reject the rest",
        &|n| json!([n.rule("narrow", "In", "Accept"), {"action": "Reject"}]),
        &["narrow", "fine"],
    );
    scene.set("second", FilterDirection::Import, &|n| json!([n.rule("other", "Equal", "Reject")]));
    expect("the next filter", &|n| json!([n.rule("wide", "Equal", "Reject")]), &["narrow", "fine"]);
    scene.set("second", FilterDirection::Import, &|_| json!([]));
    let inside = |what: &str, rules: &FilterRules, wanted: &[&str]| {
        scene.expect("inside", FilterDirection::Import, what, rules, wanted)
    };
    inside("priority", &|_| json!([{"priority": 500, "action": "Reject"}]), &["calm"]);
    inside("this kind of peer", &|_| json!([{"peerType": "iBGP", "action": "Reject"}]), &[]);
    inside("none", &|_| json!([]), &["urgent", "calm"]);
}

fn operations(scene: &FilterFixture) {
    let marks = json!([
        {"addCommunity": {"value": "64512:77"}},
        {"addCommunity": {"value": "64512:7:8"}},
        {"prependASPath": {"prefix": [65100, 65101]}},
        {"setPriority": {"value": 300}},
    ]);
    let rules = |name: &'static str| {
        let marks = marks.clone();
        move |n: &NamedPrefixes| {
            let mut rule = n.rule(name, "Equal", "Accept");
            rule["operations"] = marks.clone();
            json!([rule])
        }
    };
    scene.set("first", FilterDirection::Export, &rules("block"));
    scene.wait_for("the marks of an exported route arrive", |v6| {
        let marked = scene.heard("outside", "block", v6);
        let plain = scene.heard("outside", "host", v6);
        marked.contains("(64512,77)")
            && marked.contains("(64512, 7, 8)")
            && marked.lines().any(|line| line == "BGP.as_path: 64512 65100 65101")
            && plain.lines().any(|line| line == "BGP.as_path: 64512")
            && !plain.contains("77")
    });
    // LOCAL_PREF is sent only within an AS.
    let preference = |name: &str, v6: bool, priority: u32| {
        let wanted = format!("BGP.local_pref: {}", MAX_LOCAL_PREF - priority);
        scene.heard("inside", name, v6).lines().any(|line| line == wanted)
    };
    scene.set("inside", FilterDirection::Export, &rules("block"));
    scene.wait_for("the priority is the preference", |v6| {
        preference("block", v6, 300) && preference("host", v6, 1024)
    });
    scene.set("first", FilterDirection::Import, &rules("other"));
    scene.wait_for("the marks of an imported route are there", |v6| {
        let route = scene.learnt("outside", "other", v6);
        route["communities"] == json!(["64512:77", "64512:7:8"])
            && route["asPath"] == json!([65100, 65101, 65001, 65009])
            && route["localPref"] == MAX_LOCAL_PREF - 300
    });
    // The priority becomes the kernel metric; routes of external peers have the lowest priority.
    scene.wait_for("the kernel has them", |v6| {
        let (routes, nets) = (scene.world.kernel(v6), &scene.nets[usize::from(v6)]);
        let has = |name: &str, more: &str| {
            routes.lines().any(|line| line.contains(nets.cidr(name)) && line.contains(more))
        };
        let (outside, inside) = (scene.outside.address(v6), scene.inside.address(v6));
        has("other", &format!("via {outside} dev eth0 metric 300"))
            && has("wide", &format!("via {outside} dev eth0 metric 2147483547"))
            && has("urgent", &format!("via {inside} dev eth0 metric 500"))
            && has("block", "metric 1024")
            && routes.lines().filter(|line| line.starts_with("blackhole")).count() == 2
    });
}
