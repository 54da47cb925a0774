//! Runs a node as a separate machine: an init process in new PID, mount and UTS namespaces starts the node's daemons
//! and reaps orphans. When it ends, the kernel kills every process on the node.

use super::mounts;
use super::steps::MachineStep;
use crate::error::{LabError, LabResult};
use crate::files;
use crate::place::LabPaths;
use crate::process::{LabDaemon, StartedDaemon};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, wait};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tortie_process::PidFile;

/// Delay before waiting again when there are no child processes.
const REAP_RETRY_DELAY: Duration = Duration::from_secs(1);

pub fn daemon(place: &LabPaths, node: &str) -> LabDaemon {
    LabDaemon::in_dir(&format!("the machine of {node}"), &dir(place, node))
}

fn dir(place: &LabPaths, node: &str) -> PathBuf {
    place.node_dir(node).join("machine")
}

fn steps_file(place: &LabPaths, node: &str) -> PathBuf {
    dir(place, node).join("steps.json")
}

/// Returns the pid file of the node's init process, which holds its pid on the host.
pub fn first_process(place: &LabPaths, node: &str) -> PidFile {
    PidFile::at(dir(place, node).join("first"))
}

/// Starts a machine that executes these steps.
pub fn start(place: &LabPaths, node: &str, steps: &[MachineStep]) -> LabResult<StartedDaemon> {
    let dir = dir(place, node);
    std::fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    files::replace(&steps_file(place, node), &steps)?;
    daemon(place, node).start(&place.node_netns(node), command(place, node, false))
}

fn command(place: &LabPaths, node: &str, first: bool) -> Command {
    let mut command = Command::new(place.bin().join("tortie"));
    command.args(["lab", "--name", place.name(), "--dir"]).arg(place.dir()).args(["machine", node]);
    if first {
        command.arg("--first");
    }
    command
}

/// Runs as the process that [`start`] starts: forks the init process into a new PID namespace and waits for it.
pub fn boot(place: &LabPaths, node: &str) -> LabResult<()> {
    unshare(CloneFlags::CLONE_NEWPID).map_err(|error| namespaces(node, error))?;
    let what = format!("the first process of {node}");
    match run_first_process(place, node) {
        Ok(status) => Err(LabError::refused(format!("{what} ended ({status})"))),
        Err(source) => Err(LabError::Io { what, source }),
    }
}

fn run_first_process(place: &LabPaths, node: &str) -> io::Result<ExitStatus> {
    let mut child = command(place, node, true).spawn()?;
    first_process(place, node).write(child.id())?;
    child.wait()
}

/// Runs as the init process. After the last step it only reaps children and never returns.
pub fn run(place: &LabPaths, node: &str) -> LabResult<()> {
    let steps: Vec<MachineStep> = files::read(&steps_file(place, node))?
        .ok_or_else(|| LabError::refused(format!("{node} has no steps file")))?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS).map_err(|error| namespaces(node, error))?;
    mounts::prepare(place.dir(), &place.node_dir(node))?;
    nix::unistd::sethostname(node).map_err(|error| namespaces(node, error))?;
    let mut daemons = BTreeMap::new();
    for step in &steps {
        let started = step.execute().map_err(|source| LabError::Io { what: node.to_owned(), source })?;
        daemons.extend(started);
    }
    loop {
        match wait() {
            Ok(status) => report(&mut daemons, status),
            Err(Errno::ECHILD) => std::thread::sleep(REAP_RETRY_DELAY),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(namespaces(node, error)),
        }
    }
}

/// Logs the exit of a daemon; other child processes are reaped silently.
fn report(daemons: &mut BTreeMap<u32, &str>, status: WaitStatus) {
    let pid = status.pid().and_then(|pid| u32::try_from(pid.as_raw()).ok());
    if let Some(name) = pid.and_then(|pid| daemons.remove(&pid)) {
        crate::up::print_progress(&format!("{name} ended: {status:?}"));
    }
}

fn namespaces(node: &str, error: Errno) -> LabError {
    LabError::Kernel { object: format!("namespaces of {node}"), reason: error.to_string() }
}
