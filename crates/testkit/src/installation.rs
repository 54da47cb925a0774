//! Installs the real binary in a temporary directory under all its names, and runs a datastore and a node from there.

use crate::process::{self, TestProcess};
use crate::run;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use tortie_cni::{CniPlugin, PLUGIN_EXECUTABLE};

/// A `tortie datastore` process, killed with SIGKILL when dropped.
#[derive(Debug)]
pub struct DatastoreProcess {
    process: TestProcess,
    /// Endpoints it listens on, in the order of the `listen` argument.
    pub endpoints: Vec<String>,
}

impl DatastoreProcess {
    pub fn start(tortie: &str, data: &Path, listen: &[&str], more: &[&str]) -> DatastoreProcess {
        let mut command = Command::new(tortie);
        command.arg("datastore").arg("--data-dir").arg(data).args(more);
        for address in listen {
            command.args(["--listen", address]);
        }
        let (process, line) = TestProcess::until_first_line(&mut command);
        let is_endpoint =
            |word: &&str| ["http://", "https://", "unix://"].iter().any(|scheme| word.starts_with(scheme));
        let words = line.split_whitespace().map(|word| word.trim_end_matches(','));
        let endpoints: Vec<String> = words.filter(is_endpoint).map(str::to_owned).collect();
        assert_eq!(endpoints.len(), listen.len(), "no ready line but {line:?}");
        DatastoreProcess { process, endpoints }
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the first TCP endpoint.
    pub fn url(&self) -> &str {
        self.endpoints.iter().find(|endpoint| endpoint.starts_with("http")).unwrap()
    }
}

/// Environment and standard input of one CNI plugin invocation.
#[derive(Clone, Copy, Debug)]
pub struct PluginCall<'a> {
    pub plugin: &'a str,
    pub command: &'a str,
    pub container: &'a str,
    pub netns: &'a str,
    pub ifname: &'a str,
    pub config: &'a str,
    pub args: &'a str,
}

/// Installs the CNI plugins into `dir` as on a host.
///
/// A separate process writes the files: if this process held one open for writing, a child forked by another thread
/// would inherit the descriptor, and executing the plugin would fail with ETXTBSY.
pub fn install_plugins(dir: &Path) -> std::io::Result<()> {
    for plugin in [CniPlugin::Calico, CniPlugin::CalicoIpam] {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(dir.join(plugin.name()))
            .stdin(Stdio::piped());
        let mut child = shell.spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(PLUGIN_EXECUTABLE)?;
        }
        if !child.wait()?.success() {
            return Err(std::io::Error::other(format!("{shell:?} failed")));
        }
    }
    Ok(())
}

/// A temporary installation. Dropping it stops the processes first and then removes the files.
#[derive(Debug)]
pub struct TestInstallation {
    node: Option<TestProcess>,
    store: Option<DatastoreProcess>,
    endpoint: String,
    pub dir: TempDir,
    tortie: &'static str,
}

impl TestInstallation {
    /// Creates an installation without running processes. `tortie` is the binary: `env!("CARGO_BIN_EXE_tortie")`.
    pub fn new(tortie: &'static str) -> TestInstallation {
        let dir = tempfile::Builder::new().prefix("tortie-test-").tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        for name in ["tortie", "calicoctl"] {
            symlink(tortie, dir.path().join("bin").join(name)).unwrap();
        }
        install_plugins(&dir.path().join("bin")).unwrap();
        TestInstallation { node: None, store: None, endpoint: String::new(), dir, tortie }
    }

    pub fn path(&self, part: &str) -> PathBuf {
        self.dir.path().join(part)
    }

    /// Returns the datastore's Unix socket endpoint, which is also reachable from network namespaces.
    pub fn socket(&self) -> String {
        format!("unix://{}", self.path("ds.sock").display())
    }

    /// Returns the datastore's TCP endpoint for etcdctl, which does not support Unix sockets. It is not reachable from
    /// network namespaces.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub fn start_store(&mut self) {
        let socket = self.socket();
        let store =
            DatastoreProcess::start(self.tortie, &self.path("db"), &["http://127.0.0.1:0", &socket], &[]);
        self.endpoint = store.url().to_owned();
        self.store = Some(store);
    }

    /// Kills the datastore with SIGKILL.
    pub fn stop_store(&mut self) {
        self.store = None;
    }

    pub fn store_pid(&self) -> u32 {
        self.store.as_ref().unwrap().id()
    }

    /// Builds the command that runs `tortie node` with this installation's directories. `runner` executes it (`ip netns
    /// exec NAME`).
    pub fn node_command(&self, mut runner: Command) -> Command {
        runner.args([self.tortie, "node"]).env("NODENAME", "n1").env("ETCD_ENDPOINTS", self.socket());
        runner.env("TORTIE_STATE_DIR", self.path("state")).env("TORTIE_RUN_DIR", self.path("run"));
        runner
    }

    /// Starts the node, replacing a running one, and waits until it is ready.
    pub fn start_node(&mut self, mut command: Command) {
        self.stop_node();
        let log = std::fs::File::options().create(true).append(true).open(self.path("node.log")).unwrap();
        let (process, line) = TestProcess::until_first_line(command.stderr(log));
        self.node = Some(process);
        assert!(line.starts_with("ready: "), "{line:?}\n{}", self.log());
    }

    /// Kills the node with SIGKILL.
    pub fn stop_node(&mut self) {
        self.node = None;
    }

    pub fn node_pid(&self) -> u32 {
        self.node.as_ref().unwrap().id()
    }

    /// Returns the log of all nodes that this installation has run.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("node.log")).unwrap_or_default()
    }

    /// Starts a plugin and writes its request to standard input, without waiting for it to exit.
    pub fn begin(&self, call: &PluginCall) -> Child {
        let mut command = Command::new(self.path("bin").join(call.plugin));
        command
            .env("CNI_COMMAND", call.command)
            .env("CNI_CONTAINERID", call.container)
            .env("CNI_NETNS", call.netns)
            .env("CNI_IFNAME", call.ifname)
            .env("CNI_PATH", self.path("bin"))
            .env("CNI_ARGS", call.args)
            .env("TORTIE_CNI_SOCKET", self.path("run/cni.sock"));
        process::feed(&mut command, call.config)
    }

    pub fn calicoctl(&self, args: &[&str], input: &str) -> String {
        let mut command = Command::new(self.path("bin/calicoctl"));
        let output = process::output(command.args(args).env("ETCD_ENDPOINTS", self.socket()), input);
        assert!(output.status.success(), "calicoctl {args:?}: {output:?}\n{input}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn etcdctl(&self, args: &[&str]) -> String {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint, "--command-timeout", "60s"])
            .args(args);
        run(command.stdin(Stdio::null()))
    }

    /// Sends a question to the node's query socket and returns the response, or null if the node does not respond.
    pub fn ask(&self, question: &str) -> Value {
        let answered = || -> std::io::Result<Value> {
            let mut stream = UnixStream::connect(self.path("run/node.sock"))?;
            stream.write_all(json!({"ask": question}).to_string().as_bytes())?;
            stream.shutdown(std::net::Shutdown::Write)?;
            Ok(serde_json::from_reader(stream)?)
        };
        answered().unwrap_or_default()
    }
}
