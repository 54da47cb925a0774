//! Network namespaces of hosts and pods for a measurement. They are removed when dropped, also after Ctrl-C.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::signal::unix::{SignalKind, signal};

pub type BenchResult<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const NAMESPACE_PREFIX: &str = "tortie-bench-";
const NETNS_DIR: &str = "/run/netns";

static BATCH_NUMBER: AtomicU32 = AtomicU32::new(0);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static PREPARE_ONCE: Once = Once::new();

/// A group of namespaces that are created and removed together.
pub struct NamespaceGroup(Vec<String>);

impl NamespaceGroup {
    pub fn new(count: usize) -> BenchResult<NamespaceGroup> {
        PREPARE_ONCE.call_once(prepare);
        let (process, batch) = (std::process::id(), BATCH_NUMBER.fetch_add(1, Ordering::Relaxed));
        let names = (0..count).map(|n| format!("{NAMESPACE_PREFIX}{process}-{batch}-{n}")).collect();
        let namespaces = NamespaceGroup(names);
        for part in namespaces.0.chunks(100) {
            check()?;
            ip(None, part.iter().map(|name| format!("netns add {name}")))?;
        }
        Ok(namespaces)
    }

    /// Creates a host namespace with an interface and a default route. All other nodes are on the same link.
    pub fn host() -> BenchResult<NamespaceGroup> {
        let host = NamespaceGroup::new(1)?;
        let lines = [
            "link set lo up",
            "link add eth0 type veth peer name wire0",
            "addr add 172.30.0.1/16 dev eth0",
            "link set eth0 up",
            "link set wire0 up",
            "route add default via 172.30.255.254",
        ];
        ip(Some(host.name(0)), lines)?;
        Ok(host)
    }

    pub fn name(&self, place: usize) -> &str {
        self.0.get(place).map_or("", String::as_str)
    }

    pub fn path(&self, place: usize) -> PathBuf {
        Path::new(NETNS_DIR).join(self.name(place))
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|name| Path::new(NETNS_DIR).join(name)).collect()
    }
}

impl Drop for NamespaceGroup {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Moves the calling thread to a namespace. Threads and processes that it starts are in the namespace too.
pub fn enter(path: &Path) -> BenchResult<()> {
    let namespace = File::open(path)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Returns an error after SIGINT or SIGTERM was received.
pub fn check() -> BenchResult<()> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
}

/// Runs `ip -batch` with these commands, in a namespace if one is given.
pub fn ip<T: AsRef<str>>(netns: Option<&str>, lines: impl IntoIterator<Item = T>) -> BenchResult<()> {
    let mut command = Command::new("ip");
    if let Some(netns) = netns {
        command.args(["-n", netns]);
    }
    let mut child = command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        for line in lines {
            writeln!(input, "{}", line.as_ref())?;
        }
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("ip (it needs root): {}", said.trim()).into());
    }
    Ok(())
}

/// Installs a signal handler that makes the measurement fail, so that cleanup runs as after any error. Removes
/// namespaces left by killed runs.
fn prepare() {
    std::thread::spawn(|| {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return;
            };
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            INTERRUPTED.store(true, Ordering::Relaxed);
        });
    });
    let orphaned = |name: &String| {
        let process = name.strip_prefix(NAMESPACE_PREFIX).and_then(|rest| rest.split('-').next());
        process.is_some_and(|process| !Path::new("/proc").join(process).exists())
    };
    let entries = fs::read_dir(NETNS_DIR).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    remove(&names.filter(orphaned).collect::<Vec<_>>());
}

fn remove(names: &[String]) {
    // Ignore errors: the next run removes the rest.
    let there = names.iter().filter(|name| Path::new(NETNS_DIR).join(name).exists());
    let _ = ip(None, there.map(|name| format!("netns del {name}")));
}

/// Returns the number of routes to other nodes on a host.
pub fn routes(netns: &str) -> BenchResult<usize> {
    let output = Command::new("ip").args(["-n", netns, "-4", "route", "show", "proto", "80"]).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter(|line| line.contains(" via ")).count())
}
