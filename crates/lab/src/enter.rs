//! Runs commands inside the lab: on a node, in a pod, or on the host against the lab's datastore.

use crate::cluster::{LabCluster, LabDatastore};
use crate::error::{LabError, LabResult};
use crate::names::suggest_name;
use crate::place::LabPaths;
use crate::pod::LabPod;
use crate::{kube, netns, node};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Replaces this process with a command on a node or in a pod. Returns only on failure. The caller must be
/// single-threaded: setns moves only the calling thread.
pub fn exec(place: &LabPaths, target: &str, command: &[OsString]) -> LabResult<()> {
    let cluster = LabCluster::load(place)?;
    let (program, arguments) = match command.split_first() {
        Some((program, arguments)) => (program.clone(), arguments),
        None => (std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()), command),
    };
    let mut command = Command::new(&program);
    command.args(arguments);
    let netns = match cluster.node(target) {
        Ok(node) => {
            command.envs(node::store_variables(place, &cluster));
            command.env("PATH", search_path(place));
            if cluster.kubernetes.is_some() {
                return kube::enter::on_node(place, &node.name, command);
            }
            command.envs(node::variables(place, &node.name));
            place.node_netns(&node.name)
        }
        Err(_) => {
            let pod = LabPod::load(place, target).map_err(|_| {
                let nodes = cluster.nodes.iter().map(|node| node.name.clone());
                let pods = crate::pod::all(place).unwrap_or_default().into_iter().map(|pod| pod.name);
                let hint = suggest_name(target, nodes.chain(pods));
                LabError::refused(format!(
                    "there is neither a node nor a pod called {target}{hint}; `{}` shows them",
                    place.command("status")
                ))
            })?;
            place.pod_netns(&pod.name)
        }
    };
    netns::enter(&netns)?;
    Err(LabError::Io { what: program.to_string_lossy().into_owned(), source: command.exec() })
}

/// Enters the network namespace from which the datastore is reachable, if necessary. The caller must be
/// single-threaded.
pub fn reach_store(place: &LabPaths, cluster: &LabCluster) -> LabResult<()> {
    match cluster.datastore {
        LabDatastore::Embedded | LabDatastore::Etcd => Ok(()),
        LabDatastore::Kubernetes => netns::enter(&place.fabric()),
    }
}

/// Replaces this process with calicoctl on the lab's datastore. Returns only on failure.
pub fn ctl(place: &LabPaths, arguments: &[OsString]) -> LabResult<()> {
    exec_with_store(place, &place.bin().join("calicoctl"), &[], arguments)
}

/// Replaces this process with `tortie explain` on the lab's datastore. Returns only on failure.
pub fn explain(place: &LabPaths, arguments: &[OsString]) -> LabResult<()> {
    exec_with_store(place, &place.bin().join("tortie"), &["explain"], arguments)
}

/// Replaces this process with `tortie console` on the lab's datastore. Returns only on failure.
pub fn console(place: &LabPaths, arguments: &[OsString]) -> LabResult<()> {
    exec_with_store(place, &place.bin().join("tortie"), &["console"], arguments)
}

fn exec_with_store(
    place: &LabPaths,
    program: &Path,
    subcommand: &[&str],
    arguments: &[OsString],
) -> LabResult<()> {
    let cluster = LabCluster::load(place)?;
    reach_store(place, &cluster)?;
    let mut command = Command::new(program);
    command.args(subcommand).args(arguments).envs(node::store_variables(place, &cluster));
    Err(LabError::file(program)(command.exec()))
}

/// Renders shell `export` lines that point calicoctl and etcdctl to the lab's datastore.
pub fn exports(place: &LabPaths) -> LabResult<String> {
    let cluster = LabCluster::load(place)?;
    let mut text = String::new();
    // The config file takes precedence over ETCD_ENDPOINTS. Set it only if a default config file exists, which would
    // otherwise win; without one, a later change of ETCD_ENDPOINTS takes effect.
    let needs_file = Path::new(tortie_store::StoreConfig::DEFAULT_FILE).exists();
    let variables = node::store_variables(place, &cluster).into_iter();
    for (name, value) in variables.filter(|(name, _)| *name != "CALICOCTL_CONFIG" || needs_file) {
        text.push_str(&format!("export {name}='{}'\n", value.replace('\'', r"'\''")));
    }
    Ok(text)
}

/// Returns the PATH with the lab's programs first.
fn search_path(place: &LabPaths) -> OsString {
    let mut path = place.bin().into_os_string();
    if let Some(others) = std::env::var_os("PATH") {
        path.push(":");
        path.push(others);
    }
    path
}
