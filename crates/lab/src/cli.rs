//! `tortie lab`: the tree of commands, and what each does.

use crate::bgp::Bgp;
use crate::cluster::{Cluster, Datastore};
use crate::encap::Encap;
use crate::error::{Error, Result};
use crate::place::{DEFAULT_NAME, Place};
use crate::pod::{self, Pod};
use crate::sessions::{self, Session};
use crate::status;
use crate::topology::{MOST_NODES, Topology};
use crate::up::{self, Plan, say};
use crate::{demo, down, enter, logs, node};
use clap::{Args, Subcommand, ValueEnum};
use ipnet::IpNet;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

/// A whole cluster on this machine: every node and every pod is a network namespace
#[derive(Clone, Debug, Args)]
pub struct LabArgs {
    /// Which lab; several can be up at a time
    #[arg(long = "name", value_name = "NAME", env = "TORTIE_LAB", global = true, default_value = DEFAULT_NAME)]
    lab: String,
    /// Its directory, instead of /run/tortie-lab/NAME
    #[arg(long, value_name = "DIR", env = "TORTIE_LAB_DIR", global = true)]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum LabCommand {
    /// Bring a cluster up; returns when it is ready
    Up(UpArgs),
    /// Add and remove pods
    #[command(subcommand)]
    Pod(PodCommand),
    /// Add nodes, stop and start their daemons
    #[command(subcommand)]
    Node(NodeCommand),
    /// Run a command on a node, as on that host, or in a pod; a shell when none is given
    Exec {
        #[arg(value_name = "NODE_OR_POD")]
        target: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Run calicoctl on the lab's store
    Ctl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// Say whether a packet may pass, and which rule says so
    ///
    /// As `tortie explain` on the lab's store: lab explain --from web --to db --port 5432
    Explain {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// Show the BGP sessions of all nodes, or of one
    Bgp {
        #[arg(value_name = "NODE")]
        node: Option<String>,
    },
    /// Print the logs of the store and of all nodes, or of one node
    Logs {
        #[arg(value_name = "NODE")]
        node: Option<String>,
        /// Go on printing as lines come, until interrupted
        #[arg(short, long)]
        follow: bool,
    },
    /// Print the variables with which calicoctl and etcdctl reach the lab's store, for a shell to evaluate
    Env,
    /// Show nodes, addresses, blocks, pods and routes
    Status {
        #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "text")]
        output: Format,
    },
    /// Remove the cluster, or what is left of it
    Down,
    /// Show all of it: up, pods, pings across nodes, routes, down
    Demo {
        #[arg(long, value_enum, default_value = "embedded")]
        datastore: Datastore,
    },
}

#[derive(Clone, Debug, Args)]
struct UpArgs {
    /// How many nodes; they are called node1, node2 and so on
    #[arg(long, value_name = "COUNT", default_value_t = 3,
          value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_NODES)))]
    nodes: u8,
    #[arg(long, value_enum, default_value = "embedded")]
    datastore: Datastore,
    /// All nodes on one link, or racks behind a router
    #[arg(long, value_enum, default_value = "l2")]
    topology: Topology,
    /// How nodes tell each other their routes
    #[arg(long, value_enum, default_value = "none")]
    bgp: Bgp,
    /// How packets of pods travel between nodes
    #[arg(long, value_enum, default_value = "none")]
    encap: Encap,
    /// A node for which BIRD speaks BGP instead of its own daemon; may be given several times
    #[arg(long, value_name = "NODE")]
    bird: Vec<String>,
    /// A pool for the pods' addresses, instead of one of each family; may be given several times
    #[arg(long = "pool", value_name = "CIDR")]
    pools: Vec<IpNet>,
    /// Have every node record what happens to it, for `tortie replay`: the files are nodes/NODE/recording in the lab's
    /// directory
    #[arg(long)]
    record: bool,
    /// Leave everything as it is if something fails
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Debug, Subcommand)]
enum PodCommand {
    /// Start a pod and print its addresses
    Add {
        name: String,
        #[arg(long)]
        node: String,
        #[arg(long, default_value = "default")]
        namespace: String,
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
        labels: Vec<(String, String)>,
    },
    /// Remove a pod
    #[command(alias = "delete")]
    Del { name: String },
}

