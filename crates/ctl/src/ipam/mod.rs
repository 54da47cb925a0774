//! `calicoctl ipam`: what addresses are in use, whether the records are right, and giving addresses back.

pub(crate) mod bordered_table;
mod check;
mod configure;
mod journal;
pub(crate) mod pool_use;
mod release;
mod report;
mod show;
mod split;
mod users;

use crate::cli::{Connection, Global};
use crate::failure::{Failure, Result};
use crate::session::connect;
use clap::{Args, Subcommand};
use journal::JournalArgs;
use std::io::Write;
use std::path::PathBuf;
use tortie_ipam::{Allocator, Owner};
use tortie_store::Resources;

#[derive(Debug, Args)]
pub struct Ipam {
    #[command(subcommand)]
    pub command: IpamCommand,
}

#[derive(Debug, Subcommand)]
pub enum IpamCommand {
    /// Compare what is recorded as assigned with what nodes and workloads use
    Check(Check),
    /// Give back an address, or the leaked ones that "ipam check" reported
    Release(Release),
    /// Show how many addresses are in use, or who uses one
    Show(Show),
    /// Split a pool into smaller ones; the datastore must be locked
    Split(Split),
    /// Change how addresses are assigned
    Configure(Configure),
}

#[derive(Debug, Args)]
pub struct Check {
    /// Print every address that is looked at
    #[arg(long)]
    pub show_all_ips: bool,
    /// Print the addresses that are wrong
    #[arg(long)]
    pub show_problem_ips: bool,
    /// Write what was found to a file, for "ipam release --from-report"
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Where Kubernetes is; services are not looked at by this build
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub journal: JournalArgs,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct Release {
    /// The address to give back, whoever has it
    #[arg(long, value_name = "IP", conflicts_with = "from_report", required_unless_present = "from_report")]
    pub ip: Option<String>,
    /// Give back what this report calls leaked; with several, what all of them do
    #[arg(long, value_name = "FILE")]
    pub from_report: Vec<PathBuf>,
    /// Also with a report of another version, and while the datastore is not locked; with --ip, also the address of a live
    /// attachment
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub journal: JournalArgs,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct Show {
    /// Who uses this address
    #[arg(long, value_name = "IP")]
    pub ip: Option<String>,
    /// Blocks too, not only pools
    #[arg(long)]
    pub show_blocks: bool,
    /// Addresses used by another node than the one whose block they are from
    #[arg(long)]
    pub show_borrowed: bool,
    /// How addresses are assigned
    #[arg(long)]
    pub show_configuration: bool,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct Split {
    /// Into how many pools; a power of two
    #[arg(value_name = "NUMBER")]
    pub number: String,
    /// The pool with this CIDR
    #[arg(long, value_name = "CIDR", conflicts_with = "name", required_unless_present = "name")]
    pub cidr: Option<String>,
    /// The pool with this name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct Configure {
    /// true: a node only uses addresses of its own blocks
    #[arg(long, value_name = "BOOL")]
    pub strictaffinity: Option<String>,
    /// The most blocks a node may have; 0 is 20 or what the request says
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub max_blocks_per_host: Option<String>,
    /// Enabled or Disabled: whether a virtual machine keeps its address when it moves
    #[arg(long, value_name = "MODE")]
    pub kubevirt_ip_persistence: Option<String>,
    /// For how long an address is not used again after it was given back; -1 leaves it as it is
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub ip_cooldown_seconds: Option<String>,
    #[command(flatten)]
    pub connection: Connection,
}

pub async fn run(args: &Ipam, global: &Global, out: &mut dyn Write) -> Result<()> {
    match &args.command {
        IpamCommand::Check(args) => check::check(args, &connect(&args.connection, global).await?, out).await,
        IpamCommand::Release(args) => {
            release::release(args, &connect(&args.connection, global).await?, out).await
        }
        IpamCommand::Show(args) => show::show(args, &connect(&args.connection, global).await?, out).await,
        IpamCommand::Split(args) => split::split(args, &connect(&args.connection, global).await?, out).await,
        IpamCommand::Configure(args) => {
            let change = configure::change(args)?;
            configure::configure(&change, &connect(&args.connection, global).await?, out).await
        }
    }
}

/// An allocator that owns nothing: commands give back and look, they do not take.
fn allocator(store: &Resources) -> Allocator {
    Allocator::new(store.client().clone(), Owner::host("calicoctl"))
}

fn address(text: &str) -> Result<std::net::IpAddr> {
    text.parse().map_err(|_| Failure::message(format!("invalid IP address: '{text}'")))
}

impl From<tortie_ipam::Error> for Failure {
    fn from(error: tortie_ipam::Error) -> Failure {
        match error {
            tortie_ipam::Error::Store(error) => Failure::Store(error),
            other => Failure::message(other.to_string()),
        }
    }
}
