//! The daemon is killed at every step; the next start leaves nothing of what was half done.

use crate::world::World;

#[test]
fn a_kill_during_add_leaks_nothing() {
    let mut world = World::without_node("10.77.0.0/24");
    for step in ["add-journalled", "add-assigned", "add-attached", "add-stored", "add-programmed"] {
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
    let mut world = World::without_node("10.77.0.0/24");
    for step in ["del-journalled", "del-unstored", "del-detached", "del-released", "del-dismantled"] {
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
