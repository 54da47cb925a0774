//! A configuration change affects only the sessions that it concerns.

use crate::router::{BirdRouter, NODE_AS, RouterConfig};
use crate::world::PeeringFixture;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tortie_testkit::eventually_showing;

/// History of a session as both ends report it.
#[derive(Debug)]
struct SessionUptime {
    since: Value,
    times_up: Value,
    state: Value,
    router_says: Option<u64>,
}

impl PartialEq for SessionUptime {
    fn eq(&self, other: &SessionUptime) -> bool {
        let same_time = match (self.router_says, other.router_says) {
            (Some(one), Some(other)) => one.abs_diff(other) < 100,
            (one, other) => one == other,
        };
        (&self.since, &self.times_up, &self.state) == (&other.since, &other.times_up, &other.state)
            && same_time
    }
}

struct UptimeFixture {
    world: PeeringFixture,
    routers: BTreeMap<&'static str, BirdRouter>,
}

impl UptimeFixture {
    fn uptime(&self, name: &str, v6: bool) -> SessionUptime {
        let router = &self.routers[name];
        let session = self.world.session(&router.address(v6));
        SessionUptime {
            since: session["since"].clone(),
            times_up: session["established"].clone(),
            state: session["state"].clone(),
            router_says: router.up_since(v6),
        }
    }

