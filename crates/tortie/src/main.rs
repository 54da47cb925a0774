#![doc = include_str!("../README.md")]

mod apiserver;
mod bgp;
#[cfg(test)]
mod chart;
mod console;
mod controllers;
mod crds;
mod csi;
mod datastore;
mod dhcp;
mod flows;
mod health;
mod hub;
mod l7;
mod logging;
mod man;
mod node;
mod openstack;
mod policy;
mod reference;
mod rotating_log;
mod settings;
mod up;
mod webhooks;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use logging::DaemonLogging;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tortie_cni::CniPlugin;
use tortie_ctl::analyze::{AnalyzeArgs, analyze};
use tortie_ctl::policy::{DiffArgs, ExplainArgs, diff, explain};
use tortie_ctl::{Cli, CommandError, release};
use tortie_store::printable::escape_line_controls;

/// Calico networking in one binary: the same API, datastore and command line as Calico
#[derive(Debug, Parser)]
#[command(
    name = "tortie",
    version,
    disable_version_flag = true,
    after_help = "Examples:
  tortie lab up                                           a cluster on this machine, to try things
  tortie up                                               make this host a node
  tortie explain --from shop/web --to shop/db --port 5432 why does this traffic pass, or not?
  tortie diff -f policy.yaml                              what would this change?
  tortie analyze                                          what is likely a mistake?
  calicoctl get nodes -o wide                             the same as: tortie ctl get nodes -o wide"
)]
struct TortieCli {
    /// Print the version
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    version: (),
    #[command(subcommand)]
    command: TortieCommand,
}

