//! Daemons that outlive the command that starts them: a log, a note of which process it is, and a wait until it serves.

use crate::error::{Error, Result};
use crate::netns;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Generous, since machines that run tests are busy.
const READY_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);
const TAIL_BYTES: u64 = 4096;
const TAIL_LINES: usize = 15;

/// What is known of a daemon, running or not.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub what: String,
    pub log: PathBuf,
    pub pid_file: PathBuf,
}

/// One that was just started.
#[derive(Debug)]
pub struct Started {
    daemon: Daemon,
    child: Child,
}

impl Daemon {
    pub fn in_dir(what: &str, dir: &std::path::Path) -> Daemon {
        Daemon { what: what.to_owned(), log: dir.join("log"), pid_file: dir.join("pid") }
    }

    /// Starts it in a namespace, away from the terminal's signals.
    pub fn start(&self, netns: &str, mut command: Command) -> Result<Started> {
        let log =
            File::options().create(true).append(true).open(&self.log).map_err(Error::file(&self.log))?;
        let errors = log.try_clone().map_err(Error::file(&self.log))?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = netns::open(netns)?
            .command(command)
            .and_then(|command| command.spawn())
            .map_err(|error| Error::kernel(format!("cannot start {program} for {}", self.what), &error))?;
        let started_at = start_time(child.id()).unwrap_or_default();
        fs::write(&self.pid_file, format!("{} {started_at}\n", child.id()))
            .map_err(Error::file(&self.pid_file))?;
        Ok(Started { daemon: self.clone(), child })
    }

    /// Its process, if that still runs. The time of its start tells it from a later one with the same number.
    pub fn running(&self) -> Option<u32> {
        let text = fs::read_to_string(&self.pid_file).ok()?;
        let (pid, started_at) = text.trim().split_once(' ')?;
        let pid = pid.parse().ok()?;
        (start_time(pid)? == started_at.parse::<u64>().ok()?).then_some(pid)
    }

    /// Ends it and returns when it is gone; false if it was not running.
    pub fn stop(&self, signal: Signal) -> Result<bool> {
        let Some(pid) = self.running() else { return Ok(false) };
        let failed = |error: rustix::io::Errno| Error::Io { what: self.what.clone(), source: error.into() };
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let handle = match number.map(|number| pidfd_open(number, PidfdFlags::empty())) {
            Some(Ok(handle)) => handle,
            Some(Err(error)) if error != rustix::io::Errno::SRCH => return Err(failed(error)),
            _ => return Ok(true),
        };
        // The handle stays with the process it was opened for; this says that it is ours.
        if self.running() != Some(pid) {
            return Ok(true);
        }
        pidfd_send_signal(&handle, signal).map_err(failed)?;
        let deadline = Instant::now() + STOP_LIMIT;
        while self.running().is_some() {
            if Instant::now() > deadline {
                return Err(self.failed(format!("does not end after {} s", STOP_LIMIT.as_secs())));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(true)
    }

    fn failed(&self, why: String) -> Error {
        let log = self.log.display().to_string();
        Error::Daemon { what: self.what.clone(), why, log, tail: self.tail() }
    }

    /// The last lines of its log.
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

impl Started {
    /// Asks `probe` again and again until it is content, the process ends or patience does.
    pub async fn ready<F: Future<Output = std::result::Result<(), String>>>(
        mut self,
        mut probe: impl FnMut() -> F,
    ) -> Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let answer = probe().await;
            if answer.is_ok() {
                return Ok(());
            }
            let status = self.child.try_wait().map_err(Error::file(&self.daemon.pid_file))?;
            if let Some(status) = status {
                return Err(self.daemon.failed(format!("ended at once ({status})")));
            }
            if let Err(reason) = answer
                && Instant::now() > deadline
            {
                let seconds = READY_LIMIT.as_secs();
                return Err(self.daemon.failed(format!("is not ready after {seconds} s ({reason})")));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// When a process started, in ticks since boot; None if it does not run any more.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, so what follows is counted from its end.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_another_process_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon::in_dir("x", dir.path());
        assert_eq!(daemon.running(), None);
        let (pid, started_at) = (std::process::id(), start_time(std::process::id()).unwrap());
        fs::write(&daemon.pid_file, format!("{pid} {started_at}\n")).unwrap();
        assert_eq!(daemon.running(), Some(pid));
        fs::write(&daemon.pid_file, format!("{pid} {}\n", started_at + 1)).unwrap();
        assert_eq!(daemon.running(), None);
        fs::write(&daemon.pid_file, "nonsense").unwrap();
        assert_eq!(daemon.running(), None);
    }

    #[test]
    fn the_end_of_a_log_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon::in_dir("x", dir.path());
        assert!(daemon.tail().contains("not readable"));
        let lines: Vec<String> = (0..2000).map(|n| format!("line {n}")).collect();
        fs::write(&daemon.log, lines.join("\n")).unwrap();
        let tail = daemon.tail();
        assert!(tail.starts_with("line 1985\n") && tail.ends_with("line 1999"), "{tail}");
    }
}
