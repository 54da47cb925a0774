//! `calicoctl node run`: starts the daemon of this host, as Calico starts its node container.

use crate::failure::{CommandError, CommandResult};
use clap::Args;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Run this host's node: print the equivalent command, and run it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calicoctl node run --ip 192.0.2.10 --name worker-1
  calicoctl node run --dryrun --backend none")]
pub struct RunArgs {
    /// IPv4 address of the node, or autodetect
    #[arg(long, value_name = "ADDRESS")]
    ip: Option<String>,
    /// IPv6 address of the node, or autodetect
    #[arg(long, value_name = "ADDRESS")]
    ip6: Option<String>,
    /// AS number of the node
    #[arg(long = "as", value_name = "NUMBER")]
    as_number: Option<String>,
    /// Name of the node [default: the host's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Method to detect the IPv4 address
    #[arg(long, value_name = "METHOD")]
    ip_autodetection_method: Option<String>,
    /// Method to detect the IPv6 address
    #[arg(long, value_name = "METHOD")]
    ip6_autodetection_method: Option<String>,
    /// Accepted for compatibility and ignored: the log goes to standard error
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Accepted for compatibility and ignored: no container image is used
    #[arg(long, value_name = "IMAGE")]
    node_image: Option<String>,
    /// bird, for BGP, or none
    #[arg(long, value_name = "BACKEND", value_parser = ["bird", "none"])]
    backend: Option<String>,
    /// Do not create default IP pools
    #[arg(long)]
    no_default_ippools: bool,
    /// File with settings of this host
    #[arg(long, value_name = "FILE")]
    felix_config: Option<PathBuf>,
    /// Print the command without running it
    #[arg(long)]
    dryrun: bool,
    /// Print a systemd unit that runs the node
    #[arg(long)]
    init_system: bool,
    /// Configuration file of the datastore
    #[arg(short = 'c', long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl RunArgs {
    fn variables(&self) -> Vec<(&'static str, String)> {
        let given = [
            ("NODENAME", &self.name),
            ("IP", &self.ip),
            ("IP6", &self.ip6),
            ("AS", &self.as_number),
            ("IP_AUTODETECTION_METHOD", &self.ip_autodetection_method),
            ("IP6_AUTODETECTION_METHOD", &self.ip6_autodetection_method),
            ("CALICO_NETWORKING_BACKEND", &self.backend),
        ];
        let mut variables: Vec<(&str, String)> =
            given.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        variables.extend(self.no_default_ippools.then(|| ("NO_DEFAULT_POOLS", "true".to_owned())));
        variables
    }

    fn words(&self) -> Vec<String> {
        let mut words = vec!["node".to_owned()];
        for (flag, file) in [("--config", &self.config), ("--felix-config", &self.felix_config)] {
            words.extend(file.iter().flat_map(|file| [flag.to_owned(), file.display().to_string()]));
        }
        words
    }

    fn line(&self) -> String {
        let variables = self.variables();
        let set = variables.iter().map(|(name, value)| format!("{name}={}", quote_argument(value)));
        let words = self.words();
        set.chain(["tortie".to_owned()])
            .chain(words.iter().map(|word| quote_argument(word)))
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn unit(&self, program: &str) -> String {
        let set: String = self
            .variables()
            .iter()
            .map(|(name, value)| format!("Environment={name}={}\n", quote_argument(value)))
            .collect();
        let words = self.words().join(" ");
        format!(
            "[Unit]\nDescription=Tortie node\nAfter=network-online.target\nWants=network-online.target\n\n[Service]\n{set}\
             ExecStart={program} {words}\nRestart=always\n\n[Install]\nWantedBy=multi-user.target\n"
        )
    }
}

/// Quotes the text for a shell if necessary.
fn quote_argument(text: &str) -> String {
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c)) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

pub fn run(args: &RunArgs, out: &mut dyn Write) -> CommandResult<()> {
    let program = std::env::current_exe().map_err(|error| CommandError::context("own program", error))?;
    if args.init_system {
        return Ok(write!(out, "{}", args.unit(&program.display().to_string()))?);
    }
    let line = args.line();
    if args.dryrun {
        return Ok(writeln!(out, "Use the following command to start the node:\n\n{line}\n")?);
    }
    writeln!(out, "Running command to start the node:\n\n{line}\n")?;
    out.flush()?;
    // Executes the same program as `tortie`; returns only on failure.
    let error = Command::new(&program).arg0("tortie").args(args.words()).envs(args.variables()).exec();
    Err(CommandError::at(&program, &error))
}
