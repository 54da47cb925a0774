//! Two network namespaces with a cable between them, and processes in them. All of it goes away with the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tortie_bgp::Sockets;
use tortie_dataplane::Netns;

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct Namespace {
    name: String,
}

impl Namespace {
    pub fn new() -> Namespace {
        let name = format!("tortie-bgp-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run(Command::new("ip").args(["netns", "add", &name]));
        let namespace = Namespace { name };
        namespace.ip("link set lo up");
        namespace
    }

    /// `10.77.0.1` and `fd77::1` here, `10.77.0.2` and `fd77::2` there.
    pub fn pair() -> (Namespace, Namespace) {
        let (ours, theirs) = (Namespace::new(), Namespace::new());
        ours.ip(&format!("link add eth0 type veth peer name eth0 netns {}", theirs.name));
        for (namespace, number) in [(&ours, 1), (&theirs, 2)] {
            run(namespace.command("sysctl").args(["-qw", "net.ipv6.conf.eth0.accept_dad=0"]));
            namespace.ip(&format!("addr add 10.77.0.{number}/24 dev eth0"));
            namespace.ip(&format!("addr add fd77::{number}/64 dev eth0 nodad"));
            namespace.ip("link set eth0 up");
        }
        (ours, theirs)
    }

    /// Where a speaker in this namespace makes its sockets.
    pub fn sockets(&self) -> Sockets {
        let netns = Netns::open(Path::new("/run/netns").join(&self.name)).unwrap();
        Sockets::inside(move |make| netns.run(make).map_err(std::io::Error::other)?)
    }

    /// `ip WORDS...` inside.
    pub fn ip(&self, words: &str) {
        run(Command::new("ip").args(["-n", &self.name]).args(words.split_whitespace()));
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// What a command prints; also when it fails, because a daemon that is not ready yet makes it fail.
    pub fn output(&self, program: &str, words: &[&str]) -> String {
        let output = self.command(program).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// A daemon in a namespace with a directory of its own; killed when dropped.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    pub fn start(namespace: &Namespace, program: &str, words: &[&str]) -> Daemon {
        // `ip netns exec` becomes the program, so this is its process.
        let child = namespace
            .command(program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Daemon { child }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // FRR keeps a directory for each process it ever was.
        let _ = std::fs::remove_dir_all(format!("/var/tmp/frr/bgpd.{}", self.child.id()));
    }
}

/// The name of a file in a directory, as text.
pub fn path(dir: &Path, name: &str) -> String {
    let path: PathBuf = dir.join(name);
    path.to_str().unwrap().to_owned()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {error}");
}

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is so.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut so: impl FnMut() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !so().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
