//! A lab with Kubernetes; removing it must leave nothing behind.

use crate::pods::ListedPod;
use serde_json::Value;
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;
use tortie_testkit::{eventually, eventually_showing};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
/// Two clusters at once are too much for a small machine.
static CLUSTER_LOCK: Mutex<()> = Mutex::new(());

/// A lab with Kubernetes, removed on drop, also if the test fails.
pub struct KubernetesLab {
    name: String,
    dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// Returns the directory of the Kubernetes programs, which Cargo does not build.
fn programs() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kube/build");
    let output = Command::new(script).arg("dir").output().expect("scripts/kube/build");
    let dir = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    assert!(dir.join("kubelet").exists(), "{} has no kubelet: run `make kube` first", dir.display());
    dir
}

impl KubernetesLab {
    pub fn new() -> KubernetesLab {
        let alone = CLUSTER_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::Builder::new().prefix("tortie-kube-").tempdir().unwrap();
        KubernetesLab { name: format!("kube{}", std::process::id()), dir, _alone: alone }
    }

    /// Starts a lab and returns when all nodes are ready.
    pub fn up(arguments: &[&str]) -> KubernetesLab {
        let cluster = KubernetesLab::new();
        let output = cluster.begin(arguments).output().unwrap();
        assert!(output.status.success(), "lab up: {}", String::from_utf8_lossy(&output.stderr));
        cluster
    }

    /// Starts a lab whose `lab up` is killed as soon as the first node begins to start.
    pub fn half_way() -> KubernetesLab {
        let cluster = KubernetesLab::new();
        let mut child = cluster.begin(&["--nodes", "1"]).stderr(Stdio::null()).spawn().unwrap();
        let first = cluster.place().join("nodes/node1/machine/first");
        eventually("the first node starts", || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "lab up ended by itself: {ended:?}");
            first.exists()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        cluster
    }

