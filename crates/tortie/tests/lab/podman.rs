//! podman as container runtime, through the CNI plugin list of a node.

use crate::{TestLab, family};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const BUSYBOX_PATH: &str = "/bin/busybox";

/// podman on a node of a lab with its own storage, settings and cgroups. Everything is removed on drop.
struct PodmanNode<'a> {
    lab: &'a TestLab,
    node: &'a str,
    dir: TempDir,
}

impl<'a> PodmanNode<'a> {
    fn on(lab: &'a TestLab, node: &'a str) -> PodmanNode<'a> {
        let dir = tempfile::Builder::new().prefix("tortie-podman-").tempdir().unwrap();
        let bin = dir.path().join("rootfs/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::copy(BUSYBOX_PATH, bin.join("busybox")).unwrap();
        let place = lab.dir();
        // Set the ulimits explicitly: a container may not raise the limits of the user who runs the tests.
        let settings = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
             [network]\nnetwork_backend = \"cni\"\ndefault_network = \"lab\"\n\
             cni_plugin_dirs = [\"{0}/bin\"]\nnetwork_config_dir = \"{0}/nodes/{node}/cni\"\n\
             [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n",
            place.display()
        );
        std::fs::write(dir.path().join("containers.conf"), settings).unwrap();
        PodmanNode { lab, node, dir }
    }

    fn output(&self, args: &[&str]) -> Output {
        let place = |name: &str| self.dir.path().join(name).display().to_string();
        let (root, runroot, tmp) = (place("root"), place("runroot"), place("tmp"));
        let mut all = vec!["exec", self.node, "--", "podman", "--storage-driver", "vfs"];
        all.extend(["--root", &root, "--runroot", &runroot, "--tmpdir", &tmp]);
        all.extend(args);
        self.lab.command(&all).env("CONTAINERS_CONF", place("containers.conf")).output().unwrap()
    }

    fn run(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(output.status.success(), "podman {args:?}: {output:?}\n{}", self.lab.picture());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn control_group(&self) -> String {
        format!("/tortie-test-{}", self.lab.name)
    }

    /// Starts a container that sleeps and returns its ID.
    fn start(&self, name: &str) -> String {
        let (rootfs, group) = (self.dir.path().join("rootfs").display().to_string(), self.control_group());
        let container = ["--name", name, "--network", "lab", "--cgroup-parent", &group];
        let command = ["--rootfs", &rootfs, "/bin/busybox", "sleep", "1000000"];
        self.run(&[&["run", "--detach"], &container[..], &command[..]].concat())
    }

    fn inside(&self, container: &str, command: &[&str]) -> String {
        self.run(&[&["exec", container, "/bin/busybox"], command].concat())
    }
}

impl Drop for PodmanNode<'_> {
    fn drop(&mut self) {
        let _ = self.output(&["rm", "--all", "--force", "--time", "0"]);
        // podman leaves the parent cgroup of its containers, one per hierarchy.
        let name = self.control_group();
        let _ = Command::new("find")
            .args(["/sys/fs/cgroup", "-depth", "-type", "d", "-path", &format!("*{name}*"), "-delete"])
            .output();
    }
}

/// Returns the addresses of a container's interface, without link-local ones.
fn addresses(podman: &PodmanNode, container: &str) -> Vec<String> {
    let printed = podman.inside(container, &["ip", "addr", "show", "dev", "eth0"]);
    let global = printed.lines().filter(|line| line.contains("scope global"));
    global
        .map(|line| line.split([' ', '/']).find(|word| word.contains(['.', ':'])).unwrap().to_owned())
        .collect()
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_below(&entry.path()));
        }
    }
    found
}

/// Returns the links, routes and neighbours of a node as text.
fn kernel(lab: &TestLab, node: &str) -> Vec<String> {
    let looks = [&["-o", "link"][..], &["-4", "route"], &["-6", "route"], &["-4", "neigh"]];
    let look = |args: &&[&str]| lab.run(&[&["exec", node, "--", "ip"], *args].concat());
    let lines = looks.iter().map(look).collect::<String>();
    // Neighbours on the lab's network change by themselves; keep only our entries.
    lines
        .lines()
        .filter(|line| line.contains("cali") || line.contains("blackhole"))
        .map(str::to_owned)
        .collect()
}

fn stored(lab: &TestLab) -> String {
    let script = format!("{}\netcdctl get --prefix /calico/", lab.run(&["env"]));
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_podman_container_is_a_workload_like_others() {
    let lab = TestLab::up(&["--nodes", "2"]);
    let far = lab.add("far", "node2", &[]);
    let near = lab.add("near", "node1", &[]);
    let podman = PodmanNode::on(&lab, "node1");
    let before = kernel(&lab, "node1");

    let id = podman.start("c1");
    let own = addresses(&podman, "c1");
    assert_eq!(own.len(), 2, "{own:?}");
    for address in far.iter().chain(&near) {
        podman.inside("c1", &["ping", "-c", "1", "-W", "10", address]);
    }
    for address in &own {
        lab.ping("far", address);
    }
    let endpoint = lab.run(&["ctl", "get", "workloadendpoints", "-A", "-o", "yaml"]);
    assert!(endpoint.contains(&id) && endpoint.contains(family(&own, false)), "{endpoint}");
    assert!(stored(&lab).contains(&format!("/handle/lab.{id}")), "{}", stored(&lab));
    let namespace = podman.run(&["inspect", "--format", "{{.NetworkSettings.SandboxKey}}", "c1"]);
    assert!(Path::new(&namespace).exists(), "{namespace}");

    podman.run(&["rm", "--force", "--time", "0", "c1"]);
    assert_eq!(kernel(&lab, "node1"), before);
    assert!(!Path::new(&namespace).exists(), "{namespace}");
    // No endpoint, handle, address or attachment record refers to its ID.
    let left = stored(&lab);
    assert!(!left.contains(&id), "{left}");
    let mut files = files_below(&lab.dir());
    files.extend(files_below(Path::new("/var/lib/cni")));
    files.retain(|path| path.display().to_string().contains(&id));
    assert_eq!(files, Vec::<PathBuf>::new());
    let check = lab.run(&["ctl", "ipam", "check"]);
    assert!(check.contains("found 0 problems"), "{check}");
}
