//! `calicoctl node diags` and `calicoctl cluster diags`: collect diagnostics in one archive. Secrets are
//! never collected: the archive contains neither configuration files nor the environment.

use super::request;
use crate::failure::{CommandError, CommandResult};
use crate::release::CLIENT_VERSION;
use clap::Args;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// File name and command: state of the kernel and the host.
const DIAG_COMMANDS: [(&str, &[&str]); 17] = [
    ("date", &["date"]),
    ("hostname", &["hostname"]),
    ("kernel", &["uname", "-a"]),
    ("ipv4_route", &["ip", "-4", "-d", "route", "show", "table", "all"]),
    ("ipv6_route", &["ip", "-6", "-d", "route", "show", "table", "all"]),
    ("ipv4_rule", &["ip", "-4", "rule"]),
    ("ipv6_rule", &["ip", "-6", "rule"]),
    ("links", &["ip", "-d", "-s", "link"]),
    ("ipv4_addr", &["ip", "-4", "addr"]),
    ("ipv6_addr", &["ip", "-6", "addr"]),
    ("neighbours", &["ip", "neigh"]),
    ("nft_ruleset", &["nft", "list", "ruleset"]),
    ("ipv4_tables", &["iptables-save", "-c"]),
    ("ipv6_tables", &["ip6tables-save", "-c"]),
    ("ipsets", &["ipset", "list"]),
    ("ss", &["ss", "-tulnp"]),
    ("journal", &["journalctl", "--no-pager", "-n", "20000", "-u", "tortie-node", "-u", "tortie-datastore"]),
];

/// File name and request: state that the node's daemon reports.
const NODE_REQUESTS: [(&str, &str); 4] = [
    ("health.json", "health"),
    ("settings.json", "settings"),
    ("bgp_peers.json", "bgp peers"),
    ("bgp_routes.json", "bgp routes"),
];

#[derive(Debug, Args)]
pub struct NodeDiagsArgs {
    /// Directory with logs, copied if it exists
    #[arg(long, value_name = "DIR", default_value = "/var/log/calico")]
    log_dir: PathBuf,
    /// Directory with the node's sockets
    #[arg(long, value_name = "DIR", env = "TORTIE_RUN_DIR", default_value = "/run/tortie")]
    run_dir: PathBuf,
    /// Directory for the archive
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    output_dir: PathBuf,
}

pub fn collect(args: &NodeDiagsArgs, out: &mut dyn Write) -> CommandResult<()> {
    let bundle = DiagsBundle::new(&args.output_dir, "diags")?;
    writeln!(out, "Collecting diagnostics")?;
    bundle.write_host_state(&args.run_dir)?;
    if args.log_dir.is_dir() {
        bundle.write_output(
            "logs",
            &["cp", "-r", &args.log_dir.display().to_string(), &bundle.path("log").display().to_string()],
        )?;
    }
    // Log files of daemons that `tortie up` runs without systemd.
    for name in ["node.log", "datastore.log"] {
        let from = args.run_dir.join(name);
        if from.is_file() {
            fs::copy(&from, bundle.path(name)).map_err(|error| CommandError::at(&from, &error))?;
        }
    }
    let path = bundle.pack()?;
    writeln!(out, "Diags saved to {}", path.display())?;
    Ok(())
}

/// A directory that is packed into an archive, and removed in any case.
pub(crate) struct DiagsBundle {
    place: PathBuf,
    name: String,
}

impl DiagsBundle {
    pub fn new(place: &Path, beginning: &str) -> CommandResult<DiagsBundle> {
        let name = format!("{beginning}-{}", jiff::Timestamp::now().strftime("%Y%m%d_%H%M%S"));
        let bundle = DiagsBundle { place: place.to_owned(), name };
        let dir = bundle.dir();
        fs::DirBuilder::new().mode(0o700).create(&dir).map_err(|error| CommandError::at(&dir, &error))?;
        bundle.write("version", &format!("{CLIENT_VERSION}\n"))?;
        Ok(bundle)
    }

    fn dir(&self) -> PathBuf {
        self.place.join(&self.name)
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.dir().join(file)
    }

    pub fn write(&self, file: &str, text: &str) -> CommandResult<()> {
        let path = self.path(file);
        fs::write(&path, text).map_err(|error| CommandError::at(&path, &error))
    }

    fn write_host_state(&self, run_dir: &Path) -> CommandResult<()> {
        for (file, words) in DIAG_COMMANDS {
            self.write_output(file, words)?;
        }
        for (file, question) in NODE_REQUESTS {
            let answer = match request(run_dir, question) {
                Ok(answer) => format!("{answer:#}\n"),
                Err(error) => format!("{error}\n"),
            };
            self.write(file, &answer)?;
        }
        Ok(())
    }

    /// Writes the output of a program, including its errors, to a file; if the program cannot be run, the
    /// file contains the reason.
    fn write_output(&self, file: &str, words: &[&str]) -> CommandResult<()> {
        let [program, args @ ..] = words else { return Ok(()) };
        let text = match Command::new(program).args(args).stdin(Stdio::null()).output() {
            Ok(output) => {
                let parts =
                    [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part).into_owned());
                parts.concat()
            }
            Err(error) => format!("{program}: {error}\n"),
        };
        self.write(file, &text)
    }

    pub fn pack(self) -> CommandResult<PathBuf> {
        let path = self.place.join(format!("{}.tar.gz", self.name));
        // Never overwrite an existing file, and make the archive readable only by its owner.
        let file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| CommandError::at(&path, &error))?;
        let mut tar = Command::new("tar");
        let packed =
            tar.arg("-czf").arg("-").arg("-C").arg(&self.place).arg(&self.name).stdout(file).output();
        match packed {
            Ok(output) if output.status.success() => Ok(path),
            Ok(output) => Err(CommandError::context("tar", String::from_utf8_lossy(&output.stderr).trim())),
            Err(error) => Err(CommandError::context("tar", error)),
        }
    }
}

impl Drop for DiagsBundle {
    fn drop(&mut self) {
        // Ignore errors: leftovers remain in a directory for temporary files.
        let _ = fs::remove_dir_all(self.dir());
    }
}
