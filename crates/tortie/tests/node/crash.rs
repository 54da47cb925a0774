//! The daemon or the plugin is killed at every step of ADD and DEL; no partial state remains.

use crate::world::{NodeFixture, eventually};
use std::io::{Read, Write};
use std::net::Shutdown;

pub const STEPS_OF_ADD: [&str; 5] =
    ["add-journalled", "add-assigned", "add-attached", "add-stored", "add-programmed"];
pub const STEPS_OF_DEL: [&str; 5] =
    ["del-journalled", "del-unstored", "del-detached", "del-released", "del-dismantled"];

#[test]
fn a_kill_during_add_leaks_nothing() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    for step in STEPS_OF_ADD {
        let pod = world.container();
        let config = world.config();
        world.start(&[("TORTIE_FAILPOINT", step)]);
        assert_eq!(world.cni("ADD", "c1", &pod.path(), &config).code(), 11, "{step}");
        world.start(&[]);
        world.assert_clean(step);
        assert!(!pod.ip(&["link"]).contains("eth0"), "{step}");
        world.must("DEL", "c1", &pod.path(), &config);
        world.must("ADD", "c1", &pod.path(), &config);
        world.must("DEL", "c1", &pod.path(), &config);
        world.assert_clean(step);
    }
}

#[test]
fn a_kill_during_del_leaks_nothing() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    for step in STEPS_OF_DEL {
        let pod = world.container();
        let config = world.config();
        world.start(&[("TORTIE_FAILPOINT", step)]);
        world.must("ADD", "c1", &pod.path(), &config);
        assert_eq!(world.cni("DEL", "c1", &pod.path(), &config).code(), 11, "{step}");
        world.start(&[]);
        world.assert_clean(step);
        world.must("DEL", "c1", &pod.path(), &config);
    }
}

#[test]
fn killing_the_plugin_during_add_leaks_nothing() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    for step in STEPS_OF_ADD {
        let pod = world.container();
        let config = world.config();
        let hold = world.start_held_at(step);
        let mut plugin = world.begin("calico", "ADD", "c1", &pod.path(), &config.to_string(), "");
        hold.wait();
        plugin.kill().unwrap();
        plugin.wait().unwrap();
        hold.let_go();
        // No runtime has received a result for this attachment, so none may ever request its removal.
        eventually("an unanswered ADD is rolled back", || world.traces().is_empty());
        assert!(!pod.ip(&["link"]).contains("eth0"), "{step}");
        world.must("DEL", "c1", &pod.path(), &config);
        let first = world.must("ADD", "c1", &pod.path(), &config);
        // A repeated ADD without a reader for its answer: the attachment that was already answered stays.
        world.connect().write_all(&world.request("ADD", "c1", &pod.path(), &config)).unwrap();
        assert_eq!(world.must("ADD", "c1", &pod.path(), &config).json, first.json, "{step}");
        world.must("DEL", "c1", &pod.path(), &config);
        world.assert_clean(step);
    }
}

#[test]
fn killing_the_plugin_during_del_leaks_nothing() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    for step in STEPS_OF_DEL {
        let pod = world.container();
        let config = world.config();
        let hold = world.start_held_at(step);
        world.must("ADD", "c1", &pod.path(), &config);
        let mut plugin = world.begin("calico", "DEL", "c1", &pod.path(), &config.to_string(), "");
        hold.wait();
        plugin.kill().unwrap();
        plugin.wait().unwrap();
        hold.let_go();
        eventually("the removal is finished", || world.traces().is_empty());
        world.must("DEL", "c1", &pod.path(), &config);
        world.assert_clean(step);
    }
}

#[test]
fn half_a_request_does_nothing() {
    let world = NodeFixture::new();
    let pod = world.container();
    let request = world.request("ADD", "c1", &pod.path(), &world.config());
    for length in [0, 1, request.len() / 2, request.len() - 1] {
        let mut stream = world.connect();
        stream.write_all(&request[..length]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("1\n") && answer.contains("failed to decode"), "{length}: {answer}");
    }
    world.assert_clean("half a request");
}

#[test]
fn what_dies_without_a_word_is_collected() {
    let world = NodeFixture::new();
    let (dead, alive) = (world.container(), world.container());
    let config = world.config();
    world.must("ADD", "c1", &alive.path(), &config);
    let before = world.traces();
    world.must("ADD", "c2", &dead.path(), &config);
    drop(dead);
    eventually("the node misses the namespace", || world.traces() == before);
    world.must("CHECK", "c1", &alive.path(), &config);
}
