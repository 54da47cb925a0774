//! A Tortie daemon that outlives the command that starts it: a systemd service, or a process with a supervisor, found
//! by its pid file.

use super::daemon_log::DaemonLog;
use super::systemd;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tortie_process::{PidFile, Signal};

/// Time after which a process that does not exit is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);

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
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        let last = all[all.len().saturating_sub(lines)..].join("\n");
        (self.log().display().to_string(), last)
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
        // Messages of the supervisor itself go to the same file.
        let log = File::options().create(true).append(true).open(self.log())?;
        let child = Command::new(&self.exe)
            .args(["supervise", "--name", self.name, "--log"])
            .arg(self.log())
            .arg("--")
            .arg(&self.exe)
            .args(&self.words)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        self.pid_file().write(child.id())?;
        Ok(true)
    }

    pub fn is_running(&self) -> bool {
        match self.by_systemd {
            true => systemd::is_running(self.name),
            false => self.pid_file().running().is_some(),
        }
    }

    pub fn stop(&self) -> io::Result<()> {
        if self.by_systemd {
            return systemd::stop(self.name);
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        let mut signal = Signal::TERM;
        while self.pid_file().signal(signal)? {
            std::thread::sleep(STOP_POLL_INTERVAL);
            if Instant::now() > deadline {
                signal = Signal::KILL;
            }
        }
        self.pid_file().remove()?;
        DaemonLog::remove(&self.log())
    }
}
