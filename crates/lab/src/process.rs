//! Daemons that outlive the command that starts them, with a log, a pid file and a readiness check.

use crate::error::{LabError, LabResult};
use crate::netns;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tortie_process::{PidFile, Signal};

/// Time limit for a daemon to become ready. Test machines may be heavily loaded.
const DAEMON_READY_TIMEOUT: Duration = Duration::from_secs(180);
const DAEMON_STOP_TIMEOUT: Duration = Duration::from_secs(20);
const DAEMON_POLL_INTERVAL: Duration = Duration::from_millis(50);
const TAIL_BYTES: u64 = 4096;
const TAIL_LINES: usize = 15;

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

    /// Starts the daemon in a namespace, in its own process group so that it does not receive the terminal's signals.
    pub fn start(&self, netns: &str, mut command: Command) -> LabResult<StartedDaemon> {
        let log =
            File::options().create(true).append(true).open(&self.log).map_err(LabError::file(&self.log))?;
        let errors = log.try_clone().map_err(LabError::file(&self.log))?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
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
        let failed = |source| LabError::Io { what: self.what.clone(), source };
        self.pid_file.signal(signal).map_err(failed)?;
        let deadline = Instant::now() + DAEMON_STOP_TIMEOUT;
        while self.running().is_some() {
            if Instant::now() > deadline {
                return Err(self.failed(format!("does not end after {} s", DAEMON_STOP_TIMEOUT.as_secs())));
            }
            std::thread::sleep(DAEMON_POLL_INTERVAL);
        }
        Ok(true)
    }

    fn failed(&self, why: String) -> LabError {
        let log = self.log.display().to_string();
        LabError::Daemon { what: self.what.clone(), why, log, tail: self.tail() }
    }

    /// Returns the last lines of its log.
    fn tail(&self) -> String {
        let mut text = Vec::new();
        let read = File::open(&self.log).and_then(|mut file| {
            let size = file.metadata()?.len();
            file.seek(SeekFrom::Start(size.saturating_sub(TAIL_BYTES)))?;
            file.read_to_end(&mut text)
        });
        if let Err(error) = read {
            return format!("(not readable: {error})");
        }
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

impl StartedDaemon {
    /// Calls `probe` repeatedly until it succeeds, the process exits or the time limit is reached.
    pub async fn ready<F: Future<Output = std::result::Result<(), String>>>(
        self,
        probe: impl FnMut() -> F,
    ) -> LabResult<()> {
        self.ready_within(DAEMON_READY_TIMEOUT, probe).await
    }

    pub async fn ready_within<F: Future<Output = std::result::Result<(), String>>>(
        mut self,
        limit: Duration,
        mut probe: impl FnMut() -> F,
    ) -> LabResult<()> {
        let deadline = Instant::now() + limit;
        loop {
            let answer = probe().await;
            if answer.is_ok() {
                return Ok(());
            }
            let status = self.child.try_wait().map_err(LabError::file(self.daemon.pid_file.path()))?;
            if let Some(status) = status {
                return Err(self.daemon.failed(format!("ended at once ({status})")));
            }
            if let Err(reason) = answer
                && Instant::now() > deadline
            {
                let seconds = limit.as_secs();
                return Err(self.daemon.failed(format!("is not ready after {seconds} s ({reason})")));
            }
            tokio::time::sleep(DAEMON_POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = LabDaemon::in_dir("x", dir.path());
        assert!(daemon.tail().contains("not readable"));
        let lines: Vec<String> = (0..2000).map(|n| format!("line {n}")).collect();
        std::fs::write(&daemon.log, lines.join("\n")).unwrap();
        let tail = daemon.tail();
        assert!(tail.starts_with("line 1985\n") && tail.ends_with("line 1999"), "{tail}");
    }
}