// `defer`: clap builds the options of only the selected subcommand. The code that builds all of them is large and would
// stay in a daemon's memory. The descriptions of subcommands are therefore here and not with their options.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
enum TortieCommand {
    /// calicoctl: manage resources in the datastore
    Ctl(Box<Cli>),
    /// Run the embedded datastore: an etcd v3 server for clusters on one machine
    Datastore(datastore::DatastoreArgs),
    /// Run the node daemon of this host: routes, policy, BGP, and the work of the CNI plugins
    ///
    /// `tortie up` starts it together with everything else that a node needs. Settings are read from
    /// FelixConfiguration, from the FELIX_* environment variables and from felix.cfg; `tortie settings` shows the
    /// values in effect.
    #[command(after_help = "Examples:
  tortie node                                                   with the embedded datastore of this host
  ETCD_ENDPOINTS=https://10.0.0.5:2379 NODENAME=n1 tortie node  with etcd
  tortie node --record events.jsonl                             record what happens, for `tortie replay`")]
    Node(node::NodeCommand),
    /// Run the controllers of a Kubernetes cluster: garbage collection, host endpoints, load balancers
    ///
    /// Run them once per cluster; with several replicas, one is elected leader. They are configured by the
    /// KubeControllersConfiguration resource and apply changes while running.
    Controllers(controllers::ControllersCommand),
    /// Run a hub, which watches the datastore once for thousands of nodes (Calico's Typha)
    ///
    /// Nodes with FELIX_TYPHAADDR=HOST:PORT connect to a hub instead of the datastore. Settings are read from the
    /// TYPHA_* environment variables and from typha.cfg, with the same names as Typha's.
    Hub(hub::HubArgs),
    /// HTTP policy with Envoy: answer its authorization requests (Calico's Dikastes)
    ///
    /// The program has the same commands when it is called as `dikastes`.
    L7(l7::L7Args),
    /// Run the CSI driver csi.tigera.io, which gives pods the policy-sync socket of their node as a volume
    ///
    /// kubelet calls it for pods with an inline volume of this driver. The node serves the policy of the pod on the
    /// socket if policySyncPathPrefix is set. The program is the FlexVolume driver nodeagent/uds if it is called as
    /// `uds`.
    Csi(csi::CsiArgs),
    /// Run the DHCP server of an OpenStack compute host: DHCPv4, DHCPv6 and router advertisements (Calico's DHCP agent)
    ///
    /// Serves the virtual machines behind the tap interfaces of this host with the addresses, routes and name servers
    /// that the Neutron driver stores in etcd. The program is the same when it is called as `calico-dhcp-agent`.
    Dhcp(dhcp::DhcpArgs),
    /// Run the daemon of Neutron's driver: OpenStack's ports, security groups and subnets in etcd
    ///
    /// Neutron's driver `tortie` sends it the objects of Neutron's database on a Unix socket. The daemon translates them,
    /// writes what differs with compare-and-swap, and returns the states of nodes and ports to the driver. One daemon runs
    /// beside each Neutron server; they elect the one that reports states.
    Openstack(openstack::OpenStackArgs),
    /// Flow records: run a collector for Calico's Felix and Whisker (Calico's Goldmane), or list flows
    Flows(flows::FlowsArgs),
    /// Serve a web page that shows the cluster, its policy and its traffic
    ///
    /// Reads the datastore and, if one is configured, a flow collector; changes nothing. On a loopback address it prints a
    /// link that is valid once, and another when it was used. It refuses addresses that other hosts reach unless clients
    /// need certificates.
    #[command(after_help = "Examples:
  tortie console                                         on 127.0.0.1:7070, with the datastore of this host
  tortie console --socket /run/tortie/console.sock --socket-group adm
  tortie console --listen 0.0.0.0:7443 --tls-cert web.crt --tls-key web.key --client-ca users.crt
  GOLDMANE_HOST=collector:7443 tortie console --collector-cert tls.crt --collector-key tls.key --collector-ca ca.crt")]
    Console(Box<console::ConsoleArgs>),
    /// Run the aggregated API server for kubectl: projectcalico.org/v3 behind kube-apiserver
    ///
    /// kube-apiserver forwards requests for the group to it once an APIService refers to it. Objects are stored where
    /// nodes read them: as crd.projectcalico.org/v1 in Kubernetes, or in etcd. Requests are authorized by Kubernetes
    /// RBAC, and for policies also by the permissions on their tiers.
    Apiserver(apiserver::ApiserverCommand),
    /// Run the admission webhooks of a cluster that stores objects as custom resources of projectcalico.org/v3
    ///
    /// kube-apiserver calls them before it stores a policy, to check that the user has permission on its tier, and
    /// before it stores ClusterInformation, which users may only read. Without a given certificate they generate one,
    /// store it in the Secret calico-webhooks-tls, renew it and register its CA with Kubernetes.
    Webhooks(webhooks::WebhooksCommand),
    /// Make this host a node: start the datastore and the daemon, install the CNI plugins
    ///
    /// Starts the embedded datastore if no datastore is configured. Running daemons are left alone, so the command can
    /// be repeated. `tortie down` reverts it.
    #[command(after_help = "Examples:
  tortie up                                            a node with the embedded datastore
  ETCD_ENDPOINTS=https://10.0.0.5:2379 tortie up       a node of a cluster with etcd
  tortie up --ipv6 --network prod                      containers get addresses of both families")]
    Up(up::UpArgs),
    #[command(hide = true)]
    Supervise(up::SuperviseArgs),
    /// Revert `tortie up`; the data of the embedded datastore is kept unless --purge is given
    #[command(after_help = "Examples:
  tortie down              refused while containers use the network
  tortie down --force      removes the network of running containers too
  tortie down --purge      removes the datastore with everything in it")]
    Down(up::DownArgs),
    /// Run a whole cluster on this machine: every node and every pod is a network namespace
    ///
    /// For experiments, debugging and tests. Needs root; the host's own network is not changed.
    Lab(tortie_lab::LabArgs),
    /// Show whether traffic between two endpoints is allowed, which rule decides, and what to change
    ///
    /// Reads only the datastore: contacts no node and sends no packet. The result applies to the first packet of a new
    /// flow, with its addresses after service resolution.
    ///
    /// Exit status: 0 if the traffic is allowed, 1 if it is denied, 2 if the question cannot be answered.
    Explain(Box<ExplainArgs>),
    /// Show which traffic would be newly allowed or denied if resources were applied or deleted
    ///
    /// Writes nothing. For every pair of endpoints, compares the verdicts of policies and profiles at both ends for the
    /// first packet of a new flow, over all ports that any rule distinguishes; source ports are assumed to be
    /// ephemeral. For hosts, compares traffic from and to the host itself; changes to forwarded traffic are only
    /// mentioned.
    ///
    /// Exit status, as for diff(1): 0 if nothing changes, 1 if something does, 2 on errors.
    Diff(Box<DiffArgs>),
    /// Find likely mistakes in the cluster's configuration
    ///
    /// Finds policies and rules that match nothing or are never reached, tiers that hide later tiers, missing profiles,
    /// BGP filters and passwords, pools and BGP peers that no node uses, pools without routes between nodes,
    /// encapsulation and encryption that are not in force, settings without effect, inconsistent MTUs, unreadable
    /// entries, and pods without policy. Reads only the datastore and the interfaces of this host; changes nothing.
    ///
    /// Exit status: 0 if nothing was found, 1 if something was, 2 if the check failed.
    Analyze(Box<AnalyzeArgs>),
    /// Show policy activity in this host's kernel: rule counters, and verdicts as they happen
    Policy(policy::PolicyArgs),
    /// Show the BGP sessions and routes of this host's node
    Bgp(bgp::BgpArgs),
    /// Show the settings of this host's node: parameters of FelixConfiguration, their values in effect and the source
    /// of each
    Settings(settings::SettingsArgs),
    /// Replay a recording of `tortie node --record`: prints the node's plan and its changes
    ///
    /// Needs neither root nor a kernel with the node's interfaces.
    Replay {
        /// The recording
        #[arg(value_name = "FILE")]
        file: std::path::PathBuf,
    },
    /// Check the health of this host's node
    ///
    /// Without flags, checks every part and prints a line for each. Exit status: 0 if the node is ready, 1 if a part is
    /// not ready, 2 if the node must be restarted or is not running. With flags, runs only these checks; the exit
    /// status is 1 if one fails.
    Health(health::HealthArgs),
    /// Print the CRDs of all kinds for Kubernetes, or their JSON schemas
    ///
    /// Kinds that are not custom resources in Kubernetes (Node, Profile, WorkloadEndpoint, LiveMigration) have a schema
    /// but no CRD.
    Crds(crds::CrdsArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Example:
  tortie completion bash > /etc/bash_completion.d/tortie")]
    Completion {
        /// bash, zsh, fish, elvish or powershell
        #[arg(value_name = "SHELL", hide_possible_values = true)]
        shell: clap_complete::Shell,
    },
    /// Write the man pages of all commands into a directory
    #[command(hide = true)]
    Man {
        #[arg(value_name = "DIR")]
        directory: std::path::PathBuf,
    },
    /// Show the version
    Version,
}

fn main() -> ExitCode {
    let args: Vec<OsString> = health::translate_command_line(std::env::args_os().collect());
    let result = match choose_front_end(&args) {
        // The CNI plugin comes first, without any other setup, since a container runtime waits for it.
        FrontEnd::Plugin(plugin) => return tortie_cni::run(plugin, env!("CARGO_PKG_VERSION")),
        FrontEnd::FlexVolume => return csi::run_flexvolume(&args, &mut std::io::stdout()),
        FrontEnd::Ctl(name) => {
            parse(Cli::command().name(name), &args, |cli: Cli| run_ctl(&cli).map(exit_successfully))
        }
        FrontEnd::DhcpAgent => parse(dhcp::DhcpAgentCli::command(), &args, |agent: dhcp::DhcpAgentCli| {
            run(TortieCommand::Dhcp(agent.args))
        }),
        FrontEnd::Tortie => parse(TortieCli::command(), &args, |tortie: TortieCli| run(tortie.command)),
    };
    match result {
        Ok(code) => code,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // Ignore write errors: the exit status still reports the failure.
            let advice = if failure.is_permission_denied() { "; run as root" } else { "" };
            let text = format!("{failure}{advice}");
            let _ = writeln!(std::io::stderr(), "{}", escape_line_controls(&text));
            choose_failure_status(&args)
        }
    }
}

