//! Runs a complete node: the embedded datastore, the daemon in a host's namespace, the plugins.

use crate::namespace::{BenchResult, NamespaceGroup};
use crate::process::{BenchProcess, tortie};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tortie_store::StoreConfig;
use tortie_testkit::install_plugins;

/// Name of the Node resource.
pub const NODE_NAME: &str = "bench";
pub const POOL_CIDR: &str = "10.64.0.0/12";

pub struct BenchNode {
    // In drop order.
    pub daemon: BenchProcess,
    pub store: BenchProcess,
    pub host: Arc<NamespaceGroup>,
    pub dir: TempDir,
    program: PathBuf,
    backend: Option<String>,
}

impl BenchNode {
    /// Starts a node and waits until it is ready. The node programs the routes to other nodes itself.
    pub fn start() -> BenchResult<BenchNode> {
        BenchNode::on(Arc::new(NamespaceGroup::host()?), Some("vxlan"))
    }

    /// Starts a node from another build, whose main binary also acts as the CNI plugin.
    pub fn start_other(program: PathBuf) -> BenchResult<BenchNode> {
        let dir = directory()?;
        symlink(&program, dir.path().join("bin/calico"))?;
        BenchNode::with(program, dir, Arc::new(NamespaceGroup::host()?), Some("vxlan"))
    }

    /// Starts a node on the first of these hosts. Without a backend it runs BGP.
    pub fn on(host: Arc<NamespaceGroup>, backend: Option<&str>) -> BenchResult<BenchNode> {
        let dir = directory()?;
        install_plugins(&dir.path().join("bin"))?;
        BenchNode::with(tortie()?, dir, host, backend)
    }

    fn with(
        program: PathBuf,
        dir: TempDir,
        host: Arc<NamespaceGroup>,
        backend: Option<&str>,
    ) -> BenchResult<BenchNode> {
        let socket = format!("unix://{}", dir.path().join("store.sock").display());
        let mut store = BenchProcess::command(&program);
        store.args(["datastore", "--listen", &socket, "--data-dir"]).arg(dir.path().join("store"));
        let store = ready(&mut store)?;
        let backend = backend.map(str::to_owned);
        let daemon = daemon(&program, &host, &dir, backend.as_deref())?;
        Ok(BenchNode { daemon, store, host, dir, program, backend })
    }

    /// Kills the daemon. Workloads keep their network.
    pub fn stop_daemon(&mut self) -> BenchResult<()> {
        self.daemon.0.kill()?;
        self.daemon.0.wait()?;
        Ok(())
    }

    /// Starts the daemon again and waits until it is ready.
    pub fn start_daemon(&mut self) -> BenchResult<()> {
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
    pub fn store_config(&self) -> StoreConfig {
        let endpoint = format!("unix://{}", self.dir.path().join("store.sock").display());
        StoreConfig { etcd_endpoints: endpoint, ..StoreConfig::default() }
    }

    /// Returns the CPU time of daemon and datastore so far.
    pub fn processor_time(&self) -> BenchResult<Duration> {
        Ok(self.daemon.processor_time()? + self.store.processor_time()?)
    }
}

fn directory() -> BenchResult<TempDir> {
    let dir = tempfile::Builder::new().prefix("tortie-bench-").tempdir()?;
    std::fs::create_dir(dir.path().join("bin"))?;
    Ok(dir)
}

fn daemon(
    program: &Path,
    host: &NamespaceGroup,
    dir: &TempDir,
    backend: Option<&str>,
) -> BenchResult<BenchProcess> {
    let mut daemon = BenchProcess::command("ip");
    daemon.args(["netns", "exec", host.name(0)]).arg(program).arg("node");
    daemon.arg("--state-dir").arg(dir.path().join("state")).arg("--run-dir").arg(dir.path().join("run"));
    daemon
        .env("NODENAME", NODE_NAME)
        .env("ETCD_ENDPOINTS", format!("unix://{}", dir.path().join("store.sock").display()))
        .env("CALICO_IPV4POOL_CIDR", POOL_CIDR)
        .env("CALICO_IPV4POOL_IPIP", "Never")
        .envs(backend.map(|backend| ("CALICO_NETWORKING_BACKEND", backend)))
        .env("FELIX_PROMETHEUSMETRICSENABLED", "true")
        .env("IP6", "none");
    ready(&mut daemon)
}

/// Starts a process and waits for its first line of output, which must report that it is ready.
pub fn ready(command: &mut Command) -> BenchResult<BenchProcess> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let output = child.stdout.take();
    let process = BenchProcess(child);
    let mut line = String::new();
    if let Some(output) = output {
        BufReader::new(output).read_line(&mut line)?;
    }
    if !line.starts_with("ready: ") {
        return Err(format!("{command:?} does not get ready").into());
    }
    Ok(process)
}