#[derive(Clone, Debug, Subcommand)]
enum NodeCommand {
    /// Add one more node and print its name; returns when it is ready
    Add,
    /// End a node's daemon; its pods keep their network
    Stop {
        node: String,
        /// Give it no chance to end by itself
        #[arg(long)]
        kill: bool,
    },
    /// Start it again; returns when it is ready
    Start { node: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

fn label(text: &str) -> std::result::Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("use KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Runs one command. What becomes another program does so before anything starts a thread.
pub fn run(args: LabArgs, out: &mut dyn Write) -> Result<()> {
    let place = Place::new(&args.lab, args.dir.as_deref())?;
    match args.command {
        LabCommand::Exec { target, command } => enter::exec(&place, &target, &command),
        LabCommand::Ctl { arguments } => enter::ctl(&place, &arguments),
        LabCommand::Explain { arguments } => enter::explain(&place, &arguments),
        LabCommand::Logs { node, follow } => logs::print(&place, node.as_deref(), follow, out),
        LabCommand::Env => print(out, &enter::exports(&place)?),
        LabCommand::Down => {
            let name = place.name();
            match down::down(&place)? {
                true => say(&format!("{name} is removed")),
                false => say(&format!("there is no lab {name}")),
            }
            Ok(())
        }
        command => {
            let failed = |source| Error::Io { what: "runtime".to_owned(), source };
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
            runtime.block_on(run_async(&place, command, out))
        }
    }
}

async fn run_async(place: &Place, command: LabCommand, out: &mut dyn Write) -> Result<()> {
    match command {
        LabCommand::Up(args) => {
            let UpArgs { nodes, datastore, topology, bgp, encap, bird, pools, record, keep } = args;
            let plan = Plan { nodes, datastore, topology, bgp, encap, bird, pools, record, keep };
            up::up(place, &plan).await?;
            let hints = ["pod add web --node node1", "status", "exec node1 -- ip route"];
            say(&format!("try: {}", hints.map(|words| place.command(words)).join("; ")));
            Ok(())
        }
        LabCommand::Pod(PodCommand::Add { name, node, namespace, labels }) => {
            let cluster = Cluster::load(place)?;
            let labels: BTreeMap<String, String> = labels.into_iter().collect();
            let pod = pod::add(place, &cluster, Pod::new(&name, &node, &namespace, labels)?).await?;
            let lines: Vec<String> = pod.addresses.iter().map(|address| format!("{address}\n")).collect();
            print(out, &lines.concat())
        }
        LabCommand::Pod(PodCommand::Del { name }) => {
            let cluster = Cluster::load(place)?;
            pod::delete(place, &cluster, &name).await
        }
        LabCommand::Node(NodeCommand::Stop { node, kill }) => {
            Cluster::load(place)?.node(&node)?;
            let signal = if kill { Signal::KILL } else { Signal::TERM };
            if !node::daemon(place, &node).stop(signal)? {
                say(&format!("the daemon of {node} is not running"));
            }
            Ok(())
        }
        LabCommand::Node(NodeCommand::Add) => {
            let name = node::add(place, Cluster::load(place)?).await?;
            print(out, &format!("{name}\n"))
        }
        LabCommand::Node(NodeCommand::Start { node }) => {
            let cluster = Cluster::load(place)?;
            node::resume(place, &cluster, &cluster.node(&node)?.name).await
        }
        LabCommand::Status { output } => {
            let status = status::gather(place).await?;
            match output {
                Format::Text => print(out, &status.to_text()),
                Format::Json => {
                    let text = serde_json::to_string_pretty(&status)
                        .map_err(|error| Error::Io { what: "status".to_owned(), source: error.into() })?;
                    print(out, &format!("{text}\n"))
                }
            }
        }
        LabCommand::Bgp { node } => {
            let cluster = Cluster::load(place)?;
            let wanted = node.map(|name| cluster.node(&name).cloned()).transpose()?;
            for node in wanted.as_ref().map_or(&cluster.nodes[..], std::slice::from_ref) {
                let sessions = sessions::of_node(&place.node_dir(&node.name).join("run")).await;
                let lines = match sessions.is_empty() {
                    true => vec!["no sessions".to_owned()],
                    false => sessions.iter().map(Session::line).collect(),
                };
                print(out, &lines.iter().map(|line| format!("{}  {line}\n", node.name)).collect::<String>())?;
            }
            Ok(())
        }
        LabCommand::Demo { datastore } => demo::run(place, datastore, out).await,
        // Handled before there was a runtime.
        LabCommand::Exec { .. }
        | LabCommand::Ctl { .. }
        | LabCommand::Explain { .. }
        | LabCommand::Logs { .. }
        | LabCommand::Env
        | LabCommand::Down => Ok(()),
    }
}

fn print(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|source| Error::Io { what: "output".to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Whole {
        #[command(flatten)]
        lab: LabArgs,
    }

    fn parse(words: &[&str]) -> std::result::Result<LabCommand, clap::Error> {
        Whole::try_parse_from([&["lab"], words].concat()).map(|whole| whole.lab.command)
    }

    #[test]
    fn commands_of_others_are_passed_on_whole() {
        for words in
            [&["exec", "node1", "--", "ip", "-4", "route"][..], &["exec", "node1", "ip", "-4", "route"]]
        {
            let LabCommand::Exec { target, command } = parse(words).unwrap() else { panic!("not exec") };
            assert_eq!(target, "node1");
            assert_eq!(command, ["ip", "-4", "route"]);
        }
        let LabCommand::Ctl { arguments } = parse(&["ctl", "get", "ippools", "-o", "json"]).unwrap() else {
            panic!("not ctl")
        };
        assert_eq!(arguments, ["get", "ippools", "-o", "json"]);
    }

    #[test]
    fn a_pod_is_not_taken_for_a_lab() {
        let whole = Whole::try_parse_from(["lab", "pod", "add", "web", "--node", "node1"]).unwrap();
        assert_eq!(whole.lab.lab, "lab");
        let whole = Whole::try_parse_from(["lab", "pod", "del", "web", "--name", "other"]).unwrap();
        assert_eq!(whole.lab.lab, "other");
    }

    #[test]
    fn bad_values_are_refused() {
        assert!(parse(&["up", "--nodes", "0"]).is_err());
        assert!(parse(&["up", "--nodes", "101"]).is_err());
        assert!(parse(&["up", "--pool", "10.0.0.0/33"]).is_err());
        assert!(parse(&["pod", "add", "a", "--node", "node1", "--label", "x"]).is_err());
        assert!(parse(&["up", "--topology", "ring"]).is_err());
    }
}
