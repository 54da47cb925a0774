//! Runs daemons as systemd services, which restart on failure and after a reboot. Their logs are in the journal.

use super::manifest::with_path;
use super::process::HostDaemon;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const UNIT_DIR: &str = "/etc/systemd/system";

/// Returns whether systemd is the init system of this machine.
pub fn is_here() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

pub fn name(daemon: &str) -> String {
    format!("tortie-{daemon}.service")
}

pub fn file(daemon: &str) -> PathBuf {
    Path::new(UNIT_DIR).join(name(daemon))
}

/// Renders the unit file.
pub fn unit(daemon: &HostDaemon) -> String {
    let (what, after) = match daemon.name {
        "datastore" => ("Tortie's embedded datastore", "local-fs.target"),
        _ => (
            "Tortie node: routes, policy and the CNI plugins of this host",
            "network-online.target tortie-datastore.service",
        ),
    };
    let wants = after.split(' ').next().unwrap_or_default();
    let words: Vec<String> = std::iter::once(daemon.exe.as_os_str())
        .chain(daemon.words.iter().map(|word| word.as_os_str()))
        .map(quote_argument)
        .collect();
    let environment: String = daemon
        .environment
        .iter()
        .map(|(name, value)| format!("Environment=\"{name}={}\"\n", value.to_string_lossy()))
        .collect();
    let file = daemon.environment_file.iter().map(|file| format!("EnvironmentFile=-{}\n", file.display()));
    let file: String = file.collect();
    format!(
        "[Unit]\n\
         Description={what}\n\
         Documentation=man:tortie(1)\n\
         Wants={wants}\n\
         After={after}\n\
         # It is started again however often it fails.\n\
         StartLimitIntervalSec=0\n\
         \n\
         [Service]\n\
         Type=exec\n\
         {environment}\
         {file}\
         EnvironmentFile=-/etc/default/tortie\n\
         ExecStart={}\n\
         Restart=always\n\
         RestartSec=1\n\
         LimitNOFILE=1048576\n\
         # The pods of this host live on when the daemon ends.\n\
         KillMode=process\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        words.join(" ")
    )
}

/// Returns whether the node or its datastore reads a variable. Names of Felix's parameters are case-insensitive.
fn is_kept(name: &str) -> bool {
    const PREFIXES: [&str; 4] = ["ETCD_", "CALICO_", "TORTIE_", "K8S_"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || tortie_node::is_node_variable(name)
        || name.to_ascii_uppercase().starts_with("FELIX_")
}

/// Saves the environment variables that the node reads, since a service does not inherit them. The file may contain
/// passwords, so only root may read it.
pub fn keep_environment(path: &Path) -> io::Result<()> {
    let mut text = String::new();
    for (name, value) in std::env::vars().filter(|(name, _)| is_kept(name)) {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$").replace('`', "\\`");
        text += &format!("{name}=\"{value}\"\n");
    }
    let mut file =
        std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Quotes a word of a command line for systemd, which interprets quotes, `%` and `$`.
fn quote_argument(word: &OsStr) -> String {
    let word = word.to_string_lossy().replace('%', "%%").replace('$', "$$");
    if !word.contains(|letter: char| letter.is_whitespace() || letter == '"' || letter == '\\') {
        return word;
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

pub fn start(daemon: &HostDaemon) -> io::Result<()> {
    let file = file(daemon.name);
    std::fs::write(&file, unit(daemon)).map_err(with_path(&file))?;
    run_systemctl(&["daemon-reload"])?;
    run_systemctl(&["enable", "--now", &name(daemon.name)])
}

pub fn stop(daemon: &str) -> io::Result<()> {
    let file = file(daemon);
    if !file.exists() {
        return Ok(());
    }
    run_systemctl(&["disable", "--now", &name(daemon)])?;
    std::fs::remove_file(&file).map_err(with_path(&file))?;
    run_systemctl(&["daemon-reload"])
}

pub fn is_running(daemon: &str) -> bool {
    let state = Command::new("systemctl").args(["is-active", "--quiet", &name(daemon)]).status();
    state.is_ok_and(|status| status.success())
}

/// Returns the end of the daemon's log.
pub fn log(daemon: &str, lines: usize) -> String {
    let output = Command::new("journalctl")
        .args(["--no-pager", "--output=cat", "--lines", &lines.to_string(), "--unit", &name(daemon)])
        .output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

fn run_systemctl(words: &[&str]) -> io::Result<()> {
    let Output { status, stderr, .. } = Command::new("systemctl").args(words).output()?;
    if !status.success() {
        let reason = String::from_utf8_lossy(&stderr);
        return Err(io::Error::other(format!("systemctl {}: {}", words.join(" "), reason.trim())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(name: &'static str, words: &[&str]) -> HostDaemon {
        let words = words.iter().map(Into::into).collect();
        HostDaemon::new(name, Path::new("/usr/bin/tortie"), Path::new("/run/tortie"), words)
    }

    /// `TORTIE_REFRESH=1` writes the files instead. The package installs them.
    #[test]
    fn packaged_units_equal_those_of_up() {
        for daemon in [daemon("datastore", &["datastore"]), daemon("node", &["node"])] {
            let path =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(super::name(daemon.name));
            if std::env::var_os("TORTIE_REFRESH").is_some() {
                std::fs::write(&path, unit(&daemon)).unwrap();
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), unit(&daemon));
        }
    }

    #[test]
    fn the_service_keeps_variables_of_the_node() {
        let groups = tortie_node::NODE_VARIABLES;
        for variable in groups.iter().flat_map(|group| group.variables) {
            assert!(is_kept(variable.name), "{}", variable.name);
        }
        for name in ["IP6_AUTODETECTION_METHOD", "felix_HealthPort", "CALICO_ETCD_ENDPOINTS"] {
            assert!(is_kept(name), "{name}");
        }
        for name in ["PATH", "HOME", "IPX"] {
            assert!(!is_kept(name), "{name}");
        }
    }

    #[test]
    fn systemd_accepts_the_units() {
        let dir = tempfile::tempdir().unwrap();
        for mut daemon in
            [daemon("datastore", &["datastore"]), daemon("node", &["node", "--state-dir", "/a b/50%"])]
        {
            daemon.exe = std::env::current_exe().unwrap();
            daemon.environment.push(("TORTIE_DATASTORE_SOCKET", "/run/my dir/x.sock".into()));
            let path = dir.path().join(super::name(daemon.name));
            std::fs::write(&path, unit(&daemon)).unwrap();
        }
        let paths = ["datastore", "node"].map(|name| dir.path().join(super::name(name)));
        let output =
            Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&paths).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("tortie-")).collect();
        assert!(ours.is_empty(), "{said}");
        assert!(output.status.success() || !said.contains("tortie-"), "{said}");
    }
}
