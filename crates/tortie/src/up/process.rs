//! A Tortie daemon that outlives the command that starts it: a systemd service, or a process with a supervisor, found
//! by its pid file.

use super::daemon_log::DaemonLog;
use super::manifest::with_path;
use super::systemd;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tortie_process::{PidFile, Signal, last_lines, run_in_background};

/// Time after which a process that does not exit is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct HostDaemon {
    pub name: &'static str,
    pub exe: PathBuf,
    pub words: Vec<OsString>,
    pub environment: Vec<(&'static str, OsString)>,
    /// Additional environment variables for the systemd service.
    pub environment_file: Option<PathBuf>,
    pub by_systemd: bool,
    run_dir: PathBuf,
}

impl HostDaemon {
    pub fn new(name: &'static str, exe: &Path, run_dir: &Path, words: Vec<OsString>) -> HostDaemon {
        HostDaemon {
            name,
            exe: exe.to_owned(),
            words,
            environment: Vec::new(),
            environment_file: None,
            by_systemd: false,
            run_dir: run_dir.to_owned(),
        }
    }

    fn log(&self) -> PathBuf {
        self.run_dir.join(format!("{}.log", self.name))
    }

    /// Returns where users find the log, and its last lines.
    pub fn end_of_log(&self, lines: usize) -> (String, String) {
        if self.by_systemd {
            let place = format!("journalctl -u {}", systemd::name(self.name));
            return (place, systemd::log(self.name, lines));
        }
        (self.log().display().to_string(), last_lines(&self.log(), lines).unwrap_or_default())
    }

    fn pid_file(&self) -> PidFile {
        PidFile::at(self.run_dir.join(format!("{}.pid", self.name)))
    }

    /// Starts the daemon unless it is running. Returns whether it was started.
    pub fn start(&self) -> io::Result<bool> {
        if self.is_running() {
            return Ok(false);
        }
        if self.by_systemd {
            systemd::start(self)?;
            return Ok(true);
        }
        let mut command = Command::new(&self.exe);
        command.args(["supervise", "--name", self.name, "--log"]).arg(self.log());
        command.arg("--").arg(&self.exe).args(&self.words);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        // Messages of the supervisor itself go to the same file.
        let background = run_in_background(&mut command, &self.log()).map_err(with_path(&self.log()))?;
        let child = background.spawn().map_err(with_path(&self.exe))?;
        self.pid_file().write(child.id()).map_err(with_path(&self.run_dir))?;
        Ok(true)
    }

    pub fn is_running(&self) -> bool {
        if self.by_systemd { systemd::is_running(self.name) } else { self.pid_file().running().is_some() }
    }

    pub fn stop(&self) -> io::Result<()> {
        if self.by_systemd {
            return systemd::stop(self.name);
        }
        let mut signal = Signal::TERM;
        while !self.pid_file().end(signal, STOP_TIMEOUT).map_err(with_path(&self.run_dir))? {
            signal = Signal::KILL;
        }
        self.pid_file().remove().map_err(with_path(&self.run_dir))?;
        DaemonLog::remove(&self.log()).map_err(with_path(&self.log()))
    }
}
