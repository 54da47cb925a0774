//! The container's namespace or the datastore disappears in the middle of a request.

use crate::crash::{STEPS_OF_ADD, STEPS_OF_DEL};
use crate::world::{NodeFixture, eventually, said};

#[test]
fn a_namespace_that_vanishes_during_add_leaves_nothing() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    for step in STEPS_OF_ADD {
        let pod = world.container();
        let (config, path) = (world.config(), pod.path());
        let hold = world.start_held_at(step);
        let plugin = world.begin("calico", "ADD", "c1", &path, &config.to_string(), "");
        hold.wait();
        drop(pod);
        hold.let_go();
        let said = said(plugin);
        if ["add-journalled", "add-assigned"].contains(&step) {
            assert_eq!(said.code(), 999, "{step}: {said:?}");
            world.assert_clean(step);
        }
        // If it was already attached, it is cleaned up by the node itself or by the runtime's DEL.
        world.must("DEL", "c1", &path, &config);
        world.assert_clean(step);
    }
}

#[test]
fn an_outage_during_add_leaks_nothing() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    for step in STEPS_OF_ADD {
        let pod = world.container();
        let config = world.config();
        let hold = world.start_held_at(step);
        let plugin = world.begin("calico", "ADD", "c1", &pod.path(), &config.to_string(), "");
        hold.wait();
        world.stop_store();
        hold.let_go();
        let said = said(plugin);
        world.start_store();
        if said.success {
            // Everything was already stored.
            assert!(["add-stored", "add-programmed"].contains(&step), "{step}: {said:?}");
            world.must("DEL", "c1", &pod.path(), &config);
        } else {
            assert_eq!(said.code(), 11, "{step}: {said:?}\n{}", world.log());
        }
        eventually("what was begun is undone", || world.traces().is_empty());
        world.assert_clean(step);
        assert!(!pod.ip(&["link"]).contains("eth0"), "{step}");
    }
}

#[test]
fn an_outage_during_del_is_written_later() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    for step in STEPS_OF_DEL {
        let pod = world.container();
        let config = world.config();
        let hold = world.start_held_at(step);
        world.must("ADD", "c1", &pod.path(), &config);
        let plugin = world.begin("calico", "DEL", "c1", &pod.path(), &config.to_string(), "");
        hold.wait();
        world.stop_store();
        hold.let_go();
        let said = said(plugin);
        assert!(said.success || said.code() == 11, "{step}: {said:?}\n{}", world.log());
        world.start_store();
        // No further request arrives: the node finishes by itself.
        eventually("the removal is finished", || world.traces().is_empty());
        world.assert_clean(step);
        assert!(!pod.ip(&["link"]).contains("eth0"), "{step}");
    }
}
