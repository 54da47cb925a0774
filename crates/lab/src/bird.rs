//! A BIRD on a node, which speaks BGP in the place of the node's daemon: run from here as an init system would run it.

use crate::bgp::Bgp;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::process::Daemon;
use crate::topology::Node;
use std::path::PathBuf;
use std::process::Command;

fn dir(place: &Place, node: &str) -> PathBuf {
    place.node_dir(node).join("bird")
}

/// Refuses what cannot be meant.
pub fn check(cluster: &Cluster) -> Result<()> {
    if !cluster.bird.is_empty() && cluster.bgp == Bgp::None {
        return Err(Error::refused("without BGP there is nothing for BIRD to do; use --bgp too"));
    }
    cluster.bird.iter().try_for_each(|name| cluster.node(name).map(drop))
}

/// Where the node's daemon finds BIRD.
pub fn variables(place: &Place, node: &str) -> [(&'static str, PathBuf); 2] {
    let dir = dir(place, node);
    [("TORTIE_BIRD_CONFIG", dir.join("bird.cfg")), ("TORTIE_BIRD_SOCKET", dir.join("bird.ctl"))]
}

/// Starts it unless it runs: it outlives the node's daemon. It begins with nothing; the daemon tells it the rest.
pub fn start(place: &Place, node: &Node) -> Result<()> {
    let dir = dir(place, &node.name);
    let daemon = Daemon::in_dir(&format!("BIRD of {}", node.name), &dir);
    if daemon.running().is_some() {
        return Ok(());
    }
    std::fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
    let file = dir.join("bird.cfg");
    if !file.exists() {
        let text = format!("router id {};\nprotocol device {{}}\n", node.ipv4.addr());
        std::fs::write(&file, text).map_err(Error::file(&file))?;
    }
    let mut command = Command::new("bird");
    command.args(["-f", "-R", "-c"]).arg(&file).arg("-s").arg(dir.join("bird.ctl"));
    daemon.start(&place.node_netns(&node.name), command).map(drop)
}