    fn begin(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&["up", "--kubernetes"]);
        // Tests of DNS use the documented commands, which start it.
        command.args(["--no-dns", "--kube"]).arg(programs()).args(arguments);
        command
    }

    /// Returns the network namespace that connects the nodes.
    pub fn fabric(&self) -> String {
        format!("tortie-{}-net", self.name)
    }

    fn place(&self) -> PathBuf {
        self.dir.path().join("lab")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(TORTIE);
        command.args(["lab", "--name", &self.name, "--dir"]).arg(self.place()).args(arguments);
        command.stdin(Stdio::null()).env_remove("KUBECONFIG");
        command
    }

    /// Runs a documented command with a shell; it must succeed. `DIR` is the directory of the Kubernetes programs.
    pub fn shell(&self, line: &str) -> String {
        let line = line.replace(" DIR", &format!(" {}", programs().display()));
        let own = Path::new(TORTIE).parent().unwrap();
        let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        command.args(["-ec", &line]).env("PATH", path).env_remove("KUBECONFIG").stdin(Stdio::null());
        let output =
            command.env("TORTIE_LAB", &self.name).env("TORTIE_LAB_DIR", self.place()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn must(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "lab {arguments:?}: {said}\n{}", self.picture());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command of `tortie lab`, which must succeed.
    pub fn lab(&self, arguments: &[&str]) -> String {
        self.must(arguments)
    }

    /// Returns the path of a file that is removed with the lab. Nodes see it too.
    pub fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Returns the output of kubectl, or an empty string if it fails, as it may for a while on a busy machine.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.run(&[&["kubectl"], arguments].concat());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns whether kubectl succeeds, and its output.
    pub fn run_kubectl(&self, arguments: &[&str]) -> (bool, String) {
        let output = self.run(&[&["kubectl"], arguments].concat());
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// Applies objects that kubectl must reject and returns the error.
    pub fn refused(&self, objects: &str) -> String {
        let file = self.dir.path().join("refused.yaml");
        fs::write(&file, objects).unwrap();
        let (taken, said) = self.run_kubectl(&["apply", "--filename", &file.display().to_string()]);
        assert!(!taken, "{said}\n{objects}");
        said
    }

    pub fn apply(&self, objects: &str) {
        self.with_objects("apply", objects, &[]);
    }

    pub fn delete(&self, objects: &str) {
        self.with_objects("delete", objects, &["--ignore-not-found"]);
    }

    fn with_objects(&self, verb: &str, objects: &str, options: &[&str]) {
        let file = self.dir.path().join("objects.yaml");
        fs::write(&file, objects).unwrap();
        let file = file.display().to_string();
        let said = RefCell::new(String::new());
        eventually_showing(
            "kubectl takes the objects",
            || {
                let output = self.run(&[&["kubectl", verb, "--filename", &file], options].concat());
                *said.borrow_mut() = String::from_utf8_lossy(&output.stderr).into_owned();
                output.status.success()
            },
            || said.borrow().clone(),
        );
    }

    /// Merges a patch into an object by a direct request, which is faster than kubectl and must be accepted.
    pub fn merge(&self, path: &str, patch: &Value) {
        let text = fs::read_to_string(self.place().join("kubernetes/admin.kubeconfig")).unwrap();
        let config: Value = serde_json::from_str(&text).unwrap();
        let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.fabric(), "curl", "-skf", "-o", "/dev/null", "-X", "PATCH"]);
        command.args(["-H", &format!("Authorization: Bearer {}", text("/users/0/user/token"))]);
        command.args(["-H", "Content-Type: application/merge-patch+json", "-d", &patch.to_string()]);
        let output = command.arg(format!("{}{path}", text("/clusters/0/cluster/server"))).output().unwrap();
        assert!(output.status.success(), "{path}: {output:?}");
    }

    /// Runs kubectl, which must succeed, and returns its output.
    pub fn must_kubectl(&self, arguments: &[&str]) -> String {
        self.must(&[&["kubectl"], arguments].concat())
    }

    /// Returns the evaluator's verdict for a new flow.
    pub fn explains(&self, from: &str, to: &str, port: &str) -> bool {
        let output = self.run(&["explain", "--from", from, "--to", to, "--port", port]);
        match output.status.code() {
            Some(0) => true,
            Some(1) => false,
            other => panic!("explain --from {from} --to {to} --port {port}: {other:?} {output:?}"),
        }
    }

    /// Returns whether a command succeeds on a node.
    pub fn try_on(&self, node: &str, command: &[&str]) -> bool {
        self.run(&[&["exec", node, "--"], command].concat()).status.success()
    }

    /// Returns whether a command succeeds in a pod.
    pub fn try_in_pod(&self, namespace: &str, pod: &str, command: &[&str]) -> bool {
        self.run_kubectl(&[&["exec", "-n", namespace, pod, "--"], command].concat()).0
    }

    pub fn on(&self, node: &str, command: &[&str]) -> String {
        self.must(&[&["exec", node, "--"], command].concat())
    }

    pub fn ctl(&self, arguments: &[&str]) -> String {
        let output = self.run(&[&["ctl"], arguments].concat());
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        format!("{out}{err}")
    }

    pub fn ctl_json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.must(&[&["ctl"], arguments].concat())).unwrap()
    }

    pub fn ctl_apply(&self, objects: &str) {
        let file = self.dir.path().join("calico.yaml");
        fs::write(&file, objects).unwrap();
        self.must(&["ctl", "apply", "-f", &file.display().to_string()]);
    }

    pub fn pods_of(&self, namespace: &str, labels: &str) -> Vec<ListedPod> {
        ListedPod::read(&self.kubectl(&["get", "pods", "-n", namespace, "-l", labels, "-o", "json"]))
    }

    /// Returns all pods except those of kube-system.
    pub fn all_pods(&self) -> Vec<ListedPod> {
        let others = ["--field-selector", "metadata.namespace!=kube-system"];
        ListedPod::read(&self.kubectl(&[&["get", "pods", "-A", "-o", "json"][..], &others].concat()))
    }

    /// Returns the pods of the node daemon.
    pub fn daemons(&self) -> Vec<ListedPod> {
        self.pods_of("kube-system", "k8s-app=tortie-node")
    }

    /// Returns the state of the cluster, for failure messages.
    pub fn picture(&self) -> String {
        let mut text = String::new();
        for arguments in [
            &["kubectl", "get", "nodes,pods,services", "-A", "-o", "wide"][..],
            &["kubectl", "get", "events", "-A"],
            &["exec", "node1", "--", "ip", "route"],
            &["kubectl", "describe", "pods", "-n", "kube-system"],
            &["logs"],
        ] {
            let output = self.run(arguments);
            let out = String::from_utf8_lossy(&output.stdout);
            let lines: Vec<&str> = out.lines().collect();
            text += &format!("{arguments:?}\n{}\n", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
        text
    }

    /// Brings the lab down and asserts that nothing is left.
    pub fn down(&self) {
        self.must(&["down"]);
        self.down_already();
    }

    /// Asserts that nothing of the lab is left.
    pub fn down_already(&self) {
        assert!(!self.place().exists(), "{} is still there", self.place().display());
        let ours = format!("tortie-{}-", self.name);
        eventually("no process, no mount and no namespace is left", || self.traces(&ours).is_empty());
        assert_eq!(names("/run/netns", &ours), Vec::<String>::new());
        for hierarchy in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            let dir = hierarchy.path().display().to_string();
            assert_eq!(names(&dir, &ours), Vec::<String>::new(), "{dir}");
        }
        assert_eq!(names("/sys/fs/cgroup", &ours), Vec::<String>::new());
    }

    /// Returns processes that refer to this lab or have a mount of it.
    fn traces(&self, ours: &str) -> Vec<String> {
        let place = self.place().display().to_string();
        let own = std::process::id().to_string();
        let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let pid = entry.file_name().into_string().ok()?;
            let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
            let is_process = pid.bytes().all(|digit| digit.is_ascii_digit()) && pid != own;
            let said = String::from_utf8_lossy(&[read("cmdline"), read("mountinfo")].concat()).into_owned();
            (is_process && (said.contains(&place) || said.contains(ours))).then_some(pid)
        });
        processes.collect()
    }
}

/// Returns the entries of a directory whose names have the prefix.
fn names(dir: &str, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect()
}

impl Drop for KubernetesLab {
    fn drop(&mut self) {
        // Repeating `down` is harmless; resources that are still busy may be removable a moment later.
        for _ in 0..3 {
            if self.run(&["down"]).status.success() {
                return;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}
