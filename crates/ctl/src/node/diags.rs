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
    let mut bundle = DiagsBundle::new(&args.output_dir, "diags")?;
    writeln!(out, "Collecting diagnostics")?;
    bundle.write_host_state(&args.run_dir)?;
    if exists(&args.log_dir) {
        let target = bundle.path("log").display().to_string();
        bundle.write_output("logs", &["cp", "-r", &args.log_dir.display().to_string(), &target])?;
    }
    // Log files of daemons that `tortie up` runs without systemd.
    for name in ["node.log", "datastore.log"] {
        let from = args.run_dir.join(name);
        if exists(&from)
            && let Err(error) = fs::copy(&from, bundle.path(name))
        {
            bundle.record_missing(name, &CommandError::at(&from, &error).to_string());
        }
    }
    bundle.finish("Diags saved to", out)
}

/// Returns whether the path exists. Without the permission to look it up, the path counts as existing: reading it then
/// names the error.
fn exists(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

/// A directory that is packed into an archive, and removed in any case.
pub(crate) struct DiagsBundle {
    place: PathBuf,
    name: String,
    /// The parts that the archive lacks, with the reason.
    missing: Vec<String>,
    /// Programs that were not found.
    absent_programs: Vec<&'static str>,
}

impl DiagsBundle {
    pub fn new(place: &Path, beginning: &str) -> CommandResult<DiagsBundle> {
        let name = format!("{beginning}-{}", jiff::Timestamp::now().strftime("%Y%m%d_%H%M%S"));
        let bundle =
            DiagsBundle { place: place.to_owned(), name, missing: Vec::new(), absent_programs: Vec::new() };
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

    /// Records that a part could not be read.
    pub fn record_missing(&mut self, file: &str, reason: &str) {
        self.missing.push(format!("{file}: {reason}"));
    }

    fn write_host_state(&mut self, run_dir: &Path) -> CommandResult<()> {
        for (file, words) in DIAG_COMMANDS {
            let [program, ..] = *words else { continue };
            if is_installed(program) {
                self.write_output(file, words)?;
            } else {
                self.write(file, &format!("{program}: not found in PATH\n"))?;
                self.absent_programs.push(program);
            }
        }
        for (file, question) in NODE_REQUESTS {
            let answer = match request(run_dir, question) {
                Ok(answer) => format!("{answer:#}\n"),
                Err(error) => {
                    self.record_missing(file, &error.to_string());
                    format!("{error}\n")
                }
            };
            self.write(file, &answer)?;
        }
        Ok(())
    }

    /// Writes the output of a program, including its errors, to a file. Records a program that cannot be run or fails.
    fn write_output(&mut self, file: &str, words: &[&str]) -> CommandResult<()> {
        let [program, args @ ..] = words else { return Ok(()) };
        let text = match Command::new(program).args(args).stdin(Stdio::null()).output() {
            Ok(output) => {
                let [text, errors] =
                    [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part).into_owned());
                if !output.status.success() {
                    let first = errors.lines().next().unwrap_or("no message");
                    self.record_missing(file, &format!("{program}: {}: {first}", output.status));
                }
                text + &errors
            }
            Err(error) => {
                self.record_missing(file, &format!("{program}: {error}"));
                format!("{program}: {error}\n")
            }
        };
        self.write(file, &text)
    }

    /// Packs the archive and prints its path after `done`. Fails if the archive lacks parts, and names them.
    pub fn finish(mut self, done: &str, out: &mut dyn Write) -> CommandResult<()> {
        let missing = std::mem::take(&mut self.missing);
        let absent = std::mem::take(&mut self.absent_programs);
        if !missing.is_empty() {
            self.write("missing", &(missing.join("\n") + "\n"))?;
        }
        if !absent.is_empty() {
            writeln!(out, "Not found in PATH, and left out: {}", absent.join(", "))?;
        }
        let path = self.pack()?;
        writeln!(out, "{done} {}", path.display())?;
        if missing.is_empty() {
            return Ok(());
        }
        let advice =
            if rustix::process::geteuid().is_root() { "" } else { "; run as root to read everything" };
        Err(CommandError::message(format!(
            "{} parts could not be read{advice}:\n  {}",
            missing.len(),
            missing.join("\n  ")
        )))
    }

    fn pack(self) -> CommandResult<PathBuf> {
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

/// Returns whether a program is in the search path. The path of users without privileges often lacks the directories of
/// programs for administration, which most of them may run nevertheless.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

impl Drop for DiagsBundle {
    fn drop(&mut self) {
        // Ignore errors: leftovers remain in a directory for temporary files.
        let _ = fs::remove_dir_all(self.dir());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(place: &Path) -> DiagsBundle {
        DiagsBundle::new(place, "diags").unwrap()
    }

    #[test]
    fn unread_parts_are_named_and_fail() {
        let dir = tempfile::tempdir().unwrap();
        let mut bundle = bundle(dir.path());
        bundle.write_output("date", &["date"]).unwrap();
        bundle.write_output("listing", &["ls", "/nonexistent"]).unwrap();
        bundle.write_host_state(&dir.path().join("run")).unwrap();
        let mut out = Vec::new();
        let error = bundle.finish("Diags saved to", &mut out).unwrap_err().to_string();
        assert!(error.contains("  listing: ls: exit status: 2: ls: "), "{error}");
        assert!(error.contains("  health.json: ") && error.contains("is the node running"), "{error}");
        assert!(!error.contains("date"), "{error}");
        let out = String::from_utf8(out).unwrap();
        let path = out.trim_end().rsplit(' ').next().unwrap();
        assert!(Path::new(path).is_file(), "the archive is saved nevertheless: {out}");
    }

    #[test]
    fn complete_bundles_succeed() {
        let dir = tempfile::tempdir().unwrap();
        let mut bundle = bundle(dir.path());
        bundle.write_output("date", &["date"]).unwrap();
        let mut out = Vec::new();
        bundle.finish("Diags saved to", &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().starts_with("Diags saved to "));
    }

    #[test]
    fn absent_programs_are_recognised() {
        assert!(is_installed("tar"));
        assert!(!is_installed("no-such-program"));
    }
}
