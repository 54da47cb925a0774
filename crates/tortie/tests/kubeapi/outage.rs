//! kube-apiserver goes down under traffic and returns with its history compacted. `TORTIE_OUTAGE_SECONDS` sets the
//! duration of the outage.

use crate::world::KubernetesNodeFixture;
use serde_json::json;
use std::fs::File;
use std::time::{Duration, Instant};
use tortie_testkit::{CalicoGroup, TestProcess, eventually};

in_both_groups! { an_outage_changes_nothing_and_loses_no_event }

fn an_outage_changes_nothing_and_loses_no_event(group: CalicoGroup) {
    let mut world = KubernetesNodeFixture::new(group);
    let web = world.add("shop", "web", json!({"role": "web"}));
    let client = world.add("shop", "client", json!({"role": "client"}));
    let other = world.add("other", "other", json!({}));
    let role = json!({"podSelector": {"matchLabels": {"role": "client"}}});
    world.apply_policy("open", json!({"podSelector": {}, "ingress": [{"from": [role]}]}));
    world.wait_for(&client, &web, true);
    world.wait_for(&other, &web, false);

    // Record every write to the kernel.
    let files = tempfile::tempdir().unwrap();
    let listen = |name: &str, words: &[&str]| {
        let mut command = world.host.command(words[0]);
        command.args(&words[1..]).stdout(File::create(files.path().join(name)).unwrap());
        TestProcess::start(&mut command)
    };
    let written = |name: &str| std::fs::read_to_string(files.path().join(name)).unwrap();
    let _listeners = [listen("nft", &["nft", "monitor"]), listen("ip", &["ip", "monitor", "route", "link"])];
    // The monitors are running once they report changes of this test.
    eventually("the listeners hear", || {
        world.host.nft("add table inet probe\ndelete table inet probe\n");
        world.host.ip("route replace 192.0.2.0/24 dev eth0");
        world.host.ip("route del 192.0.2.0/24 dev eth0");
        written("nft").contains("probe") && written("ip").contains("192.0.2.0")
    });
    let ours = |name: &str| -> Vec<String> {
        let said = written(name);
        let foreign = |line: &&str| {
            line.contains("probe") || line.contains("192.0.2.0") || line.starts_with("# new generation")
        };
        said.lines().filter(|line| !foreign(line)).map(str::to_owned).collect()
    };
    let log = files.path().join("ping");
    let mut ping = client.netns.command("ping");
    ping.args(["-n", "-i", "0.02", &web.addresses[0]]).stdout(File::create(&log).unwrap());
    let _ping = TestProcess::start(&mut ping);
    let answers = || std::fs::read_to_string(&log).unwrap().matches(" ms\n").count();
    // Returns the sequence numbers of the answered packets, in order.
    let answered = || -> Vec<usize> {
        let said = std::fs::read_to_string(&log).unwrap();
        let whole = said.split_inclusive('\n').filter(|line| line.ends_with(" ms\n"));
        whole.filter_map(|line| line.split("icmp_seq=").nth(1)?.split(' ').next()?.parse().ok()).collect()
    };

    let lost = |world: &KubernetesNodeFixture| world.log().matches("the datastore is out of reach").count();
    let back = |world: &KubernetesNodeFixture| world.log().matches("the datastore is back").count();
    world.server.stop();
    let away = Instant::now();
    eventually("the node notices", || lost(&world) == 1);
    let before = answers();
    eventually("traffic goes on", || answers() > before + 100);
    let seconds = std::env::var("TORTIE_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    std::thread::sleep(Duration::from_secs(seconds).saturating_sub(away.elapsed()));
    println!("the API server is away for {:?}, {} packets pass", away.elapsed(), answers() - before);
    world.server.resume();
    // Watches cannot resume from a revision before the outage.
    world.server.forget_the_past();
    eventually("the node is back", || back(&world) == 1);
    assert_eq!(lost(&world), 1, "{}", world.log());
    // The client of Kubernetes does not log each attempt.
    assert!(!world.log().contains("failed with error"), "{}", world.log());
    let heard = answered();
    let lost_packets: Vec<usize> = (1..=heard.len()).filter(|number| !heard.contains(number)).collect();
    assert_eq!(lost_packets, Vec::<usize>::new(), "of {}", heard.len());
    assert_eq!(ours("nft"), Vec::<String>::new(), "{}", world.log());
    assert_eq!(ours("ip"), Vec::<String>::new(), "{}", world.log());

    // Changes after the outage take effect: of pods, policies and namespaces.
    world
        .server
        .merge("/api/v1/namespaces/shop/pods/client", &json!({"metadata": {"labels": {"role": "x"}}}));
    world.wait_for(&client, &web, false);
    let team = json!({"namespaceSelector": {"matchLabels": {"team": "b"}}});
    world.apply_policy("open", json!({"podSelector": {}, "ingress": [{"from": [team]}]}));
    world.server.merge("/api/v1/namespaces/other", &json!({"metadata": {"labels": {"team": "b"}}}));
    world.wait_for(&other, &web, true);
    let late = world.add("shop", "late", json!({}));
    world.wait_for(&other, &late, true);
}
