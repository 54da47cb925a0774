//! Creates, finds, enters, empties and removes named network namespaces, and runs commands in them.

use crate::error::{LabError, LabResult};
use crate::place::netns_path;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nlink::netlink::namespace::{self, Netns};
use nlink::{Connection, Route};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tortie_process::{Signal, signal_if, wait_until};

/// Time limit for killed processes to exit.
const PROCESS_EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes the directory of namespaces a shared mount, as `ip netns add` does on first use. If `ip netns add` did it
/// later, it would hide the namespaces mounted there already, and they could not be removed any more.
pub fn prepare() -> LabResult<()> {
    let dir = netns_path("");
    std::fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    // MS_SHARED fails with EINVAL unless the directory is a mount point. /proc/mounts is not reliable, since a mount may
    // be hidden by another one.
    let mut shared = share(&dir);
    if shared == Err(Errno::EINVAL) {
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        shared = mount(Some(&dir), &dir, None::<&str>, bind, None::<&str>).and_then(|()| share(&dir));
    }
    shared.map_err(|error| LabError::file(&dir)(error.into()))
}

fn share(dir: &Path) -> nix::Result<()> {
    mount(None::<&str>, dir, None::<&str>, MsFlags::MS_SHARED | MsFlags::MS_REC, None::<&str>)
}

/// Creates a namespace with its loopback up.
pub async fn create(name: &str) -> LabResult<Netns> {
    try_create(name).await.map_err(|error| LabError::kernel(format!("namespace {name}"), &error))
}

async fn try_create(name: &str) -> nlink::Result<Netns> {
    let netns = Netns::create(name)?;
    // Addresses are unique by construction, so duplicate address detection is unnecessary.
    netns
        .sysctl()
        .set_many(&[("net.ipv6.conf.all.accept_dad", "0"), ("net.ipv6.conf.default.accept_dad", "0")])?;
    Connection::<Route>::new_in(&netns)?.set_link_up("lo").await?;
    Ok(netns)
}

pub fn open(name: &str) -> LabResult<Netns> {
    Netns::open(name).map_err(|error| LabError::kernel(format!("namespace {name}"), &error))
}

/// Moves the calling thread to a namespace.
pub fn enter(name: &str) -> LabResult<()> {
    let path = netns_path(name);
    let namespace = File::open(&path).map_err(LabError::file(&path))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| LabError::file(&path)(error.into()))
}

/// Runs a command in a namespace with `input` on its standard input, and returns its output.
pub fn output(name: &str, mut command: Command, input: &[u8]) -> LabResult<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let what = format!("cannot run {}", command.get_program().to_string_lossy());
    let spawned = open(name)?.command(command).and_then(|command| command.spawn());
    let mut child = spawned.map_err(|error| LabError::kernel(&what, &error))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program may respond without reading its whole input.
        let _ = stdin.write_all(input);
    }
    child.wait_with_output().map_err(|source| LabError::Io { what, source })
}

/// Runs a command like [`output`], on another thread.
pub async fn output_async(name: &str, command: Command, input: Vec<u8>) -> LabResult<Output> {
    let name = name.to_owned();
    let running = tokio::task::spawn_blocking(move || output(&name, command, &input));
    running
        .await
        .map_err(|error| LabError::Io { what: "a command in a namespace".to_owned(), source: error.into() })?
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
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
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
    let Some(namespace) = identity(&netns_path(name)) else { return Ok(()) };
    let mut processes = Vec::new();
    let ended = wait_until(PROCESS_EXIT_TIMEOUT, || {
        processes = processes_in(namespace);
        for pid in &processes {
            // Ignore errors: the next round finds a process that could not be signalled.
            let _ = signal_if(*pid, Signal::KILL, || is_in(*pid, namespace));
        }
        processes.is_empty()
    });
    if !ended {
        return Err(LabError::refused(format!("processes {processes:?} in namespace {name} do not end")));
    }
    Ok(())
}

/// Device and inode number, which identify a namespace.
type NamespaceId = (u64, u64);

fn identity(path: &Path) -> Option<NamespaceId> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Returns the processes whose main thread is in the namespace. Other threads enter it temporarily, as a node's daemon
/// does for its pods.
fn processes_in(namespace: NamespaceId) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id() && is_in(*pid, namespace))
        .collect()
}

fn is_in(pid: u32, namespace: NamespaceId) -> bool {
    identity(Path::new(&format!("/proc/{pid}/ns/net"))) == Some(namespace)
}