    fn uptimes(&self, names: &[&'static str]) -> BTreeMap<(&'static str, bool), SessionUptime> {
        let all = names.iter().flat_map(|name| [(*name, false), (*name, true)]);
        all.map(|(name, v6)| ((name, v6), self.uptime(name, v6))).collect()
    }

    /// Runs `change`, waits for `done`, and asserts that the named sessions were not affected.
    fn leaves_alone(
        &mut self,
        names: &[&'static str],
        change: impl FnOnce(&mut UptimeFixture),
        done: impl Fn(&UptimeFixture) -> bool,
        what: &str,
    ) {
        let before = self.uptimes(names);
        assert!(before.values().all(|uptime| uptime.state == "Established"), "{before:?}");
        change(self);
        eventually_showing(what, || done(self), || self.world.picture());
        assert_eq!(self.uptimes(names), before, "while {what}");
    }

    /// Returns whether a session has been re-established since.
    fn came_back(&self, name: &str, v6: bool, before: &SessionUptime) -> bool {
        let now = self.uptime(name, v6);
        let later =
            now.router_says.zip(before.router_says).is_some_and(|(now, before)| now.abs_diff(before) > 100);
        now.state == "Established" && later
    }

    fn learnt(&self, name: &str, v6: bool) -> usize {
        self.world.learnt(&self.routers[name], v6).len()
    }
}

fn announced() -> Vec<(String, String)> {
    ["10.1.0.0/16", "10.2.0.0/16", "fd01::/32", "fd02::/32"].map(|net| (net.to_owned(), String::new())).into()
}

#[test]
fn a_change_keeps_the_other_sessions() {
    let world = PeeringFixture::new();
    let secrets = world.dir.path().join("secrets/bgp");
    std::fs::create_dir(&secrets).unwrap();
    std::fs::write(secrets.join("locked"), "first").unwrap();
    let password = json!({"password": {"secretKeyRef": {"name": "bgp", "key": "locked"}}});
    let filter = |rules: Value| json!({"importV4": rules, "importV6": rules});
    let reject = |v4: &str, v6: &str| {
        let rule = |cidr: &str| json!([{"cidr": cidr, "matchOperator": "Equal", "action": "Reject"}]);
        json!({"importV4": rule(v4), "importV6": rule(v6)})
    };
    world.apply("BGPFilter", "some", &filter(json!([])));

    let plain = RouterConfig { announces: announced(), ..RouterConfig::default() };
    let routers = BTreeMap::from([
        ("outside", world.router(RouterConfig { number: 2, asn: 65001, ..plain.clone() })),
        ("inside", world.router(RouterConfig { number: 3, asn: NODE_AS, ..plain.clone() })),
        (
            "locked",
            world.router(RouterConfig {
                number: 4,
                asn: 65002,
                password: Some("first".into()),
                ..plain.clone()
            }),
        ),
        ("filtered", world.router(RouterConfig { number: 5, asn: 65003, ..plain.clone() })),
    ]);
    world.peer("outside", &routers["outside"], 65001, &json!({}));
    world.peer("inside", &routers["inside"], NODE_AS, &json!({}));
    world.peer("locked", &routers["locked"], 65002, &password);
    world.peer("filtered", &routers["filtered"], 65003, &json!({"filters": ["some"]}));
    routers.values().for_each(|router| world.wait_until_up(router));
    let mut scene = UptimeFixture { world, routers };
    for name in ["outside", "inside", "locked", "filtered"] {
        for v6 in [false, true] {
            eventually_showing(
                "all routes are here",
                || scene.learnt(name, v6) == 2,
                || scene.world.picture(),
            );
        }
    }

    // A peer setting that needs a new session resets that session only.
    let before = [false, true].map(|v6| scene.uptime("outside", v6));
    scene.leaves_alone(
        &["inside", "locked", "filtered"],
        |scene| {
            scene.world.peer("outside", &scene.routers["outside"], 65001, &json!({"keepaliveTime": "20s"}))
        },
        |scene| {
            [false, true].into_iter().zip(&before).all(|(v6, before)| scene.came_back("outside", v6, before))
        },
        "a peer is changed",
    );

    // A filter change resets no session; the routes are filtered again.
    let all = ["outside", "inside", "locked", "filtered"];
    scene.leaves_alone(
        &all,
        |scene| scene.world.apply("BGPFilter", "some", &reject("10.1.0.0/16", "fd01::/32")),
        |scene| scene.learnt("filtered", false) == 1 && scene.learnt("filtered", true) == 1,
        "a filter takes routes away",
    );
    scene.leaves_alone(
        &all,
        |scene| scene.world.apply("BGPFilter", "some", &filter(json!([]))),
        |scene| scene.learnt("filtered", false) == 2 && scene.learnt("filtered", true) == 2,
        "a filter gives routes back",
    );

    // A password change ends its session, which is established again when both ends have the new one.
    let before = [false, true].map(|v6| scene.uptime("locked", v6));
    let others = ["outside", "inside", "filtered"];
    scene.leaves_alone(
        &others,
        |_| std::fs::write(secrets.join("locked"), "second").unwrap(),
        |scene| [false, true].iter().all(|v6| scene.uptime("locked", *v6).state != "Established"),
        "a password is changed",
    );
    scene.leaves_alone(
        &others,
        |scene| {
            scene
                .routers
                .get_mut("locked")
                .unwrap()
                .configure(|config| config.password = Some("second".into()))
        },
        |scene| {
            [false, true].into_iter().zip(&before).all(|(v6, before)| scene.came_back("locked", v6, before))
        },
        "the router has the new password too",
    );

    // A password that is too long for TCP MD5: its session is left out until the password changes.
    scene.leaves_alone(
        &others,
        |_| std::fs::write(secrets.join("locked"), "x".repeat(81)).unwrap(),
        |scene| {
            [false, true]
                .iter()
                .all(|v6| scene.world.session(&scene.routers["locked"].address(*v6)).is_null())
        },
        "a password is too long",
    );
    scene.leaves_alone(
        &others,
        |_| std::fs::write(secrets.join("locked"), "second").unwrap(),
        |scene| [false, true].iter().all(|v6| scene.uptime("locked", *v6).state == "Established"),
        "the password is short again",
    );

    // Add and remove a peer.
    scene.leaves_alone(
        &all,
        |scene| {
            let router = scene.world.router(RouterConfig { number: 6, asn: 65004, ..plain.clone() });
            scene.world.peer("new", &router, 65004, &json!({}));
            scene.routers.insert("new", router);
        },
        |scene| {
            [false, true]
                .iter()
                .all(|v6| scene.uptime("new", *v6).state == "Established" && scene.learnt("new", *v6) == 2)
        },
        "a peer is added",
    );
    scene.leaves_alone(
        &all,
        |scene| drop(scene.world.calicoctl(&["delete", "bgppeer", "new-v4", "new-v6"], "")),
        |scene| {
            let gone = |v6: bool| scene.world.session(&scene.routers["new"].address(v6)).is_null();
            [false, true].iter().all(|v6| gone(*v6) && scene.routers["new"].up_since(*v6).is_none())
        },
        "a peer is removed",
    );
}
