//! Creates, finds, empties and removes named network namespaces.

use crate::error::{LabError, LabResult};
use crate::place::netns_path;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nlink::netlink::namespace::{self, Netns};
use nlink::{Connection, Route};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit for killed processes to exit.
const PROCESS_EXIT_TIMEOUT: Duration = Duration::from_secs(20);
const PROCESS_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Makes the directory of namespaces a shared mount, as `ip netns add` does on first use. If `ip netns add` did it
/// later, it would hide the namespaces mounted there already, and they could not be removed any more.
pub fn prepare() -> LabResult<()> {
    let dir = netns_path("");
    std::fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    let failed = |error: Errno| LabError::file(&dir)(error.into());
    // MS_SHARED fails with EINVAL unless the directory is a mount point. /proc/mounts does not tell reliably, since a
    // mount may be hidden by another one.
    match share(&dir) {
        Err(Errno::EINVAL) => {}
        other => return other.map_err(failed),
    }
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(&dir), &dir, None::<&str>, bind, None::<&str>).map_err(failed)?;
    share(&dir).map_err(failed)
}

fn share(dir: &Path) -> nix::Result<()> {
    mount(None::<&str>, dir, None::<&str>, MsFlags::MS_SHARED | MsFlags::MS_REC, None::<&str>)
}

/// Creates a namespace with its loopback up.
pub async fn create(name: &str) -> LabResult<Netns> {
    let failed = |error: nlink::Error| LabError::kernel(format!("namespace {name}"), &error);
    let netns = Netns::create(name).map_err(failed)?;
    // Addresses are unique by construction, so duplicate address detection is unnecessary.
    netns
        .sysctl()
        .set_many(&[("net.ipv6.conf.all.accept_dad", "0"), ("net.ipv6.conf.default.accept_dad", "0")])
        .map_err(failed)?;
    connection(&netns)?.set_link_up("lo").await.map_err(failed)?;
    Ok(netns)
}

pub fn open(name: &str) -> LabResult<Netns> {
    Netns::open(name).map_err(|error| LabError::kernel(format!("namespace {name}"), &error))
}

pub fn connection(netns: &Netns) -> LabResult<Connection<Route>> {
    Connection::new_in(netns)
        .map_err(|error| LabError::kernel(format!("namespace {}", netns.label()), &error))
}

/// Returns the names with a prefix, including those of partially created namespaces.
pub fn names(prefix: &str) -> LabResult<Vec<String>> {
    let dir = netns_path("");
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(LabError::file(&dir)(error)),
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    Ok(names)
}

/// Removes a namespace and kills the processes in it. A namespace that does not exist is not an error.
pub fn remove(name: &str) -> LabResult<()> {
    if !netns_path(name).exists() {
        return Ok(());
    }
    end_processes(name)?;
    match namespace::delete(name) {
        Err(error) if !error.is_not_found() => Err(LabError::kernel(format!("namespace {name}"), &error)),
        _ => Ok(()),
    }
}

/// Kills every process in a namespace and waits until they have exited.
pub fn end_processes(name: &str) -> LabResult<()> {
    let path = netns_path(name);
    let Some(namespace) = identity(&path) else { return Ok(()) };
    let deadline = Instant::now() + PROCESS_EXIT_TIMEOUT;
    loop {
        let living = inhabitants(namespace);
        if living.is_empty() {
            return Ok(());
        }
        for pid in &living {
            kill(*pid, namespace);
        }
        if Instant::now() > deadline {
            return Err(LabError::refused(format!("processes {living:?} in namespace {name} do not end")));
        }
        std::thread::sleep(PROCESS_POLL_INTERVAL);
    }
}

/// Device and inode number, which identify a namespace.
type NamespaceId = (u64, u64);

fn identity(path: &Path) -> Option<NamespaceId> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Returns the processes whose main thread is in the namespace. Other threads enter it temporarily, as a node's daemon
/// does for its pods.
fn inhabitants(namespace: NamespaceId) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id() && lives_in(*pid, namespace))
        .collect()
}

fn lives_in(pid: u32, namespace: NamespaceId) -> bool {
    identity(Path::new(&format!("/proc/{pid}/ns/net"))) == Some(namespace)
}

/// Kills a process if the pid still refers to a process in the namespace.
fn kill(pid: u32, namespace: NamespaceId) {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    // A process that has exited needs no signal.
    if let Ok(handle) = pidfd_open(number, PidfdFlags::empty())
        && lives_in(pid, namespace)
    {
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
}
