//! `calicoctl ipam`: shows address usage, checks the IPAM records, and releases addresses.

pub(crate) mod bordered_table;
mod check;
mod configure;
mod journal;
pub(crate) mod pool_use;
mod release;
mod report;
mod show;
mod snapshot;
mod split;
mod usage_list;
mod users;

pub use usage_list::{BlockUsage, PoolUsage, UsageList, list_usage};

use crate::cli::{ConnectionArgs, GlobalArgs};
use crate::failure::{CommandError, CommandResult};
use crate::session::connect;
use clap::{Args, Subcommand};
use journal::JournalArgs;
use std::io::Write;
use std::path::PathBuf;
use tortie_ipam::{Allocator, BlockOwner};
use tortie_store::ResourceClient;

#[derive(Debug, Args)]
pub struct IpamArgs {
    #[command(subcommand)]
    pub command: IpamCommand,
}

#[derive(Debug, Subcommand)]
pub enum IpamCommand {
    /// Compare assigned addresses with those that nodes and workloads use
    ///
    /// Reports only what several reads over three seconds confirm: while workloads come and go, the records of one read
    /// do not agree.
    #[command(after_help = "Examples:
  calicoctl ipam check
  calicoctl ipam check --show-problem-ips -o report.json")]
    Check(IpamCheckArgs),
    /// Release an address, or the leaked addresses that "ipam check" reported
    #[command(after_help = "Examples:
  calicoctl ipam release --ip=10.65.3.7
  calicoctl ipam release --from-report=report.json")]
    Release(IpamReleaseArgs),
    /// Show how many addresses are in use, or the user of one address
    #[command(after_help = "Examples:
  calicoctl ipam show --show-blocks
  calicoctl ipam show --ip=10.65.3.7")]
    Show(IpamShowArgs),
    /// Split a pool into smaller ones; the datastore must be locked
    Split(IpamSplitArgs),
    /// Change the settings of address assignment
    Configure(IpamConfigureArgs),
}

#[derive(Debug, Args)]
pub struct IpamCheckArgs {
    /// Print every address
    #[arg(long)]
    pub show_all_ips: bool,
    /// Print addresses with problems
    #[arg(long)]
    pub show_problem_ips: bool,
    /// Write a report to this file, for "ipam release --from-report"
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Accepted for compatibility; services are not checked
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub journal: JournalArgs,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

#[derive(Debug, Args)]
pub struct IpamReleaseArgs {
    /// The address to release, regardless of its owner
    #[arg(long, value_name = "IP", conflicts_with = "from_report", required_unless_present = "from_report")]
    pub ip: Option<String>,
    /// Release the addresses that this report lists as leaked; with several reports, those in all of them
    #[arg(long, value_name = "FILE")]
    pub from_report: Vec<PathBuf>,
    /// Accept a report of another version and a datastore that is not locked; with --ip, also release the
    /// address of a running container
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub journal: JournalArgs,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

#[derive(Debug, Args)]
pub struct IpamShowArgs {
    /// Show the user of this address
    #[arg(long, value_name = "IP")]
    pub ip: Option<String>,
    /// Show blocks too
    #[arg(long)]
    pub show_blocks: bool,
    /// Show addresses that are used by another node than the owner of their block
    #[arg(long)]
    pub show_borrowed: bool,
    /// Show the settings of address assignment
    #[arg(long)]
    pub show_configuration: bool,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

#[derive(Debug, Args)]
pub struct IpamSplitArgs {
    /// Number of new pools; a power of two
    #[arg(value_name = "NUMBER")]
    pub number: String,
    /// The pool with this CIDR
    #[arg(long, value_name = "CIDR", conflicts_with = "name", required_unless_present = "name")]
    pub cidr: Option<String>,
    /// The pool with this name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

#[derive(Debug, Args)]
pub struct IpamConfigureArgs {
    /// true: a node uses only addresses of its own blocks
    #[arg(long, value_name = "BOOL")]
    pub strictaffinity: Option<String>,
    /// Maximum number of blocks of a node; 0 means the default (20)
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub max_blocks_per_host: Option<String>,
    /// Enabled or Disabled: whether a virtual machine keeps its address when it moves
    #[arg(long, value_name = "MODE")]
    pub kubevirt_ip_persistence: Option<String>,
    /// How long a released address is not assigned again; -1 leaves the setting as it is
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub ip_cooldown_seconds: Option<String>,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

pub async fn run(args: &IpamArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    match &args.command {
        IpamCommand::Check(args) => check::check(args, &connect(&args.connection, global).await?, out).await,
        IpamCommand::Release(args) => {
            release::release(args, &connect(&args.connection, global).await?, out).await
        }
        IpamCommand::Show(args) => show::show(args, &connect(&args.connection, global).await?, out).await,
        IpamCommand::Split(args) => split::split(args, &connect(&args.connection, global).await?, out).await,
        IpamCommand::Configure(args) => {
            let change = configure::parse_change(args)?;
            configure::configure(&change, &connect(&args.connection, global).await?, out).await
        }
    }
}

/// Returns an allocator that owns no blocks: the commands only read and release, they never allocate.
fn build_allocator(store: &ResourceClient) -> Allocator {
    Allocator::new(store.client().clone(), BlockOwner::host("calicoctl"))
}

fn parse_address(text: &str) -> CommandResult<std::net::IpAddr> {
    text.parse().map_err(|_| CommandError::message(format!("invalid IP address: '{text}'")))
}

impl From<tortie_ipam::IpamError> for CommandError {
    fn from(error: tortie_ipam::IpamError) -> CommandError {
        match error {
            tortie_ipam::IpamError::Store(error) => CommandError::Store(error),
            other => CommandError::message(other),
        }
    }
}
