//! Takes away what a node's daemon has made on its host: the host is no node any more.

use crate::journal::Journal;
use crate::lock::{DirLock, LockError};
use crate::options::NodeArgs;
use crate::startup::Variables;
use crate::{install, settings_file};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tortie_compute::{Compute, Environment};
use tortie_dataplane::{Dataplane, Netns, pod};
use tortie_plan::{Plan, Settings};

/// For a daemon that has just ended, and may be at its last change, and for what the kernel tells of its own.
const SETTLE: Duration = Duration::from_secs(1);

/// For whoever has ended the daemon, or never had one: fails if it runs.
pub async fn leave(args: &NodeArgs) -> Result<Vec<PathBuf>, String> {
    let mut locks = Vec::new();
    for dir in [&args.state_dir, &args.run_dir].into_iter().filter(|dir| dir.is_dir()) {
        let locked = DirLock::acquire(dir).map_err(|error: LockError| error.to_string())?;
        locks.push(locked);
    }
    clean(args).await
}

/// Goes on past failures and names all of them. The caller holds the directories.
pub(crate) async fn clean(args: &NodeArgs) -> Result<Vec<PathBuf>, String> {
    let mut failures = Vec::new();
    // First, so that no runtime calls a plugin that has nobody to talk to.
    let mut removed = install::remove(&args.state_dir).unwrap_or_else(|reason| {
        failures.push(reason);
        Vec::new()
    });
    if let Err(error) = clear_kernel(args).await {
        failures.push(error);
    }
    for path in made(args) {
        match remove(&path) {
            Ok(true) => removed.push(path),
            Ok(false) => {}
            Err(error) => failures.push(format!("{}: {error}", path.display())),
        }
    }
    match failures.is_empty() {
        true => Ok(removed),
        false => Err(failures.join("; ")),
    }
}

/// Interfaces of containers that still run, routes, tunnels and policy.
async fn clear_kernel(args: &NodeArgs) -> Result<(), String> {
    let host = Netns::current().map_err(|error| error.to_string())?;
    let attached = Journal::open(&args.journal_dir()).map_err(|error| error.to_string())?.all();
    let cleared = async {
        for record in attached.iter().filter(|record| !record.host_interface.is_empty()) {
            pod::detach(&host, None, &record.id.ifname, record.host_interface.as_str()).await?;
        }
        let (dataplane, _reports) = Dataplane::start(host.clone(), settings(args)).await?;
        let nothing = Plan { learnt_complete: true, ..Plan::default() };
        let outcome = dataplane.replace(nothing).await?;
        tokio::time::sleep(SETTLE).await;
        dataplane.stop().await;
        tortie_dataplane::remove_policy(&host).await?;
        Ok::<_, tortie_dataplane::Error>(outcome.failures)
    };
    let failures = cleared.await.map_err(|error| error.to_string())?;
    let named: Vec<String> =
        failures.iter().map(|failure| format!("{}: {}", failure.object, failure.reason)).collect();
    match named.is_empty() {
        true => Ok(()),
        false => Err(named.join("; ")),
    }
}

/// Those by which the daemon has written, as far as the host knows them.
fn settings(args: &NodeArgs) -> Settings {
    let file = settings_file::read(&args.settings_file()).unwrap_or_default();
    let environment = Environment::new(Variables::of_process().0, file);
    // Others may forward too.
    Settings { ip_forwarding: false, ..Compute::new("", environment).settings().clone() }
}

/// Beside what the installer has written.
fn made(args: &NodeArgs) -> Vec<PathBuf> {
    let status = args.own_run_dir().unwrap_or(Path::new("/var/run/calico")).join("endpoint-status");
    let calico = args.calico_dir();
    let run = &args.run_dir;
    vec![
        args.journal_dir(),
        calico.join("nodename"),
        calico.join("mtu"),
        status,
        args.socket(),
        args.query_socket(),
        run.join("bgp"),
    ]
}

/// False if it is not there.
fn remove(path: &Path) -> std::io::Result<bool> {
    let removed = match path.is_dir() {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    };
    match removed {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
