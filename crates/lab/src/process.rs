//! Daemons that outlive the command that starts them, with a log, a pid file and a readiness check.

use crate::error::{LabError, LabResult};
use crate::netns;
use std::error::Error;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tortie_process::{PidFile, Signal, last_lines, run_in_background};

/// Time limit for a daemon to become ready. Test machines may be heavily loaded.
const DAEMON_READY_TIMEOUT: Duration = Duration::from_secs(180);
const DAEMON_STOP_TIMEOUT: Duration = Duration::from_secs(20);
const DAEMON_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of log lines shown when a daemon fails.
const SHOWN_LOG_LINES: usize = 15;

/// The reason why a daemon is not ready yet.
pub type ProbeError = Box<dyn Error>;

/// Name and files of a daemon, running or not.
#[derive(Clone, Debug)]
pub struct LabDaemon {
    pub what: String,
    pub log: PathBuf,
    pub pid_file: PidFile,
}

/// A daemon started by this process.
#[derive(Debug)]
pub struct StartedDaemon {
    daemon: LabDaemon,
    child: Child,
}

impl LabDaemon {
    pub fn in_dir(what: &str, dir: &std::path::Path) -> LabDaemon {
        LabDaemon { what: what.to_owned(), log: dir.join("log"), pid_file: PidFile::at(dir.join("pid")) }
    }

    /// Starts the daemon in a namespace.
    pub fn start(&self, netns: &str, mut command: Command) -> LabResult<StartedDaemon> {
        run_in_background(&mut command, &self.log).map_err(LabError::file(&self.log))?;
        let program = command.get_program().to_string_lossy().into_owned();
        let child = netns::open(netns)?
            .command(command)
            .and_then(|command| command.spawn())
            .map_err(|error| LabError::kernel(format!("cannot start {program} for {}", self.what), &error))?;
        self.pid_file.write(child.id()).map_err(LabError::file(self.pid_file.path()))?;
        Ok(StartedDaemon { daemon: self.clone(), child })
    }

    /// Returns its pid if it is running.
    pub fn running(&self) -> Option<u32> {
        self.pid_file.running()
    }

    /// Signals the daemon and waits until it has exited. Returns false if it was not running.
    pub fn stop(&self, signal: Signal) -> LabResult<bool> {
        if self.running().is_none() {
            return Ok(false);
        }
        let ended = self.pid_file.end(signal, DAEMON_STOP_TIMEOUT);
        if !ended.map_err(|source| LabError::Io { what: self.what.clone(), source })? {
            return Err(self.failed(format!("does not end after {} s", DAEMON_STOP_TIMEOUT.as_secs())));
        }
        Ok(true)
    }

    fn failed(&self, why: String) -> LabError {
        let tail =
            last_lines(&self.log, SHOWN_LOG_LINES).unwrap_or_else(|error| format!("(not readable: {error})"));
        LabError::Daemon { what: self.what.clone(), why, log: self.log.display().to_string(), tail }
    }
}

impl StartedDaemon {
    /// Calls `probe` repeatedly until it succeeds, the process exits or the time limit is reached.
    pub async fn ready<E: Into<ProbeError>>(
        self,
        probe: impl AsyncFnMut() -> Result<(), E>,
    ) -> LabResult<()> {
        self.ready_within(DAEMON_READY_TIMEOUT, probe).await
    }

    pub async fn ready_within<E: Into<ProbeError>>(
        mut self,
        limit: Duration,
        mut probe: impl AsyncFnMut() -> Result<(), E>,
    ) -> LabResult<()> {
        let deadline = Instant::now() + limit;
        while let Err(error) = probe().await {
            let status = self.child.try_wait().map_err(LabError::file(self.daemon.pid_file.path()))?;
            if let Some(status) = status {
                return Err(self.daemon.failed(format!("ended at once ({status})")));
            }
            if Instant::now() > deadline {
                let reason: ProbeError = error.into();
                let seconds = limit.as_secs();
                return Err(self.daemon.failed(format!("is not ready after {seconds} s ({reason})")));
            }
            tokio::time::sleep(DAEMON_POLL_INTERVAL).await;
        }
        Ok(())
    }
}