fn exit_successfully((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

/// Returns the exit status of a failure: 1, or 2 for commands where 1 is a result.
fn choose_failure_status(args: &[OsString]) -> ExitCode {
    match args.get(1).and_then(|word| word.to_str()) {
        Some("explain" | "diff" | "analyze") => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

enum FrontEnd {
    Ctl(&'static str),
    Plugin(CniPlugin),
    FlexVolume,
    DhcpAgent,
    Tortie,
}

/// Returns the front end that the program name selects.
fn choose_front_end(args: &[OsString]) -> FrontEnd {
    let name = args.first().and_then(|path| Path::new(path).file_name()).and_then(|name| name.to_str());
    match name {
        Some("calicoctl") => FrontEnd::Ctl("calicoctl"),
        Some("kubectl-calico") => FrontEnd::Ctl("kubectl-calico"),
        Some("calico") => FrontEnd::Plugin(CniPlugin::Calico),
        Some("calico-ipam") => FrontEnd::Plugin(CniPlugin::CalicoIpam),
        Some("uds") => FrontEnd::FlexVolume,
        Some("calico-dhcp-agent") => FrontEnd::DhcpAgent,
        // A container runtime runs the binary itself as a plugin.
        _ if args.len() == 1 && std::env::var_os("CNI_COMMAND").is_some() => {
            FrontEnd::Plugin(CniPlugin::Calico)
        }
        _ => FrontEnd::Tortie,
    }
}

/// Parses the arguments and runs the command. Help and version are printed to standard output and succeed; any other
/// parse error is a failure.
fn parse<T: FromArgMatches>(
    mut command: clap::Command,
    args: &[OsString],
    run: impl FnOnce(T) -> Result<ExitCode, CommandError>,
) -> Result<ExitCode, CommandError> {
    match command.try_get_matches_from_mut(args).and_then(|matches| T::from_arg_matches(&matches)) {
        Ok(parsed) => run(parsed),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Ok(exit_successfully(error.print()?))
        }
        // calicoctl prints its help and succeeds if a command has only subcommands and none is given.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && is_ctl(args) => {
            Ok(exit_successfully(write!(std::io::stdout(), "{}", error.render())?))
        }
        Err(error) => Err(CommandError::message(error.to_string().trim_end().to_owned())),
    }
}

/// Returns whether the command is calicoctl under one of its names.
fn is_ctl(args: &[OsString]) -> bool {
    match choose_front_end(args) {
        FrontEnd::Ctl(_) => true,
        FrontEnd::Tortie => args.get(1).is_some_and(|word| word == "ctl"),
        FrontEnd::Plugin(_) | FrontEnd::FlexVolume | FrontEnd::DhcpAgent => false,
    }
}

fn run(part: TortieCommand) -> Result<ExitCode, CommandError> {
    let mut out = std::io::stdout();
    match part {
        TortieCommand::Explain(args) => {
            let allowed = block_on(&args.global.log_level, explain(&args, &mut out))?;
            return Ok(ExitCode::from(u8::from(!allowed)));
        }
        TortieCommand::Diff(args) => {
            let changes = block_on(&args.global.log_level, diff(&args, &mut out))?;
            return Ok(ExitCode::from(u8::from(changes)));
        }
        TortieCommand::Analyze(args) => {
            let found = block_on(&args.global.log_level, async {
                // Ignore errors: without the interfaces, the datastore contents can still be analyzed.
                let interfaces =
                    async { tortie_dataplane::interface_mtus(&tortie_dataplane::Netns::current()?).await };
                analyze(&args, interfaces.await.unwrap_or_default(), &mut out).await
            })?;
            return Ok(ExitCode::from(u8::from(found)));
        }
        TortieCommand::Health(args) => return health::run(&args, &mut out),
        TortieCommand::L7(args) => return l7::run(args, &mut out),
        TortieCommand::Flows(args) => flows::run(args, &mut out),
        TortieCommand::Console(args) => console::run(&args),
        TortieCommand::Controllers(command) => match command.probe() {
            Some(probe) => return controllers::answer(&command, probe, &mut out),
            None => {
                DaemonLogging::start();
                controllers::run(command)
            }
        },
        TortieCommand::Ctl(cli) => run_ctl(&cli),
        TortieCommand::Datastore(args) => {
            tortie_process::end_with_supervisor()?;
            DaemonLogging::start();
            datastore::run(args).map_err(CommandError::message)
        }
        TortieCommand::Node(args) => {
            tortie_process::share_heaps();
            tortie_process::end_with_supervisor()?;
            let logs = DaemonLogging::start();
            node::run(args, Arc::new(logs), &mut out).map_err(CommandError::message)
        }
        TortieCommand::Hub(args) => {
            tortie_process::end_with_supervisor()?;
            DaemonLogging::start();
            hub::run(&args).map_err(CommandError::message)
        }
        TortieCommand::Dhcp(args) => {
            tortie_process::end_with_supervisor()?;
            DaemonLogging::start();
            dhcp::run(args).map_err(CommandError::message)
        }
        TortieCommand::Openstack(args) => {
            tortie_process::end_with_supervisor()?;
            DaemonLogging::start();
            openstack::run(args).map_err(CommandError::message)
        }
        TortieCommand::Csi(args) => {
            DaemonLogging::start();
            csi::run(args).map_err(CommandError::message)
        }
        TortieCommand::Apiserver(command) => {
            DaemonLogging::start();
            apiserver::run(command).map_err(CommandError::message)
        }
        TortieCommand::Webhooks(command) => {
            DaemonLogging::start();
            webhooks::run(command).map_err(CommandError::message)
        }
        TortieCommand::Up(args) => up::up(args, &mut out),
        TortieCommand::Supervise(args) => up::supervise(&args),
        TortieCommand::Down(args) => up::down(&args, &mut out),
        TortieCommand::Lab(args) => tortie_lab::run(args, &mut out).map_err(CommandError::message),
        TortieCommand::Policy(args) => policy::run(&args, &mut out),
        TortieCommand::Bgp(args) => bgp::run(&args, &mut out),
        TortieCommand::Settings(args) => settings::run(&args, &mut out),
        TortieCommand::Replay { file } => {
            DaemonLogging::start();
            tortie_node::replay(&file, &mut std::io::BufWriter::new(out)).map_err(CommandError::message)
        }
        TortieCommand::Crds(args) => crds::print(&args, &mut out),
        TortieCommand::Completion { shell } => {
            tortie_ctl::completion(shell, TortieCli::command(), "tortie", &mut out)
        }
        TortieCommand::Man { directory } => man::write(&directory, &mut out),
        TortieCommand::Version => {
            writeln!(out, "tortie {}", env!("CARGO_PKG_VERSION"))?;
            writeln!(out, "Calico API:        {}", release::API_LEVEL)?;
            writeln!(out, "Git commit:        {}", release::GIT_COMMIT)?;
            Ok(())
        }
    }
    .map(exit_successfully)
}

fn run_ctl(cli: &Cli) -> Result<(), CommandError> {
    block_on(&cli.global.log_level, tortie_ctl::run(cli, &mut std::io::stdout()))
}

fn block_on<T>(
    log_level: &str,
    command: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    let filter = tortie_ctl::log_filter(log_level)?;
    tracing_subscriber::fmt().with_max_level(filter).with_writer(std::io::stderr).init();
    // One thread is enough: a command waits for one response at a time.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_well_formed() {
        TortieCli::command().debug_assert();
    }

    #[test]
    fn the_usual_flags_print_the_version() {
        for flag in ["--version", "-V"] {
            let error = TortieCli::command().try_get_matches_from(["tortie", flag]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DisplayVersion);
            assert_eq!(error.to_string(), format!("tortie {}\n", env!("CARGO_PKG_VERSION")));
        }
    }

    #[test]
    fn the_name_picks_the_front_end() {
        let name = |path: &str| match choose_front_end(&[OsString::from(path)]) {
            FrontEnd::Ctl(name) => name,
            FrontEnd::Plugin(plugin) => plugin.name(),
            FrontEnd::FlexVolume => "uds",
            FrontEnd::DhcpAgent => "calico-dhcp-agent",
            FrontEnd::Tortie => "tortie",
        };
        assert_eq!(name("/opt/cni/bin/calico"), "calico");
        assert_eq!(name("calico-ipam"), "calico-ipam");
        assert_eq!(name("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/nodeagent~uds/uds"), "uds");
        assert_eq!(name("/usr/local/bin/calicoctl"), "calicoctl");
        assert_eq!(name("kubectl-calico"), "kubectl-calico");
        assert_eq!(name("/usr/bin/calico-dhcp-agent"), "calico-dhcp-agent");
        assert_eq!(name("./target/debug/tortie"), "tortie");
        assert_eq!(name(""), "tortie");
    }
}
