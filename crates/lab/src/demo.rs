//! Scripted demonstration: starts a lab, adds pods on different nodes, pings between them, prints the routes, removes
//! the lab.

use crate::cluster::{LabCluster, LabDatastore};
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::pod::{self, LabPod};
use crate::topology::LabTopology;
use crate::{down, netns, status, up};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;

const DEMO_NODE_COUNT: u8 = 3;

pub async fn run(place: &LabPaths, datastore: LabDatastore, out: &mut dyn Write) -> LabResult<()> {
    print_title(out, "A cluster of three nodes on this machine")?;
    let cluster = LabCluster::new(place, datastore, LabTopology::L2, DEMO_NODE_COUNT);
    let cluster = up::up(place, cluster, false).await?;
    let shown = up::interruptible(show(place, &cluster, out)).await;
    print_title(out, "Everything is removed again")?;
    down::down(place)?;
    shown
}

async fn show(place: &LabPaths, cluster: &LabCluster, out: &mut dyn Write) -> LabResult<()> {
    print_title(out, "A pod on each node, wired by the CNI plugin")?;
    let mut pods = Vec::new();
    for node in &cluster.nodes {
        let name = node.name.replace("node", "pod");
        let pod = LabPod::new(&name, &node.name, "default", BTreeMap::new())?;
        let pod = pod::add(place, cluster, pod).await?;
        let addresses: Vec<String> = pod.addresses.iter().map(ToString::to_string).collect();
        writeln!(out, "{name} on {}: {}", pod.node, addresses.join(", ")).map_err(LabError::Output)?;
        pods.push(pod);
    }
    print_title(out, "They reach each other across nodes, over IPv4 and IPv6")?;
    if let Some((first, others)) = pods.split_first() {
        for address in others.iter().flat_map(|pod| &pod.addresses) {
            let address = address.to_string();
            let netns = place.pod_netns(&first.name);
            run_in(&netns, &first.name, &["ping", "-c", "2", "-i", "0.2", "-W", "5", &address], out)?;
        }
    }
    print_title(out, "The routes of a node")?;
    for family in ["-4", "-6"] {
        run_in(&place.node_netns("node1"), "node1", &["ip", family, "route"], out)?;
    }
    print_title(out, "The whole lab")?;
    let text = status::gather(place).await?.to_text();
    out.write_all(text.as_bytes()).map_err(LabError::Output)?;
    print_title(out, "Pods go and leave nothing behind")?;
    for pod in &pods {
        pod::delete(place, cluster, &pod.name).await?;
    }
    run_in(&place.node_netns("node1"), "node1", &["ip", "-4", "route"], out)
}

/// Runs a command in a namespace and prints the command line and its output.
fn run_in(netns: &str, who: &str, command: &[&str], out: &mut dyn Write) -> LabResult<()> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    writeln!(out, "{who}$ {}", command.join(" ")).map_err(LabError::Output)?;
    let mut process = Command::new(program);
    process.args(arguments);
    let finished = netns::output(netns, process, b"")?;
    out.write_all(&finished.stdout).map_err(LabError::Output)?;
    if !finished.status.success() {
        let errors = String::from_utf8_lossy(&finished.stderr).trim().to_owned();
        let line = command.join(" ");
        return Err(LabError::refused(format!("{line} failed ({}): {errors}", finished.status)));
    }
    Ok(())
}

fn print_title(out: &mut dyn Write, text: &str) -> LabResult<()> {
    writeln!(out, "\n== {text}").map_err(LabError::Output)
}
