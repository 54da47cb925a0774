//! Runs the lab's hubs as processes next to the datastore, in the fabric's namespace, where every node reaches them. In
//! a lab with Kubernetes they are pods instead ([`crate::kube::install`]).

use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::process::LabDaemon;
use crate::topology;
use std::net::SocketAddr;
use std::process::Command;

pub const MAX_HUBS: u8 = 9;
const FIRST_HUB_PORT: u16 = 5473;

pub fn daemon(place: &LabPaths, hub: u8) -> LabDaemon {
    LabDaemon::in_dir(&format!("hub {hub}"), &dir(place, hub))
}

fn dir(place: &LabPaths, hub: u8) -> std::path::PathBuf {
    place.dir().join("hubs").join(hub.to_string())
}

/// Returns the address of a hub. Hubs are numbered from 1.
pub fn address(hub: u8) -> SocketAddr {
    (topology::gateway(1).ipv4, FIRST_HUB_PORT + u16::from(hub) - 1).into()
}

/// Returns the environment variable that makes nodes connect to the hubs; `None` in a lab without hubs.
pub fn variables(cluster: &LabCluster) -> Option<(&'static str, String)> {
    let addresses: Vec<String> = (1..=cluster.hubs).map(|hub| address(hub).to_string()).collect();
    (cluster.hubs > 0).then(|| ("FELIX_TYPHAADDR", addresses.join(",")))
}

pub fn check(cluster: &LabCluster, hub: u8) -> LabResult<()> {
    cluster.check_plain(
        "its hubs are pods of the deployment tortie-hub in kube-system, which kubectl stops and scales",
    )?;
    if !(1..=cluster.hubs).contains(&hub) {
        return Err(LabError::refused(format!("there is no hub {hub}; this lab has {}", cluster.hubs)));
    }
    Ok(())
}

/// Starts a hub and waits until it is ready.
pub async fn start(place: &LabPaths, cluster: &LabCluster, hub: u8) -> LabResult<()> {
    check(cluster, hub)?;
    let daemon = daemon(place, hub);
    if let Some(pid) = daemon.running() {
        return Err(LabError::refused(format!("hub {hub} is running already (process {pid})")));
    }
    let dir = dir(place, hub);
    std::fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    let served = times_ready(&daemon);
    let mut command = Command::new(place.bin().join("tortie"));
    let address = address(hub);
    command
        .arg("hub")
        .arg("--config-file")
        .arg(dir.join("typha.cfg"))
        .arg("--config")
        .arg(place.ctl_config())
        .env("TYPHA_SERVERHOST", address.ip().to_string())
        .env("TYPHA_SERVERPORT", address.port().to_string())
        // `lab hub stop` waits for the hub to exit.
        .env("TYPHA_SHUTDOWNTIMEOUTSECS", "10");
    let started = daemon.start(&place.fabric(), command)?;
    started
        .ready(
            async || {
                if times_ready(&daemon) > served { Ok(()) } else { Err("it has not read the datastore yet") }
            },
        )
        .await
}

/// Counts the ready lines in the log, which is continued when the hub is restarted.
fn times_ready(daemon: &LabDaemon) -> usize {
    std::fs::read_to_string(&daemon.log).unwrap_or_default().matches("ready: hub on ").count()
}
