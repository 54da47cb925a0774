//! Steps that a node's init process executes: start a daemon, wait for a socket, run a command.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tortie_process::wait_until;

/// Time limit for a socket to accept connections. Test machines may be heavily loaded.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineStep {
    /// Starts a daemon.
    Start { name: String, line: CommandLine, log: PathBuf },
    /// Waits until the socket accepts connections.
    Await { socket: PathBuf },
    /// Runs a command that must succeed.
    Run { line: CommandLine },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLine {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Environment variables in addition to those of the init process.
    pub variables: BTreeMap<String, String>,
}

impl CommandLine {
    pub fn new<'a>(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = &'a str>) -> CommandLine {
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        CommandLine { program: program.into(), arguments, variables: BTreeMap::new() }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(&self.variables).stdin(Stdio::null());
        command
    }
}

impl MachineStep {
    /// Executes the step. Returns the pid and name of a started daemon.
    pub fn execute(&self) -> io::Result<Option<(u32, &str)>> {
        match self {
            MachineStep::Start { name, line, log } => {
                let log = File::options().create(true).append(true).open(log)?;
                let child = line.command().stdout(log.try_clone()?).stderr(log).spawn();
                child.map(|child| Some((child.id(), name.as_str()))).map_err(|error| about(line, &error))
            }
            MachineStep::Await { socket } => {
                let mut connected = UnixStream::connect(socket).map(drop);
                wait_until(SOCKET_TIMEOUT, || {
                    if connected.is_err() {
                        connected = UnixStream::connect(socket).map(drop);
                    }
                    connected.is_ok()
                });
                let Err(error) = connected else { return Ok(None) };
                let seconds = SOCKET_TIMEOUT.as_secs();
                let path = socket.display();
                Err(io::Error::other(format!("{path} accepts no connections after {seconds} s: {error}")))
            }
            MachineStep::Run { line } => {
                let output = line.command().output().map_err(|error| about(line, &error))?;
                if !output.status.success() {
                    return Err(about(line, &String::from_utf8_lossy(&output.stderr).trim()));
                }
                Ok(None)
            }
        }
    }
}

fn about(line: &CommandLine, reason: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{} {}: {reason}", line.program.display(), line.arguments.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_run_or_report_their_error() {
        let dir = tempfile::tempdir().unwrap();
        let shell = |text: &str| CommandLine::new("/bin/sh", ["-c", text]);
        let mut line = shell("echo $WORD; echo gone >&2");
        line.variables.insert("WORD".into(), "here".into());
        let log = dir.path().join("log");
        let step = MachineStep::Start { name: "x".into(), line, log: log.clone() };
        let text = serde_json::to_string(&step).unwrap();
        let step: MachineStep = serde_json::from_str(&text).unwrap();
        let (_, name) = step.execute().unwrap().unwrap();
        assert_eq!(name, "x");
        let logged = || std::fs::read_to_string(&log).unwrap();
        assert!(wait_until(SOCKET_TIMEOUT, || logged() == "here\ngone\n"), "{}", logged());
        assert!(MachineStep::Run { line: shell("true") }.execute().unwrap().is_none());
        let error =
            MachineStep::Run { line: shell("echo why >&2; false") }.execute().unwrap_err().to_string();
        assert!(error.ends_with(": why"), "{error}");
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(MachineStep::Await { socket }.execute().unwrap().is_none());
    }
}
