//! Where `tortie flows` reads from: a collector, the node of this host, or all nodes of a lab.

use super::CollectorArgs;
use clap::Args;
use std::io::Write;
use std::path::{Path, PathBuf};
use tonic::transport::Channel;
use tortie_ctl::CommandError;
use tortie_flows::connect_node;
use tortie_flows::proto::flows_client::FlowsClient;
use tortie_lab::LabPaths;

/// The nodes to read from if there is no collector.
#[derive(Args, Debug)]
pub struct NodeSourceArgs {
    /// Directory of the sockets of the node to read from, if no collector is given
    #[arg(long, value_name = "DIR", env = "TORTIE_RUN_DIR", default_value = "/run/tortie")]
    run_dir: PathBuf,
    /// Read from the nodes of this lab instead
    #[arg(long, value_name = "NAME")]
    lab: Option<String>,
    /// Only this node of the lab
    #[arg(long, value_name = "NAME", requires = "lab")]
    node: Option<String>,
}

/// A node whose socket exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Name of the node in a lab; empty for the node of this host.
    pub name: String,
    pub run_dir: PathBuf,
}

/// A connection to read flows from.
pub struct FlowSource {
    /// Name of the node in a lab; empty for a collector and for the node of this host.
    pub name: String,
    pub client: FlowsClient<Channel>,
}

impl NodeSourceArgs {
    /// Returns the nodes.
    pub fn places(&self) -> Result<Vec<NodePlace>, CommandError> {
        let Some(lab) = &self.lab else {
            return Ok(vec![NodePlace { name: String::new(), run_dir: self.run_dir.clone() }]);
        };
        let lab = LabPaths::new(lab, None).map_err(CommandError::message)?;
        let dir = lab.dir().join("nodes");
        let unreadable =
            |error| CommandError::message(format!("{}: {error}; does the lab run?", dir.display()));
        let mut places = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if self.node.as_ref().is_none_or(|node| *node == name) {
                places.push(NodePlace { name, run_dir: entry.path().join("run") });
            }
        }
        if let (Some(node), true) = (&self.node, places.is_empty()) {
            return Err(CommandError::message(format!("the lab has no node {node:?}")));
        }
        places.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(places)
    }
}

impl NodePlace {
    fn socket(&self) -> PathBuf {
        self.run_dir.join("flows.sock")
    }
}

/// Connects to the collector if one is given, else to the nodes. Nodes that cannot be read are named on standard error; it is
/// an error if there is no other.
pub async fn connect(
    collector: &CollectorArgs,
    nodes: &NodeSourceArgs,
) -> Result<Vec<FlowSource>, CommandError> {
    if collector.is_given() && nodes.lab.is_none() {
        let client = collector.target(None)?.connect().await.map_err(CommandError::message)?;
        return Ok(vec![FlowSource { name: String::new(), client }]);
    }
    let mut sources = Vec::new();
    let mut errors = Vec::new();
    for place in nodes.places()? {
        match connect_place(&place.socket()).await {
            Ok(client) => sources.push(FlowSource { name: place.name, client }),
            Err(error) if place.name.is_empty() => return Err(error),
            Err(error) => errors.push(format!("node {}: {error}", place.name)),
        }
    }
    if sources.is_empty() {
        return Err(CommandError::message(errors.join("\n")));
    }
    for error in errors {
        writeln!(std::io::stderr(), "{error}")?;
    }
    Ok(sources)
}

async fn connect_place(socket: &Path) -> Result<FlowsClient<Channel>, CommandError> {
    if !socket.exists() {
        return Err(CommandError::message(format!(
            "no flow collector is configured, and the node does not record flows: there is no {}. Give --server HOST:PORT or \
             set GOLDMANE_HOST to read from a collector, or enable recording with flowLogsLocalReporter: Enabled in \
             FelixConfiguration",
            socket.display()
        )));
    }
    connect_node(socket).await.map_err(CommandError::message)
}
