//! Decommissions a host: removes the network configuration and the files that the node daemon created on it.
//!
//! Policy, the daemon's rules in chains of other programs and its files are always removed. The interfaces, routes and
//! tunnels of running pods are kept unless the caller requests their removal: they have the names that Calico uses, so
//! Calico can adopt them. If pods are kept, policy is removed only once chains of Felix guard them, which means that
//! their packets pass through these chains, unless the operator overrides this.

use crate::install::{self, InstallError};
use crate::journal::AttachmentJournal;
use crate::lock::{DirLock, LockError};
use crate::options::NodeArgs;
use crate::startup::EnvironmentVariables;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tortie_compute::{ParameterEnvironment, PlanCompute};
use tortie_dataplane::{DataplaneError, DataplaneHandle, KernelFailure, MissingGuard, Netns, pod};
use tortie_plan::{DataplaneSettings, NodePlan};
use tortie_store::config::settings_file;

/// Delay before the dataplane is stopped, in which the kernel reports its last changes and a daemon that has just ended
/// finishes its own.
const KERNEL_SETTLE_DELAY: Duration = Duration::from_secs(1);
/// Interval between checks of Felix's chains.
const FELIX_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How to treat the network of running containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivePodHandling {
    /// They keep their network, for the software that replaces Tortie on the host.
    Kept,
    /// Their interfaces, routes and tunnels are removed.
    CutOff,
}

/// When policy is removed if pods keep their network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyHandover {
    /// As soon as chains of Felix guard every endpoint that our chains guard. Fails if they do not within this time.
    ToFelix(Duration),
    /// Immediately. The pods are unprotected until another policy engine is active.
    Now,
}

/// The chains of Felix did not appear within the time limit.
#[derive(Debug, thiserror::Error)]
#[error(
    "after {} s Felix does not guard {}; nothing was removed and policy stays in force. Start calico-node on this host while \
     policy is in force and try again, or remove policy without waiting with --now",
    waited.as_secs(),
    list_guards(missing)
)]
pub struct FelixNotReady {
    waited: Duration,
    missing: Vec<MissingGuard>,
}

