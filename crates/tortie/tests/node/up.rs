//! `tortie up` makes a host a node, and `tortie down` reverts it.

use crate::takeover;
use crate::world::{TORTIE, TestNamespace, eventually, host};
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;

struct UpHost {
    dir: TempDir,
    namespace: TestNamespace,
}

impl UpHost {
    /// Runs a command that must succeed and returns its output.
    fn run(&self, command: &str, more: &[&str]) -> String {
        let output = self.output(command, more);
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command that must fail and returns its standard error.
    fn refused(&self, command: &str, more: &[&str]) -> String {
        let output = self.output(command, more);
        assert!(!output.status.success(), "{command}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn output(&self, command: &str, more: &[&str]) -> Output {
        let place = |name: &str| self.dir.path().join(name).display().to_string();
        let (state, run) = (place("state"), place("run"));
        // Ignore the configuration of this machine.
        let mut args = vec!["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "NODENAME=n1"];
        args.extend([TORTIE, command, "--state-dir", &state, "--run-dir", &run]);
        args.extend(more);
        self.namespace.try_exec(&args)
    }
}

impl Drop for UpHost {
    fn drop(&mut self) {
        for name in ["node", "datastore"] {
            let file = self.dir.path().join(format!("run/{name}.pid"));
            let text = std::fs::read_to_string(file).unwrap_or_default();
            if let Some(pid) = text.split_whitespace().next() {
                let _ = std::process::Command::new("kill").args(["-9", pid]).status();
            }
        }
    }
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn up_makes_a_node_and_down_leaves_nothing() {
    let dir = tempfile::Builder::new().prefix("tortie-up-").tempdir().unwrap();
    let host = UpHost { dir, namespace: host() };
    let place = |name: &str| host.dir.path().join(name);
    let (bin, conf) = (place("bin").display().to_string(), place("conf").display().to_string());
    let flags = ["--cni-bin-dir", &bin, "--cni-conf-dir", &conf];
    // The carrier of a new veth may appear slightly later.
    let list_routes = || host.namespace.ip(&["route"]).replace(" linkdown", "");
    let routes = list_routes();
    assert!(host.run("down", &[]).contains("nothing to take down"));
    // Files that cannot be replaced and restored are detected before anything is started.
    std::fs::create_dir_all(place("bin/calico-ipam")).unwrap();
    let said = host.refused("up", &flags);
    assert!(said.contains("bin/calico-ipam: is a directory"), "{said}");
    assert!(host.run("down", &[]).contains("nothing to take down"));
    std::fs::remove_dir(place("bin/calico-ipam")).unwrap();

    let said = host.run("up", &flags);
    assert!(said.contains("this host is a node"), "{said}");
    // A plugin of an older version, which was a link to the main program, is replaced.
    std::fs::remove_file(place("bin/calico")).unwrap();
    std::os::unix::fs::symlink(TORTIE, place("bin/calico")).unwrap();
    assert!(!host.run("up", &flags).contains("started"), "what runs is left as it is");
    assert!(std::fs::symlink_metadata(place("bin/calico")).unwrap().is_file());

    let list = std::fs::read_to_string(place("conf").join("10-calico.conflist")).unwrap();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let mut config = list["plugins"][0].clone();
    config["name"] = list["name"].clone();
    config["cniVersion"] = list["cniVersion"].clone();
    std::fs::write(place("config"), config.to_string()).unwrap();
    let pod = TestNamespace::new("pod");
    let line = format!(
        "CNI_COMMAND=ADD CNI_CONTAINERID=c1 CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH={bin} {bin}/calico < {}",
        pod.path(),
        place("config").display()
    );
    let added = host.namespace.try_exec(&["sh", "-c", &line]);
    assert!(added.status.success(), "{added:?}");
    assert!(host.namespace.ip(&["route"]).contains("calic1"));

    let counters = host.namespace.try_exec(&[TORTIE, "policy", "counters", "-o", "json"]);
    let counters: serde_json::Value = serde_json::from_slice(&counters.stdout).unwrap();
    assert_eq!(counters[0]["policy"], "profile/tortie", "{counters}");

    // `down` refuses to disconnect a running container.
    let said = host.refused("down", &[]);
    assert!(said.contains("container c1 (eth0") && said.contains("--force"), "{said}");
    assert!(host.namespace.ip(&["route"]).contains("calic1"), "nothing was changed");
    let note = "{kind: GlobalNetworkSet, apiVersion: projectcalico.org/v3, metadata: {name: note}}";
    std::fs::write(place("note.yaml"), note).unwrap();
    let store = format!("ETCD_ENDPOINTS=unix://{}", place("run/datastore.sock").display());
    let note = place("note.yaml").display().to_string();
    host.namespace.exec(&["env", &store, TORTIE, "ctl", "apply", "-f", &note]);

    let said = host.run("down", &["--force"]);
    assert!(said.contains("no longer a node"), "{said}");
    for line in ["removed: the network of container c1", "removed: the node", "kept: the datastore in"] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let counters = host.namespace.try_exec(&[TORTIE, "policy", "counters"]);
    let said = String::from_utf8_lossy(&counters.stderr);
    assert!(!counters.status.success() && said.contains("no policy is enforced here"), "{said}");
    assert_eq!(list_routes(), routes);
    assert!(!host.namespace.ip(&["link"]).contains("cali"));
    assert_eq!(files(&place("state")), ["datastore"], "data stays");

    // Another `up` finds the data; `--purge` removes everything.
    host.run("up", &flags);
    host.namespace.exec(&["env", &store, TORTIE, "ctl", "get", "globalnetworkset", "note"]);
    let said = host.run("down", &["--purge"]);
    assert!(said.contains("removed: the datastore in"), "{said}");
    for dir in ["bin", "conf", "state", "run"] {
        assert_eq!(files(&place(dir)), Vec::<String>::new(), "{dir}");
    }
}

#[test]
fn daemons_are_restarted_until_down() {
    let dir = tempfile::Builder::new().prefix("tortie-up-").tempdir().unwrap();
    let host = UpHost { dir, namespace: host() };
    let place = |name: &str| host.dir.path().join(name);
    let (bin, conf) = (place("bin").display().to_string(), place("conf").display().to_string());
    host.run("up", &["--cni-bin-dir", &bin, "--cni-conf-dir", &conf]);
    // Returns the process of the daemon, not of its supervisor.
    let daemon = |name: &str| -> Option<String> {
        let supervisor = std::fs::read_to_string(place(&format!("run/{name}.pid"))).ok()?;
        let supervisor = supervisor.split_whitespace().next()?.to_owned();
        let children =
            std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).ok()?;
        children.split_whitespace().next().map(str::to_owned)
    };
    let healthy =
        || host.namespace.try_exec(&[TORTIE, "health", "--run-dir", &place("run").display().to_string()]);
    for name in ["node", "datastore"] {
        let first = daemon(name).unwrap();
        // The supervisor does not restart a daemon that ends right after its start; wait until it has run long
        // enough.
        eventually("it has run for a while", || {
            let stat = std::fs::read_to_string(format!("/proc/{first}/stat")).unwrap_or_default();
            let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
            let started: f64 = stat.rsplit(") ").next().unwrap().split(' ').nth(19).unwrap().parse().unwrap();
            let now: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
            now - started / 100.0 > 7.0
        });
        assert!(std::process::Command::new("kill").args(["-9", &first]).status().unwrap().success());
        eventually("another one runs", || daemon(name).is_some_and(|second| second != first));
        let log = std::fs::read_to_string(place(&format!("run/{name}.log"))).unwrap();
        assert!(log.contains(&format!("supervisor: {name} ended (signal: 9 (SIGKILL))")), "{log}");
    }
    eventually("the node is healthy again", || healthy().status.success());
    let (node, store) = (daemon("node").unwrap(), daemon("datastore").unwrap());
    host.run("down", &["--purge"]);
    for pid in [node, store] {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is still there");
    }
}

/// Calico's plugin list with additions by operators.
const CALICO_CONFLIST: &str = r#"{"name": "pods", "cniVersion": "0.3.1", "plugins": [
    {"type": "calico", "nodename": "n1", "mtu": 1430, "datastore_type": "etcdv3",
     "ipam": {"type": "calico-ipam", "ipv4_pools": ["10.77.0.0/24"]}, "container_settings": {"allow_ip_forwarding": true}},
    {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}]}"#;

#[test]
fn a_calico_host_keeps_pods_and_files() {
    let dir = tempfile::Builder::new().prefix("tortie-up-").tempdir().unwrap();
    let host = UpHost { dir, namespace: host() };
    let place = |name: &str| host.dir.path().join(name);
    let (bin, conf) = (place("bin").display().to_string(), place("conf").display().to_string());
    let flags = ["--cni-bin-dir", &bin, "--cni-conf-dir", &conf];
    let originals = [
        ("bin/calico", "Calico's plugin"),
        ("bin/calico-ipam", "Calico's address management"),
        ("conf/10-calico.conflist", CALICO_CONFLIST),
    ];
    for dir in ["bin", "conf"] {
        std::fs::create_dir(place(dir)).unwrap();
    }
    for (name, text) in originals {
        std::fs::write(place(name), text).unwrap();
    }
    let assert_originals = || {
        for (name, text) in originals {
            assert_eq!(std::fs::read_to_string(place(name)).unwrap(), text, "{name}");
        }
        let left = (files(&place("bin")).len(), files(&place("conf")).len());
        assert_eq!(left, (2, 1), "{:?}", [files(&place("bin")), files(&place("conf"))]);
    };
    let _pod = takeover::wired(&host.namespace);

    // An empty file, as after a power failure.
    std::fs::write(place("conf/10-calico.conflist"), "").unwrap();
    let said = host.run("up", &[&flags[..], &["--check"]].concat());
    assert!(
        said.contains("is not JSON: it is kept") && said.contains("this host can become a node"),
        "{said}"
    );
    std::fs::write(place("conf/10-calico.conflist"), CALICO_CONFLIST).unwrap();
    let said = host.run("up", &[&flags[..], &["--check"]].concat());
    assert!(said.contains("the network pods") && said.contains("nothing was changed"), "{said}");
    assert!(!place("state").exists());
    assert_originals();
    let said = host.run("up", &flags);
    assert!(said.contains("containers join network pods by"), "{said}");
    let list = std::fs::read_to_string(place("conf/10-calico.conflist")).unwrap();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let mut expected: serde_json::Value = serde_json::from_str(CALICO_CONFLIST).unwrap();
    expected["plugins"][0].as_object_mut().unwrap().remove("nodename");
    expected["plugins"][0]["tortie_socket"] = place("run/cni.sock").display().to_string().into();
    assert_eq!(list, expected);
    let networks = files(&place("conf"));
    let read =
        networks.iter().filter(|name| [".conf", ".conflist", ".json"].iter().any(|end| name.ends_with(end)));
    assert_eq!(read.count(), 1, "a runtime sees one network: {networks:?}");

    // A workload that is visible only in the kernel.
    let said = host.refused("down", &[]);
    assert!(
        said.contains(&format!("interface {}", takeover::POD_INTERFACE))
            && said.contains("nothing was changed"),
        "{said}"
    );
    // Returning the host and taking it over again loses nothing.
    let said = host.run("down", &["--keep-pods", "--now"]);
    assert!(said.contains("this host is free for Calico"), "{said}");
    assert_originals();
    assert!(host.namespace.ip(&["route"]).contains(takeover::POD_INTERFACE));
    host.run("up", &flags);
    let store = format!("ETCD_ENDPOINTS=unix://{}", place("run/datastore.sock").display());
    for (name, text) in [("profile", takeover::PROFILE), ("endpoint", &takeover::endpoint())] {
        std::fs::write(place(name), text).unwrap();
        host.namespace.exec(&[
            "env",
            &store,
            TORTIE,
            "ctl",
            "apply",
            "-f",
            &place(name).display().to_string(),
        ]);
    }
    // A container that Calico attached and the node has adopted.
    eventually("the container is adopted", || place("state/attachments/old:eth0.json").exists());
    let said = host.refused("down", &[]);
    assert!(said.contains("container old (eth0, endpoint default/n1-cni-old-eth0)"), "{said}");
    assert!(host.namespace.ip(&["route"]).contains(takeover::POD_INTERFACE), "nothing was changed");
    eventually("our policy guards the container", || {
        let ruleset = host.namespace.try_exec("nft list table inet tortie").stdout;
        String::from_utf8_lossy(&ruleset).contains(takeover::POD_INTERFACE)
    });
    // Felix does not protect it: the daemons keep running.
    let said = host.refused("down", &["--keep-pods", "--felix-timeout", "0"]);
    assert!(said.contains(takeover::POD_INTERFACE) && said.contains("nothing was removed"), "{said}");
    let said = host.run("up", &flags);
    assert!(!said.contains("started"), "{said}");
    let said = host.run("down", &["--force", "--purge"]);
    assert!(said.contains("removed: the network of container old"), "{said}");
    assert!(!host.namespace.has_link(takeover::POD_INTERFACE));
    assert_originals();
}
