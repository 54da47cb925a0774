//! Log of a supervised daemon. A full disk ends neither the daemon nor its supervisor: lines that cannot be written are
//! dropped and counted.

use crate::rotating_log::RotatingLog;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Fixed width of the counter, so that it can be updated in place on a full disk.
const COUNTER_DIGITS: usize = 20;

#[derive(Debug)]
pub struct DaemonLog {
    log: RotatingLog,
    /// Counter file next to the log, for `tortie health`; `None` if it cannot be created.
    counter: Option<File>,
    /// Since the supervisor started.
    dropped_lines: u64,
    reported_lines: u64,
}

impl DaemonLog {
    pub fn open(path: &Path, most: u64) -> io::Result<DaemonLog> {
        let log = RotatingLog::open(path, most)?;
        let counter =
            File::options().create(true).write(true).truncate(false).open(build_counter_path(path)).ok();
        let daemon_log = DaemonLog { log, counter, dropped_lines: 0, reported_lines: 0 };
        daemon_log.write_counter();
        Ok(daemon_log)
    }

    /// Writes to the log. Drops and counts what cannot be written, and logs the count before the next successful write.
    pub fn write(&mut self, bytes: &[u8]) {
        let unreported = self.dropped_lines - self.reported_lines;
        if unreported > 0 {
            let lost = format!("supervisor: the log could not be written; {unreported} lines were dropped\n");
            if self.log.write(lost.as_bytes()).is_ok() {
                self.reported_lines = self.dropped_lines;
            }
        }
        if self.dropped_lines > self.reported_lines || self.log.write(bytes).is_err() {
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count().max(1);
            self.dropped_lines = self.dropped_lines.saturating_add(lines as u64);
            self.write_counter();
        }
    }

    fn write_counter(&self) {
        if let Some(counter) = &self.counter {
            // Overwrites the counter in place. If that fails, the count is still reported in the log.
            let _ = counter.write_all_at(format!("{:0COUNTER_DIGITS$}\n", self.dropped_lines).as_bytes(), 0);
        }
    }

    /// Removes the log and its counter.
    pub fn remove(path: &Path) -> io::Result<()> {
        RotatingLog::remove(path)?;
        match std::fs::remove_file(build_counter_path(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns the number of dropped lines since the supervisor started; 0 without a supervisor.
pub fn dropped_lines(log: &Path) -> u64 {
    let text = std::fs::read_to_string(build_counter_path(log)).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

fn build_counter_path(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".dropped");
    name.into()
}
