//! `tortie node --leave --purge` restores the host to its state before the node.

use crate::world::NodeFixture;
use std::process::Output;

fn leave(world: &NodeFixture, environment: &[(&str, &str)]) -> Output {
    world.command(&[], environment).args(["--leave", "--purge"]).output().unwrap()
}

#[test]
fn a_host_that_leaves_is_clean() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let routes = |world: &NodeFixture| [["-4"], ["-6"]].map(|family| world.host.ip(&[family[0], "route"]));
    let before = routes(&world);
    let dirs = ["bin-of-host", "net-of-host"].map(|name| world.path(name));
    let originals = [
        (dirs[0].join("calico"), "Calico's plugin"),
        (
            dirs[1].join("10-calico.conflist"),
            r#"{"name": "pods", "plugins": [{"type": "calico", "mtu": 1430, "ipam": {"type": "calico-ipam"}},
                {"type": "portmap"}]}"#,
        ),
    ];
    for (path, text) in &originals {
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let [bin, net] = dirs.each_ref().map(|dir| dir.display().to_string());
    let environment =
        [("TORTIE_INSTALL_CNI", "true"), ("CNI_BIN_DIR", bin.as_str()), ("CNI_NET_DIR", net.as_str())];
    world.start(&environment);
    let container = world.container();
    world.must("ADD", "c1", &container.path(), &world.config());
    let list = || std::fs::read_to_string(&originals[1].0).unwrap();
    crate::world::eventually("the plugins are installed", || list().contains("nodename"));
    assert!(list().contains("1430") && list().contains("portmap") && list().contains("pods"), "{}", list());
    assert!(dirs[0].join("calico-ipam").exists());

    // Refused while a daemon is running.
    let refused = leave(&world, &environment[1..]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("is in use by another node daemon"), "{refused:?}");
    assert!(dirs[1].join("10-calico.conflist").exists());

    world.stop();
    let left = leave(&world, &environment[1..]);
    assert!(left.status.success(), "{left:?}");
    let said = String::from_utf8_lossy(&left.stdout).into_owned();
    assert!(said.contains("10-calico.conflist") && said.contains("no node any more"), "{said}");
    assert_eq!(routes(&world), before);
    assert!(!world.host.has_link("calic1"));
    let tables = world.host.exec("nft list tables");
    assert!(!tables.contains("tortie"), "{tables}");
    for ((path, text), dir) in originals.iter().zip(&dirs) {
        assert_eq!(std::fs::read_to_string(path).unwrap(), *text);
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 1, "{}", dir.display());
    }
    for dir in [&world.path("state/attachments"), &world.path("run/endpoint-status")] {
        let files: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().collect();
        assert!(files.is_empty(), "{}: {files:?}", dir.display());
    }
    // Leaving again is not an error.
    assert!(leave(&world, &environment[1..]).status.success());
}
