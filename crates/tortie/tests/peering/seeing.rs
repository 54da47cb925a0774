//! How a node reports its BGP state: CalicoNodeStatus, readiness, metrics.

use crate::router::{NODE_AS, RouterConfig};
use crate::world::PeeringFixture;
use serde_json::{Value, json};
use tortie_testkit::eventually_showing;

fn announced() -> Vec<(String, String)> {
    ["10.1.0.0/16", "fd01::/32"].map(|net| (net.to_owned(), String::new())).into()
}

impl PeeringFixture {
    fn node_status(&self, name: &str) -> Value {
        serde_json::from_str(&self.calicoctl(&["get", "caliconodestatus", name, "-o", "json"], "")).unwrap()
    }

    fn page(&self, url: &str) -> (String, String) {
        let output = self.host.try_exec(&["curl", "-s", "-w", "\n%{http_code}", url]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, code) = text.rsplit_once('\n').unwrap();
        (code.to_owned(), body.to_owned())
    }

    fn metric(&self, line: &str) -> Option<f64> {
        let (_, body) = self.page("http://localhost:9091/metrics");
        let found = body.lines().find_map(|known| known.strip_prefix(line)?.strip_prefix(' '))?;
        found.parse().ok()
    }

    /// Runs `tortie health WORDS...` on the node; returns whether it succeeds, and its output.
    fn health(&self, words: &[&str]) -> (bool, String) {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_tortie"));
        command.arg("health").args(words).env("TORTIE_RUN_DIR", self.dir.path().join("run"));
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[test]
fn the_state_of_a_node_is_shown() {
    let mut world = PeeringFixture::new();
    let pod = world.pod("pod", ["default-ipv4-ippool", "default-ipv6-ippool"]);
    assert_eq!(pod.len(), 2);
    let router = world.router(RouterConfig {
        number: 2,
        asn: 65001,
        announces: announced(),
        ..RouterConfig::default()
    });
    let picture = |world: &PeeringFixture| format!("{:#}\n{}", world.node_status("all"), world.picture());
    let ask = |world: &PeeringFixture, name: &str, node: &str, classes: &[&str], period: u32| {
        world.apply(
            "CalicoNodeStatus",
            name,
            &json!({"node": node, "classes": classes, "updatePeriodSeconds": period}),
        );
    };
    ask(&world, "all", "n1", &["Agent", "BGP", "Routes"], 1);
    ask(&world, "once", "n1", &["Agent"], 0);
    ask(&world, "other", "n2", &["Agent"], 1);
    world.peer("outside", &router, 65001, &json!({}));
    world.wait_until_up(&router);
    eventually_showing(
        "the status has both sessions and what they brought",
        || {
            let status = &world.node_status("all")["status"];
            let routes = |list: &str| status["routes"][list].as_array().map_or(0, Vec::len);
            status["bgp"]["numberEstablishedV4"] == 1
                && status["bgp"]["numberEstablishedV6"] == 1
                && (routes("routesV4"), routes("routesV6")) == (2, 2)
        },
        || picture(&world),
    );
    let status = world.node_status("all")["status"].clone();
    for (family, v6) in [("V4", false), ("V6", true)] {
        let agent = &status["agent"][format!("bird{family}")];
        assert_eq!(agent["state"], "Ready", "{status:#}");
        assert_eq!(agent["routerID"], "10.88.0.1");
        for field in ["version", "lastBootTime", "lastReconfigurationTime"] {
            assert!(agent[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {agent:#}");
        }
        let peer = &status["bgp"][format!("peers{family}")][0];
        assert_eq!(peer["peerIP"], router.address(v6), "{status:#}");
        assert_eq!((&peer["type"], &peer["state"]), (&json!("NodePeer"), &json!("Established")));
        assert!(peer["since"].as_str().unwrap().ends_with('Z'), "{peer}");
        let routes = status["routes"][format!("routes{family}")].as_array().unwrap();
        let find =
            |from: &str| routes.iter().find(|route| route["learnedFrom"]["sourceType"] == from).unwrap();
        let learnt = find("BGPPeer");
        assert_eq!(learnt["destination"], if v6 { "fd01::/32" } else { "10.1.0.0/16" });
        assert_eq!((&learnt["type"], &learnt["interface"]), (&json!("FIB"), &json!("eth0")), "{learnt}");
        assert_eq!(
            (&learnt["gateway"], &learnt["learnedFrom"]["peerIP"]),
            (&json!(router.address(v6)), &json!(router.address(v6)))
        );
        let own = find("Static");
        assert_eq!((&own["gateway"], &own["interface"]), (&json!("N/A"), &json!("blackhole")), "{own}");
    }
    // The status has only the requested classes, and only the named node writes it.
    let once = world.node_status("once");
    assert_eq!(once["status"]["agent"]["birdV4"]["state"], "Ready", "{once:#}");
    assert!(once["status"].get("bgp").is_none() && once["status"].get("routes").is_none(), "{once:#}");
    assert_eq!(world.node_status("other")["status"], json!({}));

    // An unchanged status is not written again.
    let periods = std::time::Duration::from_millis(2500);
    let stays = || {
        let revision = || world.node_status("all")["metadata"]["resourceVersion"].clone();
        let before = revision();
        std::thread::sleep(periods);
        before == revision()
    };
    eventually_showing("a status that stays the same stays as it was written", stays, || picture(&world));

    // A failure of one family does not change the report of the other.
    router.birdc("disable node6");
    eventually_showing(
        "the lost session is reported",
        || world.node_status("all")["status"]["bgp"]["numberNotEstablishedV6"] == 1,
        || picture(&world),
    );
    let now = world.node_status("all")["status"].clone();
    assert_eq!(now["bgp"]["peersV4"], status["bgp"]["peersV4"]);
    assert_eq!(now["routes"]["routesV4"], status["routes"]["routesV4"]);
    assert_ne!(now["bgp"]["peersV6"][0]["state"], "Established");
}

#[test]
fn probes_and_scrapers_see_the_sessions() {
    let world = PeeringFixture::new();
    let ready = |world: &PeeringFixture| world.page("http://localhost:9099/readiness");
    let flags =
        ["--felix-live", "--felix-ready", "--bird-live", "--bird6-live", "--bird-ready", "--bird6-ready"];
    eventually_showing("a node without peers is ready", || ready(&world).0 == "200", || world.picture());
    assert_eq!(world.health(&flags), (true, String::new()));
    let (healthy, said) = world.health(&[]);
    assert!(healthy && said.contains("ok         dataplane: "), "{said}");

    // No router is running yet.
    world.apply("BGPPeer", "away-v4", &json!({"node": "n1", "peerIP": "10.88.0.2", "asNumber": 65001}));
    world.apply("BGPPeer", "away-v6", &json!({"node": "n1", "peerIP": "fd88::2", "asNumber": 65001}));
    let names_both = || {
        let (code, page) = ready(&world);
        code == "503" && page.contains("BGP not established with 10.88.0.2,fd88::2")
    };
    eventually_showing("a node whose peers are away is not", names_both, || world.picture());
    // The first line is Calico's; lines with the reason of each session may follow.
    let is_missing = |flags: &[&str], part: &str, ip: &str| {
        let (healthy, text) = world.health(flags);
        let expected =
            format!("calico/node is not ready: {part} is not ready: BGP not established with {ip}");
        !healthy && text.lines().next() == Some(&expected)
    };
    assert!(is_missing(&["--bird-ready"], "BIRD", "10.88.0.2"), "{:?}", world.health(&["--bird-ready"]));
    assert!(is_missing(&["--bird6-ready"], "BIRD6", "fd88::2"), "{:?}", world.health(&["--bird6-ready"]));
    assert_eq!(world.health(&["--felix-live", "--bird-live"]), (true, String::new()));
    let sessions = |state: &str| world.metric(&format!("bgp_sessions{{state=\"{state}\"}}"));
    assert_eq!(sessions("Established"), Some(0.0));

    let router = world.router(RouterConfig {
        number: 2,
        asn: 65001,
        announces: announced(),
        ..RouterConfig::default()
    });
    let inside = world.router(RouterConfig { number: 3, asn: NODE_AS, ..RouterConfig::default() });
    world.wait_until_up(&router);
    eventually_showing(
        "a node with all its sessions is ready",
        || ready(&world).0 == "200",
        || world.picture(),
    );
    assert_eq!(world.health(&flags), (true, String::new()));
    world.peer("inside", &inside, NODE_AS, &json!({}));
    world.wait_until_up(&inside);
    inside.birdc("disable all");
    // With a long threshold all peers are required, with none a single one is enough.
    eventually_showing(
        "with patience all peers count",
        || is_missing(&["--bird-ready", "--threshold-time", "1h"], "BIRD", "10.88.0.3"),
        || world.picture(),
    );
    assert_eq!(world.health(&["--bird-ready", "--threshold-time", "0s"]), (true, String::new()));
    // After the start, a lost peer is a warning: the node stays ready.
    let warns = || {
        let (healthy, text) = world.health(&[]);
        let mut lines = text.lines();
        let bgp = lines.find(|line| line.starts_with("warning    bgp: 2 of 4 sessions established; down: "));
        healthy && bgp.is_some_and(|line| line.contains("10.88.0.3") && line.contains("fd88::3"))
    };
    eventually_showing("health counts the sessions and names the peers", warns, || {
        format!("{}\n{}", world.health(&[]).1, world.picture())
    });
    assert_eq!(ready(&world).0, "200");

    // The metrics report the same.
    let picture = || format!("{}\n{}", world.page("http://localhost:9091/metrics").1, world.picture());
    let peer = |name: &str, address: &str| format!("peer=\"{name}\",address=\"{address}\"");
    let outside = [peer("Node_10_88_0_2", "10.88.0.2"), peer("Node_fd88__2", "fd88::2")];
    eventually_showing(
        "two sessions are up and two are not",
        || sessions("Established") == Some(2.0),
        picture,
    );
    for (labels, family) in outside.iter().zip(["ipv4", "ipv6"]) {
        let metric = |name: &str, more: &str| world.metric(&format!("{name}{{{labels}{more}}}"));
        assert_eq!(metric("bgp_session_up", ""), Some(1.0), "{}", picture());
        let prefixes = |direction: &str| {
            metric("bgp_prefixes", &format!(",family=\"{family}\",direction=\"{direction}\""))
        };
        assert_eq!((prefixes("in"), prefixes("out")), (Some(1.0), Some(0.0)), "{}", picture());
        assert!(metric("bgp_updates_total", ",direction=\"in\"").unwrap() >= 1.0, "{}", picture());
        assert!(metric("bgp_messages_total", ",direction=\"out\"").unwrap() >= 1.0, "{}", picture());
        assert_eq!(metric("bgp_session_flaps_total", ""), Some(0.0), "{}", picture());
        assert_eq!(metric("bgp_bad_messages_total", ",outcome=\"reset\""), Some(0.0), "{}", picture());
        assert_eq!(world.metric(&format!("bgp_routes{{family=\"{family}\"}}")), Some(1.0), "{}", picture());
    }
    let gone = peer("Node_10_88_0_3", "10.88.0.3");
    assert_eq!(world.metric(&format!("bgp_session_up{{{gone}}}")), Some(0.0), "{}", picture());
    assert_eq!(world.metric(&format!("bgp_session_flaps_total{{{gone}}}")), Some(1.0), "{}", picture());
    assert!(world.metric("bgp_fib_lag_seconds_count").unwrap() >= 1.0, "{}", picture());

    // A removed peer has no metrics, and its routes are removed.
    world.calicoctl(&["delete", "bgppeer", "inside-v4", "inside-v6"], "");
    eventually_showing(
        "it is gone",
        || world.metric(&format!("bgp_session_up{{{gone}}}")).is_none(),
        picture,
    );
}
