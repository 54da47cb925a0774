//! Environment for calicoctl tests: a fresh datastore, a working directory, and the binary under each of its names.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;
use tortie_testkit::{DatastoreProcess, Etcd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabBackend {
    Etcd,
    Embedded,
}

/// A running datastore, stopped on drop.
enum RunningStore {
    Etcd(Etcd),
    Embedded(EmbeddedDatastore),
}

struct EmbeddedDatastore {
    // Fields are dropped in this order.
    server: DatastoreProcess,
    _data: TempDir,
}

impl EmbeddedDatastore {
    fn start(on_socket: bool) -> EmbeddedDatastore {
        let data = tempfile::Builder::new().prefix("tortie-store-").tempdir().unwrap();
        let listen = match on_socket {
            true => format!("unix://{}", data.path().join("datastore.sock").display()),
            false => "http://127.0.0.1:0".to_owned(),
        };
        let tortie = env!("CARGO_BIN_EXE_tortie");
        let server = DatastoreProcess::start(tortie, &data.path().join("db"), &[&listen], &[]);
        EmbeddedDatastore { server, _data: data }
    }

    fn endpoint(&self) -> &str {
        &self.server.endpoints[0]
    }
}

/// Servers that are not a datastore, running for the whole test run: one accepts connections and sends nothing, the
/// other uses another protocol.
pub struct ForeignServers {
    pub silent: String,
    pub other: String,
}

pub fn strangers() -> &'static ForeignServers {
    static STRANGERS: OnceLock<ForeignServers> = OnceLock::new();
    STRANGERS.get_or_init(|| ForeignServers {
        silent: stranger(b""),
        other: stranger(&b"220 mail.example ready\r\n".repeat(100)),
    })
}

/// Sends `words` after the client has sent its request and waits; keeps every connection open.
fn stranger(words: &[u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let words = words.to_vec();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut client in listener.incoming().flatten() {
            client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            while client.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
            let _ = client.write_all(&words);
            kept.push(client);
        }
    });
    format!("http://{address}")
}

pub struct CalicoctlLab {
    store: RunningStore,
    dir: TempDir,
}

#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> CommandOutput {
        CommandOutput {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl CalicoctlLab {
    pub fn on(backend: LabBackend) -> CalicoctlLab {
        CalicoctlLab::with(match backend {
            LabBackend::Etcd => RunningStore::Etcd(Etcd::start().unwrap()),
            LabBackend::Embedded => RunningStore::Embedded(EmbeddedDatastore::start(false)),
        })
    }

    /// Creates a lab on an embedded datastore that listens on a Unix socket.
    pub fn on_socket() -> CalicoctlLab {
        CalicoctlLab::with(RunningStore::Embedded(EmbeddedDatastore::start(true)))
    }

    fn with(store: RunningStore) -> CalicoctlLab {
        let dir = tempfile::Builder::new().prefix("tortie-lab-").tempdir().unwrap();
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for name in ["calicoctl", "kubectl-calico", "tortie"] {
            symlink(env!("CARGO_BIN_EXE_tortie"), bin.join(name)).unwrap();
        }
        std::fs::create_dir(dir.path().join("work")).unwrap();
        CalicoctlLab { store, dir }
    }

    pub fn endpoint(&self) -> String {
        match &self.store {
            RunningStore::Etcd(etcd) => etcd.endpoint(),
            RunningStore::Embedded(embedded) => embedded.endpoint().to_owned(),
        }
    }

    /// Returns the directory that commands run in.
    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// Returns a command that uses the test's binaries and datastore and ignores the configuration of the machine.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", format!("{}:{path}", self.dir.path().join("bin").display()))
            .env("ETCD_ENDPOINTS", self.endpoint())
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", self.endpoint())
            .env("SILENT", &strangers().silent)
            .env("OTHER", &strangers().other)
            .env("LC_ALL", "C.UTF-8")
            .current_dir(self.work())
            .stdin(Stdio::null());
        command
    }

    /// Returns the path of the binary under one of its names.
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.path().join("bin").join(name)
    }

    pub fn calicoctl(&self, args: &[&str]) -> CommandOutput {
        self.command(self.program("calicoctl")).args(args).output().unwrap().into()
    }

    /// Runs calicoctl and returns its standard output; panics if it fails.
    pub fn must(&self, args: &[&str]) -> String {
        let ran = self.calicoctl(args);
        assert_eq!(ran.code, Some(0), "calicoctl {args:?}: {ran:?}");
        ran.out
    }

    pub fn calicoctl_with(&self, args: &[&str], input: &[u8]) -> CommandOutput {
        let mut command = self.command(self.program("calicoctl"));
        let mut child = command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            // A command that fails early does not read all its input.
            scope.spawn(move || {
                let _ = stdin.write_all(input);
            });
            child.wait_with_output().unwrap().into()
        })
    }

    /// Runs a shell command line in the working directory.
    pub fn shell(&self, line: &str) -> CommandOutput {
        self.command("sh").args(["-c", line]).output().unwrap().into()
    }

    /// Returns the value stored under a key, read with etcdctl.
    pub fn stored(&self, key: &str) -> String {
        let ran: CommandOutput =
            self.command("etcdctl").args(["get", "--print-value-only", key]).output().unwrap().into();
        assert_eq!(ran.code, Some(0), "etcdctl get {key}: {ran:?}");
        ran.out.strip_suffix('\n').unwrap_or(&ran.out).to_owned()
    }

    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let ran: CommandOutput =
            self.command("etcdctl").args(["get", "--prefix", "--keys-only", prefix]).output().unwrap().into();
        ran.out.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

/// Returns the root of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
