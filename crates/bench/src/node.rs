//! Runs a complete node: the embedded datastore, the daemon in a host's namespace, the plugins.

use crate::namespace::{Namespaces, Result};
use crate::process::{Process, tortie};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tortie_store::Config;
use tortie_testkit::install_plugins;

/// Name of the Node resource.
pub const NAME: &str = "bench";
pub const POOL: &str = "10.64.0.0/12";

pub struct Node {
    // In drop order.
    pub daemon: Process,
    pub store: Process,
    pub host: Arc<Namespaces>,
    pub dir: TempDir,
    program: PathBuf,
    backend: Option<String>,
}

impl Node {
    /// Starts a node and waits until it is ready. The node programs the routes to other nodes itself.
    pub fn start() -> Result<Node> {
        Node::on(Arc::new(Namespaces::host()?), Some("vxlan"))
    }

    /// Starts a node from another build, whose main binary also acts as the CNI plugin.
    pub fn start_other(program: PathBuf) -> Result<Node> {
        let dir = directory()?;
        symlink(&program, dir.path().join("bin/calico"))?;
        Node::with(program, dir, Arc::new(Namespaces::host()?), Some("vxlan"))
    }

    /// Starts a node on the first of these hosts. Without a backend it runs BGP.
    pub fn on(host: Arc<Namespaces>, backend: Option<&str>) -> Result<Node> {
        let dir = directory()?;
        install_plugins(&dir.path().join("bin"))?;
        Node::with(tortie()?, dir, host, backend)
    }

    fn with(program: PathBuf, dir: TempDir, host: Arc<Namespaces>, backend: Option<&str>) -> Result<Node> {
        let socket = format!("unix://{}", dir.path().join("store.sock").display());
        let mut store = Process::command(&program);
        store.args(["datastore", "--listen", &socket, "--data-dir"]).arg(dir.path().join("store"));
        let store = ready(&mut store)?;
        let backend = backend.map(str::to_owned);
        let daemon = daemon(&program, &host, &dir, backend.as_deref())?;
        Ok(Node { daemon, store, host, dir, program, backend })
    }

    /// Kills the daemon. Workloads keep their network.
    pub fn stop_daemon(&mut self) -> Result<()> {
        self.daemon.0.kill()?;
        self.daemon.0.wait()?;
        Ok(())
    }

    /// Starts the daemon again and waits until it is ready.
    pub fn start_daemon(&mut self) -> Result<()> {
        self.daemon = daemon(&self.program, &self.host, &self.dir, self.backend.as_deref())?;
        Ok(())
    }

    pub fn plugin(&self) -> PathBuf {
        self.dir.path().join("bin/calico")
    }

    pub fn config(&self) -> serde_json::Value {
        json!({
            "cniVersion": "1.1.0", "name": "bench", "type": "calico", "mtu": 1500,
            "tortie_socket": self.dir.path().join("run/cni.sock"),
            "ipam": {"type": "calico-ipam"},
        })
    }

    /// Returns the connection settings of the datastore.
    pub fn store_config(&self) -> Config {
        let endpoint = format!("unix://{}", self.dir.path().join("store.sock").display());
        Config { etcd_endpoints: endpoint, ..Config::default() }
    }

    /// Returns the CPU time of daemon and datastore so far.
    pub fn processor_time(&self) -> Result<Duration> {
        Ok(self.daemon.processor_time()? + self.store.processor_time()?)
    }
}

fn directory() -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix("tortie-bench-").tempdir()?;
    std::fs::create_dir(dir.path().join("bin"))?;
    Ok(dir)
}

fn daemon(program: &Path, host: &Namespaces, dir: &TempDir, backend: Option<&str>) -> Result<Process> {
    let mut daemon = Process::command("ip");
    daemon.args(["netns", "exec", host.name(0)]).arg(program).arg("node");
    daemon.arg("--state-dir").arg(dir.path().join("state")).arg("--run-dir").arg(dir.path().join("run"));
    daemon
        .env("NODENAME", NAME)
        .env("ETCD_ENDPOINTS", format!("unix://{}", dir.path().join("store.sock").display()))
        .env("CALICO_IPV4POOL_CIDR", POOL)
        .env("CALICO_IPV4POOL_IPIP", "Never")
        .envs(backend.map(|backend| ("CALICO_NETWORKING_BACKEND", backend)))
        .env("FELIX_PROMETHEUSMETRICSENABLED", "true")
        .env("IP6", "none");
    ready(&mut daemon)
}

/// Starts a process and waits for its first line of output, which must report that it is ready.
pub fn ready(command: &mut Command) -> Result<Process> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let output = child.stdout.take();
    let process = Process(child);
    let mut line = String::new();
    if let Some(output) = output {
        BufReader::new(output).read_line(&mut line)?;
    }
    if !line.starts_with("ready: ") {
        return Err(format!("{command:?} does not get ready").into());
    }
    Ok(process)
}
