//! Runs BIRD as the BGP speaker of a node, in place of the node daemon's own. The lab starts it as an init system
//! would.

use crate::bgp::BgpMode;
use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::process::LabDaemon;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit for the node daemon to write the first BIRD configuration.
const CONFIG_TIMEOUT: Duration = Duration::from_secs(60);
const CONFIG_POLL_INTERVAL: Duration = Duration::from_millis(50);

fn dir(place: &LabPaths, node: &str) -> PathBuf {
    place.node_dir(node).join("bird")
}

/// Rejects `--bird` without BGP and for unknown nodes.
pub fn check(cluster: &LabCluster) -> LabResult<()> {
    if !cluster.bird.is_empty() && cluster.bgp == BgpMode::None {
        return Err(LabError::refused("without BGP there is nothing for BIRD to do; use --bgp too"));
    }
    cluster.bird.iter().try_for_each(|name| cluster.node(name).map(drop))
}

/// Returns the environment variables with the paths of BIRD's files, for the node daemon.
pub fn variables(place: &LabPaths, node: &str) -> [(&'static str, PathBuf); 2] {
    let dir = dir(place, node);
    [("TORTIE_BIRD_CONFIG", dir.join("bird.cfg")), ("TORTIE_BIRD_SOCKET", dir.join("bird.ctl"))]
}

/// Starts BIRD once the node daemon has written its configuration, unless it is running: BIRD outlives the daemon.
pub async fn start(place: &LabPaths, node: &str) -> LabResult<()> {
    let dir = dir(place, node);
    let daemon = LabDaemon::in_dir(&format!("BIRD of {node}"), &dir);
    if daemon.running().is_some() {
        return Ok(());
    }
    let file = dir.join("bird.cfg");
    let control = dir.join("bird.ctl");
    let deadline = Instant::now() + CONFIG_TIMEOUT;
    while !file.exists() {
        if Instant::now() > deadline {
            return Err(LabError::refused(format!("{node} has not written {}", file.display())));
        }
        tokio::time::sleep(CONFIG_POLL_INTERVAL).await;
    }
    let mut command = Command::new("bird");
    command.args(["-f", "-R", "-c"]).arg(&file).arg("-s").arg(&control);
    let started = daemon.start(&place.node_netns(node), command)?;
    started.ready(async || UnixStream::connect(&control).map(drop)).await
}
