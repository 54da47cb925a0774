//! Scripted demonstration: starts a lab, adds pods on different nodes, pings between them, prints the routes, removes
//! the lab.

use crate::bgp::BgpMode;
use crate::cluster::{LabCluster, LabDatastore};
use crate::encap::PodEncapsulation;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::pod::{self, LabPod};
use crate::topology::LabTopology;
use crate::up::LabPlan;
use crate::{down, netns, status, up};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::Command;

const DEMO_NODE_COUNT: u8 = 3;

pub async fn run(place: &LabPaths, datastore: LabDatastore, out: &mut dyn Write) -> LabResult<()> {
    title(out, "A cluster of three nodes on this machine")?;
    let plan = LabPlan {
        nodes: DEMO_NODE_COUNT,
        datastore,
        topology: LabTopology::L2,
        bgp: BgpMode::None,
        encap: PodEncapsulation::None,
        bird: Vec::new(),
        hubs: 0,
        record: false,
        pools: Vec::new(),
        keep: false,
        kubernetes: None,
    };
    let cluster = up::up(place, &plan).await?;
    let shown = up::interruptible(show(place, &cluster, out)).await;
    title(out, "Everything is removed again")?;
    down::down(place)?;
    shown
}

async fn show(place: &LabPaths, cluster: &LabCluster, out: &mut dyn Write) -> LabResult<()> {
    title(out, "A pod on each node, wired by the CNI plugin")?;
    let mut pods = Vec::new();
    for node in &cluster.nodes {
        let name = node.name.replace("node", "pod");
        let pod = LabPod::new(&name, &node.name, "default", BTreeMap::new())?;
        let pod = pod::add(place, cluster, pod).await?;
        let addresses: Vec<String> = pod.addresses.iter().map(ToString::to_string).collect();
        writeln!(out, "{name} on {}: {}", pod.node, addresses.join(", ")).map_err(output)?;
        pods.push(pod);
    }
    title(out, "They reach each other across nodes, over IPv4 and IPv6")?;
    if let Some((first, others)) = pods.split_first() {
        for address in others.iter().flat_map(|pod| &pod.addresses) {
            let address = address.to_string();
            let netns = place.pod_netns(&first.name);
            inside(&netns, &first.name, &["ping", "-c", "2", "-i", "0.2", "-W", "5", &address], out)?;
        }
    }
    title(out, "The routes of a node")?;
    for family in ["-4", "-6"] {
        inside(&place.node_netns("node1"), "node1", &["ip", family, "route"], out)?;
    }
    title(out, "The whole lab")?;
    let text = status::gather(place).await?.to_text();
    out.write_all(text.as_bytes()).map_err(output)?;
    title(out, "Pods go and leave nothing behind")?;
    for pod in &pods {
        pod::delete(place, cluster, &pod.name).await?;
    }
    inside(&place.node_netns("node1"), "node1", &["ip", "-4", "route"], out)
}

/// Runs a command in a namespace and prints the command line and its output.
fn inside(netns: &str, who: &str, command: &[&str], out: &mut dyn Write) -> LabResult<()> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    writeln!(out, "{who}$ {}", command.join(" ")).map_err(output)?;
    let mut process = Command::new(program);
    process.args(arguments);
    let finished = netns::open(netns)?
        .command(process)
        .and_then(|command| command.output())
        .map_err(|error| LabError::kernel(format!("cannot run {program}"), &error))?;
    out.write_all(&finished.stdout).map_err(output)?;
    match finished.status.success() {
        true => Ok(()),
        false => {
            let errors = String::from_utf8_lossy(&finished.stderr).trim().to_owned();
            Err(LabError::refused(format!("{} failed ({}): {errors}", command.join(" "), finished.status)))
        }
    }
}

fn title(out: &mut dyn Write, text: &str) -> LabResult<()> {
    writeln!(out, "\n== {text}").map_err(output)
}

fn output(source: io::Error) -> LabError {
    LabError::Io { what: "output".to_owned(), source }
}