/// Reason why a host could not be decommissioned completely.
#[derive(Debug, thiserror::Error)]
pub enum DecommissionError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    FelixNotReady(#[from] FelixNotReady),
    #[error("{0}; nothing was removed")]
    FelixUnknown(DataplaneError),
    #[error(transparent)]
    Kernel(#[from] DataplaneError),
    #[error("{}", list_failures(.0))]
    KernelObjects(Vec<KernelFailure>),
    #[error("{0}")]
    Journal(io::Error),
    #[error("CNI plugins: {0}")]
    Plugins(#[from] InstallError),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// All errors; the other steps succeeded.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Incomplete(Vec<DecommissionError>),
}

fn list_failures(failures: &[KernelFailure]) -> String {
    let failures = failures.iter().map(|failure| format!("{}: {}", failure.object, failure.reason));
    failures.collect::<Vec<_>>().join("; ")
}

/// Decommissions a host whose daemon does not run. Fails if the daemon runs, because it would restore everything.
/// Returns one line for each item that was removed, or that was kept because another program has replaced it.
pub async fn leave(
    args: &NodeArgs,
    pods: LivePodHandling,
    handover: PolicyHandover,
) -> Result<Vec<String>, DecommissionError> {
    let mut dirs = args.own_dirs();
    dirs.retain(|dir| dir.is_dir());
    let locks: Vec<DirLock> = dirs.iter().map(|dir| DirLock::acquire(dir)).collect::<Result<_, _>>()?;
    if let (LivePodHandling::Kept, PolicyHandover::ToFelix(limit)) = (pods, handover) {
        await_felix(limit).await?;
    }
    let mut removed = clean_host(args, pods).await?;
    drop(locks);
    // Removing a directory fails if other software, for example the datastore, has files in it.
    let removed_dirs = dirs.into_iter().filter(|dir| std::fs::remove_dir(dir).is_ok());
    removed.extend(removed_dirs.map(|dir| format!("removed: {}", dir.display())));
    Ok(removed)
}

/// Waits until Felix guards every endpoint that our policy guards. Changes nothing on the host.
pub async fn await_felix(limit: Duration) -> Result<(), DecommissionError> {
    let host = Netns::current()?;
    let started = Instant::now();
    let mut logged = false;
    loop {
        let expired = started.elapsed() >= limit;
        match tortie_dataplane::missing_guards(&host).await {
            Ok(missing) if missing.is_empty() => return Ok(()),
            Ok(missing) if expired => return Err(FelixNotReady { waited: limit, missing }.into()),
            Err(error) if expired => return Err(DecommissionError::FelixUnknown(error)),
            Ok(missing) if !std::mem::replace(&mut logged, true) => tracing::info!(
                missing = list_guards(&missing),
                "waiting until Felix guards the endpoints of this host"
            ),
            // Retry after errors too: a list that changes while it is read is an error.
            Ok(_) | Err(_) => {}
        }
        tokio::time::sleep(FELIX_POLL_INTERVAL).await;
    }
}

/// Lists the first few missing guards.
fn list_guards(missing: &[MissingGuard]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = missing.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = missing.len().saturating_sub(SHOWN);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    shown.join(", ") + &more
}

/// Removes policy, files and, with [`LivePodHandling::CutOff`], the network of live pods. Continues after failures and
/// returns all of them. The caller holds the locks of the directories.
pub(crate) async fn clean_host(
    args: &NodeArgs,
    pods: LivePodHandling,
) -> Result<Vec<String>, DecommissionError> {
    let mut removed = Vec::new();
    let mut failures = Vec::new();
    // Remove the plugins first, so that no runtime calls a plugin whose daemon is gone.
    match install::remove(&args.state_dir) {
        Ok(files) => removed.extend(files.iter().map(ToString::to_string)),
        Err(error) => failures.push(error.into()),
    }
    match clear_kernel(args, pods).await {
        Ok(()) => {
            removed.push("removed: policy, and the rules of Tortie in chains of other programs".to_owned())
        }
        Err(error) => failures.push(error),
    }
    for path in list_files(args, pods) {
        match remove(&path) {
            Ok(true) => removed.push(format!("removed: {}", path.display())),
            Ok(false) => {}
            Err(source) => failures.push(DecommissionError::File { path, source }),
        }
    }
    if failures.is_empty() { Ok(removed) } else { Err(DecommissionError::Incomplete(failures)) }
}

async fn clear_kernel(args: &NodeArgs, pods: LivePodHandling) -> Result<(), DecommissionError> {
    let host = Netns::current()?;
    if pods == LivePodHandling::CutOff {
        cut_off_pods(args, &host).await?;
    }
    Ok(tortie_dataplane::remove_policy(&host).await?)
}

/// Removes the interfaces of running containers, the routes and the tunnels.
async fn cut_off_pods(args: &NodeArgs, host: &Netns) -> Result<(), DecommissionError> {
    let journal = AttachmentJournal::open(&args.journal_dir()).map_err(DecommissionError::Journal)?;
    for record in journal.all() {
        if !record.chained && !record.host_interface.is_empty() {
            pod::detach(host, None, &record.id.ifname, record.host_interface.as_str()).await?;
        }
    }
    let (dataplane, _reports) = DataplaneHandle::start(host.clone(), read_settings(args)).await?;
    let empty_plan = NodePlan { learnt_complete: true, ..NodePlan::default() };
    let outcome = dataplane.replace(empty_plan).await?;
    tokio::time::sleep(KERNEL_SETTLE_DELAY).await;
    dataplane.stop().await;
    if outcome.failures.is_empty() {
        return Ok(());
    }
    Err(DecommissionError::KernelObjects(outcome.failures))
}

/// Returns the name prefixes of workload interfaces, according to the settings on this host.
pub fn read_interface_prefixes(args: &NodeArgs) -> Vec<String> {
    read_settings(args).interface_prefixes
}

/// Returns the settings that the daemon used. Only settings that are stored on this host are known.
fn read_settings(args: &NodeArgs) -> DataplaneSettings {
    let file = settings_file::read(&args.settings_file()).unwrap_or_default();
    let environment = ParameterEnvironment::new(EnvironmentVariables::of_process().0, file);
    // Do not change the forwarding sysctls: other software may need them.
    DataplaneSettings { ip_forwarding: false, ..PlanCompute::new("", environment).settings().clone() }
}

/// Returns the files and directories to remove, other than those that the installer wrote.
fn list_files(args: &NodeArgs, pods: LivePodHandling) -> Vec<PathBuf> {
    let mut files = vec![
        args.journal_dir(),
        args.known_objects_file(),
        args.socket(),
        args.query_socket(),
        args.http_proxies_file(),
        args.run_dir.join("bgp"),
    ];
    let to_calico = pods == LivePodHandling::Kept;
    // Keep files in directories of Calico if Calico replaces Tortie on the host.
    if !to_calico || args.calico_dir() == args.state_dir {
        files.extend(["nodename", "mtu"].map(|name| args.calico_dir().join(name)));
    }
    let default = Some(Path::new("/var/run/calico")).filter(|_| !to_calico);
    files.extend(args.own_run_dir().or(default).map(|dir| dir.join("endpoint-status")));
    files
}

/// Removes a file or directory. Returns false if it does not exist.
fn remove(path: &Path) -> io::Result<bool> {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
