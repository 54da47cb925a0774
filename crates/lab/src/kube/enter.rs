//! Runs commands on a node of Kubernetes, in all its namespaces, and kubectl in the fabric's namespace.

use super::credentials::ClusterUser;
use super::machine;
use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::netns;
use crate::place::LabPaths;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

/// Runs a command on a node and exits with its exit status. Returns only on failure. The caller must be
/// single-threaded.
pub fn on_node(place: &LabPaths, node: &str, mut command: Command) -> LabResult<()> {
    let pid = machine::first_process(place, node).running();
    let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let pid = pid.ok_or_else(|| LabError::refused(format!("{node} does not run")))?;
    let all = ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::PROCESS_ID;
    pidfd_open(pid, PidfdFlags::empty())
        .and_then(|handle| move_into_thread_name_spaces(handle.as_fd(), all))
        .map_err(|error| LabError::Io { what: node.to_owned(), source: error.into() })?;
    // setns to a PID namespace affects only children, so the command must be a child process.
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|source| LabError::Io { what: program, source })?;
    std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
}

/// Replaces this process with kubectl, as the lab's administrator. Returns only on failure.
pub fn kubectl(place: &LabPaths, arguments: &[OsString]) -> LabResult<()> {
    let cluster = LabCluster::load(place)?;
    let Some(kubernetes) = &cluster.kubernetes else {
        let command = place.command("up --kubernetes");
        return Err(LabError::refused(format!(
            "this lab has no Kubernetes; `{command}` makes one that does"
        )));
    };
    let program = kubernetes.program("kubectl");
    let mut command = Command::new(&program);
    command.args(arguments).env("KUBECONFIG", ClusterUser::Admin.kubeconfig(place));
    // The API server is reachable only from the fabric's namespace.
    netns::enter(&place.fabric())?;
    Err(LabError::file(&program)(command.exec()))
}
