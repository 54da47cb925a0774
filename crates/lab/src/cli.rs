//! Command line of `tortie lab`: the subcommands and their dispatch.

use crate::bgp::BgpMode;
use crate::cluster::{LabCluster, LabDatastore};
use crate::encap::PodEncapsulation;
use crate::error::{LabError, LabResult};
use crate::hub::{self, MAX_HUBS};
use crate::kube::image::{self, ContainerImage};
use crate::kube::{
    self, ApiGroup, CalicoApiMode, KubernetesOptions, KubernetesSettings, PodNetwork, ProxyMode,
};
use crate::place::{DEFAULT_NAME, LabPaths};
use crate::pod::{self, LabPod};
use crate::sessions::{self, NodeBgpSession};
use crate::sidecar;
use crate::status;
use crate::top;
use crate::topology::{LabTopology, MAX_NODES};
use crate::up::{self, print_progress};
use crate::{demo, down, enter, logs, node};
use clap::{Args, Subcommand, ValueEnum};
use ipnet::IpNet;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  tortie lab up --nodes 3
  tortie lab pod add web --node node1 --label app=web
  tortie lab pod add client --node node2
  tortie lab explain --from client --to web --port 80
  tortie lab status
  tortie lab down")]
pub struct LabArgs {
    /// Name of the lab; several can be up at a time
    #[arg(long = "name", value_name = "NAME", env = "TORTIE_LAB", global = true, default_value = DEFAULT_NAME)]
    lab: String,
    /// Directory of the lab, instead of /run/tortie-lab/NAME
    #[arg(long, value_name = "DIR", env = "TORTIE_LAB_DIR", global = true)]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct ImageArgs {
    #[command(subcommand)]
    command: Option<ImageCommand>,
    #[arg(short, long, value_name = "FILE", required = true)]
    output: Option<PathBuf>,
    /// Name and tag of the image
    #[arg(long, value_name = "NAME:TAG", default_value = image::TORTIE_IMAGE)]
    tag: String,
    /// Make an image of another program and its shared libraries, such as Envoy
    #[arg(long, value_name = "FILE", requires = "tag")]
    program: Option<PathBuf>,
    /// Make the image of this build of tortie instead of the running one, such as a build for another architecture
    #[arg(long, value_name = "FILE", conflicts_with = "program")]
    binary: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
enum ImageCommand {
    /// Import the images of an archive (OCI or Docker) on every node of a lab with Kubernetes
    Load {
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Clone, Debug, Subcommand)]
enum LabCommand {
    /// Start a cluster; returns when it is ready
    #[command(after_help = "Examples:
  tortie lab up                                      three nodes on one link, routes without BGP
  tortie lab up --nodes 5 --bgp mesh                 BGP between all nodes
  tortie lab up --topology l3 --bgp tor              racks behind a router that runs BIRD
  tortie lab up --datastore etcd --pool 10.99.0.0/16 a real etcd and a pool of your choice
  tortie lab up --kubernetes --api aggregated        a real Kubernetes, where kubectl manages policies")]
    Up(UpArgs),
    /// Add and remove pods
    #[command(subcommand)]
    Pod(PodCommand),
    /// Add a node, stop or start its daemon
    #[command(subcommand)]
    Node(NodeCommand),
    /// Stop or start a hub of a lab started with `lab up --hub`
    #[command(subcommand)]
    Hub(HubCommand),
    /// Run a command on a node or in a pod; without a command, a shell
    #[command(after_help = "Examples:
  tortie lab exec web -- ping -c 1 10.244.0.2
  tortie lab exec node1 -- ip route
  tortie lab exec node1 -- tortie policy watch")]
    Exec {
        #[arg(value_name = "NODE_OR_POD")]
        target: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Run calicoctl on the lab's datastore
    #[command(after_help = "Examples:
  tortie lab ctl get workloadendpoints -o wide
  tortie lab ctl apply -f policy.yaml")]
    Ctl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// Run kubectl on the lab's Kubernetes
    #[command(after_help = "Examples:
  tortie lab kubectl get pods -A -o wide
  tortie lab kubectl get gnp                         in a lab with --api")]
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// Write a container image of a program (OCI archive), or load images into a lab
    #[command(after_help = "Examples:
  tortie lab image -o tortie.tar     an image of this program
  tortie lab image -o envoy.tar --tag docker.io/envoyproxy/envoy:v1.40.0 --program $(scripts/envoy)
  tortie lab image load app.tar      import the images of an archive on every node of a lab with Kubernetes")]
    Image(ImageArgs),
    /// Internal: starts the init process of a Kubernetes node, or with --first runs as it
    #[command(hide = true)]
    Machine {
        node: String,
        #[arg(long)]
        first: bool,
    },
    /// Internal: keeps the routes of the control plane to pods
    #[command(hide = true)]
    PodRoutes,
    /// Show whether a packet is allowed, and which rule decides
    ///
    /// Equivalent to `tortie explain` on the lab's datastore.
    #[command(after_help = "Examples:
  tortie lab explain --from client --to web --port 80
  tortie lab explain --from client --to web --port udp/53 --all")]
    Explain {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// Serve a web page that shows the lab, until interrupted
    ///
    /// Equivalent to `tortie console` on the lab's datastore. In a lab with the Kubernetes API as datastore, use --socket: the
    /// console runs in a network namespace of the lab.
    #[command(after_help = "Examples:
  tortie lab console
  tortie lab console --listen 127.0.0.1:8080")]
    Console {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// Show the BGP sessions of all nodes, or of one
    Bgp {
        #[arg(value_name = "NODE")]
        node: Option<String>,
    },
    /// Print the logs of the datastore and of all nodes, or of one node
    Logs {
        #[arg(value_name = "NODE")]
        node: Option<String>,
        /// Keep printing new lines until interrupted
        #[arg(short, long)]
        follow: bool,
    },
    /// Show the resource usage of each daemon: CPU time, memory, pods, routes, BGP sessions
    #[command(after_help = "Examples:
  tortie lab top                 a new table every two seconds, until interrupted
  tortie lab top --count 1       one table")]
    Top {
        /// Stop after this many tables
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
        count: Option<u32>,
        /// Seconds between two tables
        #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
        interval: u64,
    },
    /// Print shell variables that point calicoctl and etcdctl to the lab's datastore
    #[command(after_help = "Example:
  eval \"$(tortie lab env)\"")]
    Env,
    /// Show nodes, addresses, blocks, pods and routes
    Status {
        #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "text")]
        output: StatusFormat,
    },
    /// Remove the cluster, also after a crash
    Down,
    /// Start a cluster, ping between pods on different nodes, show the routes, remove the cluster
    Demo {
        #[arg(long, value_enum, default_value = "embedded")]
        datastore: LabDatastore,
    },
}

#[derive(Clone, Debug, Args)]
struct UpArgs {
    /// Number of nodes; they are named node1, node2 and so on
    #[arg(long, value_name = "COUNT", default_value_t = 3,
          value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_NODES)))]
    nodes: u8,
    /// Datastore of the nodes; the default is embedded, or kubernetes with --kubernetes
    #[arg(long, value_enum)]
    datastore: Option<LabDatastore>,
    /// All nodes on one link, or racks behind a router
    #[arg(long, value_enum, default_value = "l2")]
    topology: LabTopology,
    /// How nodes exchange routes by BGP
    #[arg(long, value_enum, default_value = "none")]
    bgp: BgpMode,
    /// Encapsulation of pod traffic between nodes
    #[arg(long, value_enum, default_value = "none")]
    encap: PodEncapsulation,
    /// Use BIRD as the BGP speaker of this node; may be given several times
    #[arg(long, value_name = "NODE")]
    bird: Vec<String>,
    /// Number of hubs between the datastore and the nodes. With 0, every node watches the datastore itself. With
    /// --kubernetes the hubs run as pods
    #[arg(long = "hub", value_name = "COUNT", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=i64::from(MAX_HUBS)))]
    hubs: u8,
    /// IP pool for pods, instead of one pool of each family; may be given several times
    #[arg(long = "pool", value_name = "CIDR")]
    pools: Vec<IpNet>,
    /// Run Kubernetes: a control plane, and a kubelet and containerd on every node
    #[arg(long)]
    kubernetes: bool,
    /// Service proxy on the nodes of Kubernetes
    #[arg(long, value_enum, default_value = "iptables", requires = "kubernetes")]
    proxy: ProxyMode,
    /// CNI plugin that connects the pods of Kubernetes
    #[arg(long, value_enum, default_value = "calico", requires = "kubernetes")]
    cni: PodNetwork,
    /// API group that stores Calico's objects; the default is v3, or depends on --api
    #[arg(long, value_enum, requires = "kubernetes")]
    api_group: Option<ApiGroup>,
    /// How kubectl accesses Calico's objects, with authorization by tier
    #[arg(long, value_enum, requires = "kubernetes")]
    api: Option<CalicoApiMode>,
    /// Leave out the cluster's DNS server, as `--proxy none` does
    #[arg(long, requires = "kubernetes")]
    no_dns: bool,
    /// Directory of the Kubernetes programs, if not on the PATH; `make kube` builds them
    #[arg(long, value_name = "DIR", env = "TORTIE_KUBE", requires = "kubernetes")]
    kube: Option<PathBuf>,
    /// Record the input events of every node for `tortie replay`, in nodes/NODE/recording in the lab's directory
    #[arg(long)]
    record: bool,
    /// Record flows on every node; `tortie flows list --lab NAME` prints them
    #[arg(long, conflicts_with = "kubernetes")]
    flows: bool,
    /// On failure, leave everything in place instead of removing it
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Debug, Subcommand)]
enum PodCommand {
    /// Start a pod and print its addresses
    #[command(after_help = "Examples:
  tortie lab pod add web --node node1
  tortie lab pod add db --node node2 --namespace shop --label app=db --label tier=back
  tortie lab pod add api --node node1 --envoy        with a sidecar that enforces HTTP policies")]
    Add {
        name: String,
        #[arg(long)]
        node: String,
        #[arg(long, default_value = "default")]
        namespace: String,
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
        labels: Vec<(String, String)>,
        /// Run Envoy and `tortie l7 serve` as the pod's sidecar, which enforces HTTP policies. Envoy accepts requests on
        /// port 80 of the pod and forwards them to a server that listens on 127.0.0.1:8080 in the pod
        #[arg(long)]
        envoy: bool,
        /// Envoy's binary, if not on the PATH; `scripts/envoy` fetches it
        #[arg(long, value_name = "FILE", env = "ENVOY")]
        envoy_program: Option<PathBuf>,
    },
    /// Remove a pod
    #[command(alias = "delete")]
    Del { name: String },
}

#[derive(Clone, Debug, Subcommand)]
enum NodeCommand {
    /// Add a node and print its name; returns when it is ready
    Add,
    /// Stop a node's daemon; its pods keep their network
    Stop {
        node: String,
        /// Use SIGKILL instead of SIGTERM
        #[arg(long)]
        kill: bool,
    },
    /// Start a node's daemon again; returns when it is ready
    Start { node: String },
}

#[derive(Clone, Debug, Subcommand)]
enum HubCommand {
    /// Stop a hub; its nodes connect to another one, or keep their current state
    Stop {
        hub: u8,
        /// Use SIGKILL instead of SIGTERM
        #[arg(long)]
        kill: bool,
    },
    /// Start a hub again; returns when it is ready
    Start { hub: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StatusFormat {
    Text,
    Json,
}

fn parse_label(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("use KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Runs one command. Commands that replace this process with another program run before any thread is started.
pub fn run(args: LabArgs, out: &mut dyn Write) -> LabResult<()> {
    let place = LabPaths::new(&args.lab, args.dir.as_deref())?;
    match args.command {
        LabCommand::Exec { target, command } => enter::exec(&place, &target, &command),
        LabCommand::Ctl { arguments } => enter::ctl(&place, &arguments),
        LabCommand::Explain { arguments } => enter::explain(&place, &arguments),
        LabCommand::Console { arguments } => enter::console(&place, &arguments),
        LabCommand::Kubectl { arguments } => kube::enter::kubectl(&place, &arguments),
        LabCommand::Machine { node, first: false } => kube::machine::boot(&place, &node),
        LabCommand::Machine { node, first: true } => kube::machine::run(&place, &node),
        LabCommand::Image(ImageArgs { command: Some(ImageCommand::Load { file }), .. }) => {
            let cluster = LabCluster::load(&place)?;
            kube::node::load_images(&place, &cluster, &file)?;
            print_progress(&format!("the images of {} are on every node", file.display()));
            Ok(())
        }
        LabCommand::Image(ImageArgs { command: None, output, tag, program: Some(program), .. }) => {
            let output = output.unwrap_or_default();
            ContainerImage::program(&program, &tag)?.write(&output)?;
            print_progress(&format!("{tag} is in {}", output.display()));
            Ok(())
        }
        LabCommand::Image(ImageArgs { command: None, output, tag, program: None, binary }) => {
            let output = output.unwrap_or_default();
            let own = std::path::Path::new("/proc/self/exe");
            let program = match binary {
                Some(binary) => binary,
                None => std::fs::read_link(own).map_err(LabError::file(own))?,
            };
            ContainerImage::tortie(&program, &tag)?.write(&output)?;
            print_progress(&format!("{tag} is in {}", output.display()));
            Ok(())
        }
        LabCommand::Logs { node, follow } => logs::print(&place, node.as_deref(), follow, out),
        LabCommand::Env => print(out, &enter::exports(&place)?),
        LabCommand::Down => {
            let name = place.name();
            let existed = down::down(&place)?;
            print_progress(&if existed {
                format!("{name} is removed")
            } else {
                format!("there is no lab {name}")
            });
            Ok(())
        }
        command => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|source| LabError::Io { what: "runtime".to_owned(), source })?;
            runtime.block_on(run_async(&place, command, out))
        }
    }
}

async fn run_async(place: &LabPaths, command: LabCommand, out: &mut dyn Write) -> LabResult<()> {
    match command {
        LabCommand::Up(args) => {
            let UpArgs {
                nodes, datastore, topology, bgp, encap, bird, hubs, pools, record, flows, keep, ..
            } = args;
            let default = if args.kubernetes { LabDatastore::Kubernetes } else { LabDatastore::Embedded };
            let datastore = datastore.unwrap_or(default);
            let mut kubernetes = None;
            if args.kubernetes {
                let UpArgs { proxy, cni, api_group, api, no_dns, .. } = args;
                let wanted = KubernetesOptions { proxy, cni, api_group, api, dns: !no_dns, datastore };
                kubernetes = Some(KubernetesSettings::new(args.kube.as_deref(), wanted)?);
            }
            let first = match &kubernetes {
                Some(KubernetesSettings { api: Some(_), .. }) => "kubectl get tiers",
                Some(_) => "kubectl get pods -A -o wide",
                None => "pod add web --node node1",
            };
            let hints = [first, "status", "exec node1 -- ip route"];
            let plain = LabCluster::new(place, datastore, topology, nodes);
            let cluster = LabCluster { bgp, encap, bird, hubs, pools, record, flows, kubernetes, ..plain };
            up::up(place, cluster, keep).await?;
            print_progress(&format!("try: {}", hints.map(|words| place.command(words)).join("; ")));
            Ok(())
        }
        LabCommand::Pod(PodCommand::Add { name, node, namespace, labels, envoy, envoy_program }) => {
            let cluster = LabCluster::load(place)?;
            cluster.check_plain("create pods with kubectl")?;
            let labels: BTreeMap<String, String> = labels.into_iter().collect();
            let mut pod = LabPod::new(&name, &node, &namespace, labels)?;
            if envoy {
                pod.envoy = Some(sidecar::find_envoy(envoy_program.as_deref())?);
            }
            let pod = pod::add(place, &cluster, pod).await?;
            let lines: Vec<String> = pod.addresses.iter().map(|address| format!("{address}\n")).collect();
            print(out, &lines.concat())
        }
        LabCommand::Pod(PodCommand::Del { name }) => {
            let cluster = LabCluster::load(place)?;
            pod::delete(place, &cluster, &name).await
        }
        LabCommand::Node(NodeCommand::Stop { node, kill }) => {
            let cluster = LabCluster::load(place)?;
            cluster.check_plain("stop processes of a node with `lab exec`")?;
            cluster.node(&node)?;
            let signal = if kill { Signal::KILL } else { Signal::TERM };
            if !node::daemon(place, &node).stop(signal)? {
                print_progress(&format!("the daemon of {node} is not running"));
            }
            Ok(())
        }
        LabCommand::Hub(HubCommand::Stop { hub, kill }) => {
            hub::check(&LabCluster::load(place)?, hub)?;
            let signal = if kill { Signal::KILL } else { Signal::TERM };
            if !hub::daemon(place, hub).stop(signal)? {
                print_progress(&format!("hub {hub} is not running"));
            }
            Ok(())
        }
        LabCommand::Hub(HubCommand::Start { hub }) => hub::start(place, &LabCluster::load(place)?, hub).await,
        LabCommand::Node(NodeCommand::Add) => {
            let name = node::add(place, LabCluster::load(place)?).await?;
            print(out, &format!("{name}\n"))
        }
        LabCommand::Node(NodeCommand::Start { node }) => {
            let cluster = LabCluster::load(place)?;
            node::resume(place, &cluster, &cluster.node(&node)?.name).await
        }
        LabCommand::Status { output } => {
            let status = status::gather(place).await?;
            match output {
                StatusFormat::Text => print(out, &status.to_text()),
                StatusFormat::Json => {
                    let text = serde_json::to_string_pretty(&status)
                        .map_err(|error| LabError::Io { what: "status".to_owned(), source: error.into() })?;
                    print(out, &format!("{text}\n"))
                }
            }
        }
        LabCommand::Bgp { node } => {
            let cluster = LabCluster::load(place)?;
            let wanted = node.map(|name| cluster.node(&name).cloned()).transpose()?;
            for node in wanted.as_ref().map_or(&cluster.nodes[..], std::slice::from_ref) {
                let sessions = sessions::list(&place.node_dir(&node.name).join("run")).await;
                let mut lines: Vec<String> = sessions.iter().map(NodeBgpSession::line).collect();
                if lines.is_empty() {
                    lines.push("no sessions".to_owned());
                }
                print(out, &lines.iter().map(|line| format!("{}  {line}\n", node.name)).collect::<String>())?;
            }
            Ok(())
        }
        LabCommand::Top { count, interval } => {
            top::top(place, count, std::time::Duration::from_secs(interval), out).await
        }
        LabCommand::Demo { datastore } => demo::run(place, datastore, out).await,
        LabCommand::PodRoutes => kube::pod_routes::follow_blocks(place).await,
        // Handled by `run` before the runtime was created.
        LabCommand::Exec { .. }
        | LabCommand::Ctl { .. }
        | LabCommand::Explain { .. }
        | LabCommand::Console { .. }
        | LabCommand::Kubectl { .. }
        | LabCommand::Image(_)
        | LabCommand::Machine { .. }
        | LabCommand::Logs { .. }
        | LabCommand::Env
        | LabCommand::Down => Ok(()),
    }
}

fn print(out: &mut dyn Write, text: &str) -> LabResult<()> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(LabError::Output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct LabCli {
        #[command(flatten)]
        lab: LabArgs,
    }

    fn parse(words: &[&str]) -> std::result::Result<LabCommand, clap::Error> {
        LabCli::try_parse_from([&["lab"], words].concat()).map(|whole| whole.lab.command)
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
        let words = ["kubectl", "exec", "web", "--", "ls", "-l"];
        let LabCommand::Kubectl { arguments } = parse(&words).unwrap() else { panic!("not kubectl") };
        assert_eq!(arguments, ["exec", "web", "--", "ls", "-l"]);
    }

    #[test]
    fn images_are_written_or_loaded() {
        let LabCommand::Image(args) = parse(&["image", "-o", "x.tar"]).unwrap() else { panic!("not image") };
        assert_eq!((args.command, args.output), (None, Some("x.tar".into())));
        let LabCommand::Image(args) = parse(&["image", "load", "app.tar"]).unwrap() else {
            panic!("not image")
        };
        assert_eq!(args.command, Some(ImageCommand::Load { file: "app.tar".into() }));
        assert!(parse(&["image"]).is_err());
    }

    #[test]
    fn a_pod_is_not_taken_for_a_lab() {
        let whole = LabCli::try_parse_from(["lab", "pod", "add", "web", "--node", "node1"]).unwrap();
        assert_eq!(whole.lab.lab, "lab");
        let whole = LabCli::try_parse_from(["lab", "pod", "del", "web", "--name", "other"]).unwrap();
        assert_eq!(whole.lab.lab, "other");
    }

    #[test]
    fn bad_values_are_refused() {
        assert!(parse(&["up", "--nodes", "0"]).is_err());
        assert!(parse(&["up", "--nodes", "101"]).is_err());
        assert!(parse(&["up", "--pool", "10.0.0.0/33"]).is_err());
        assert!(parse(&["pod", "add", "a", "--node", "node1", "--label", "x"]).is_err());
        assert!(parse(&["up", "--topology", "ring"]).is_err());
        assert!(parse(&["up", "--proxy", "nftables"]).is_err(), "there is nothing to proxy");
        assert!(parse(&["up", "--kubernetes", "--proxy", "nftables"]).is_ok());
        assert!(parse(&["up", "--cni", "ptp"]).is_err(), "there is no kubelet to call it");
        assert!(parse(&["up", "--no-dns"]).is_err(), "there is no DNS server without Kubernetes");
        assert!(parse(&["up", "--kubernetes", "--cni", "ptp", "--api-group", "v1"]).is_ok());
    }
}
