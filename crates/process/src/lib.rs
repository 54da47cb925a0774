#![doc = include_str!("../README.md")]

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

pub use rustix::process::Signal;

/// Interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of bytes at the end of a log in which its last lines are searched.
const MAX_TAIL_BYTES: u64 = 64 * 1024;

/// A file that identifies one process as `PID START-TIME`. The start time distinguishes the process from a later one
/// with the same pid. The command line would not do, because it is empty for a moment during `execve`.
#[derive(Clone, Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    pub fn at(path: impl Into<PathBuf>) -> PidFile {
        PidFile(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, pid: u32) -> io::Result<()> {
        let started_at = start_time(pid).unwrap_or_default();
        fs::write(&self.0, format!("{pid} {started_at}\n"))
    }

    /// Returns the pid if the process still runs.
    pub fn running(&self) -> Option<u32> {
        let text = fs::read_to_string(&self.0).ok()?;
        let (pid, started_at) = text.trim().split_once(' ')?;
        let pid = pid.parse().ok()?;
        (start_time(pid)? == started_at.parse::<u64>().ok()?).then_some(pid)
    }

    /// Sends a signal to the process. Returns false if the process does not run any more.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let Some(pid) = self.running() else { return Ok(false) };
        signal_if(pid, signal, || self.running() == Some(pid))
    }

    /// Sends a signal to the process and waits until it has exited. Returns false if it still runs after the time limit.
    pub fn end(&self, signal: Signal, limit: Duration) -> io::Result<bool> {
        self.signal(signal)?;
        Ok(wait_until(limit, || self.running().is_none()))
    }

    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Environment variable that the supervisor sets for the daemons that it starts.
pub const SUPERVISED_VARIABLE: &str = "TORTIE_SUPERVISED";

/// Makes the kernel send SIGTERM to this process when its supervisor dies. Does nothing without a supervisor.
pub fn end_with_supervisor() -> io::Result<()> {
    if env::var_os(SUPERVISED_VARIABLE).is_none() {
        return Ok(());
    }
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?)
}

/// Maximum number of malloc arenas of glibc, which reads this environment variable at program start.
const ARENA_MAX_VARIABLE: &str = "MALLOC_ARENA_MAX";
/// Enough arenas that threads seldom contend for one. With two, the start of a node takes 5 % more CPU time.
const MAX_MALLOC_ARENAS: &str = "3";

/// Executes this program again in the same process with a small number of malloc arenas. By default glibc creates one
/// arena for nearly every thread, and memory freed in one arena is not available to the others: after some thousand
/// containers a node holds more free memory than used memory, and the amount grows with every thousand. Does nothing
/// if the environment already configures malloc. If `execve` fails (for example because the executable was replaced),
/// the process continues unchanged.
pub fn share_heaps() {
    let set = env::var_os(ARENA_MAX_VARIABLE).is_some() || env::var_os("GLIBC_TUNABLES").is_some();
    let mut args = env::args_os();
    if let (false, Some(name), Ok(program)) = (set, args.next(), env::current_exe()) {
        // `exec` returns only on failure.
        let _ = Command::new(program).arg0(name).args(args).env(ARENA_MAX_VARIABLE, MAX_MALLOC_ARENAS).exec();
    }
}

/// Sends a signal to a process if `is_same` confirms that the pid still refers to the process that the caller means.
/// Returns false if the process does not run any more.
pub fn signal_if(pid: u32, signal: Signal, is_same: impl FnOnce() -> bool) -> io::Result<bool> {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
    // The pidfd refers to the process that has the pid when it is opened, so `is_same` is checked afterwards.
    let sent = pidfd_open(number, PidfdFlags::empty())
        .and_then(|handle| if is_same() { pidfd_send_signal(&handle, signal) } else { Err(Errno::SRCH) });
    match sent {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until the condition holds. Returns false if it does not within the time limit.
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
    true
}

/// Prepares a command that outlives its parent: it appends its output to a log, and its own process group keeps the
/// signals of the terminal away.
pub fn run_in_background<'c>(command: &'c mut Command, log: &Path) -> io::Result<&'c mut Command> {
    let log = fs::File::options().create(true).append(true).open(log)?;
    Ok(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0))
}

/// Returns the last lines of a log file.
pub fn last_lines(log: &Path, count: usize) -> io::Result<String> {
    let mut file = fs::File::open(log)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(MAX_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(count)..].join("\n"))
}

/// Sends a signal to a child process that has not been waited for, so that its pid cannot have been reused.
pub fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        Some(pid) => Ok(rustix::process::kill_process(pid, signal)?),
        None => Err(io::Error::other(format!("{pid} is not the number of a process"))),
    }
}

/// Returns the start time of a process in clock ticks since boot, or None if the process does not run any more.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat_fields(&stat)?;
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Returns the fields of `/proc/PID/stat` after the process name, beginning with the state. The name in parentheses
/// may contain any character, so the fields are counted from its end.
pub fn stat_fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(") ")?.1.split_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_of_another_process_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let file = PidFile::at(dir.path().join("pid"));
        assert_eq!(file.running(), None);
        let pid = std::process::id();
        file.write(pid).unwrap();
        assert_eq!(file.running(), Some(pid));
        fs::write(file.path(), format!("{pid} {}\n", start_time(pid).unwrap() + 1)).unwrap();
        assert_eq!(file.running(), None);
        assert!(!file.signal(Signal::KILL).unwrap(), "the signal goes to nobody");
        fs::write(file.path(), "nonsense").unwrap();
        assert_eq!(file.running(), None);
    }

    #[test]
    fn a_process_is_ended_by_its_pid_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = PidFile::at(dir.path().join("pid"));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        file.write(child.id()).unwrap();
        assert!(!wait_until(Duration::ZERO, || file.running().is_none()));
        assert!(file.end(Signal::TERM, Duration::from_secs(60)).unwrap());
        child.wait().unwrap();
        assert!(!file.signal(Signal::TERM).unwrap());
        file.remove().unwrap();
        file.remove().unwrap();
    }

    #[test]
    fn the_end_of_a_log_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert!(last_lines(&log, 15).is_err());
        let lines: Vec<String> = (0..2000).map(|n| format!("line {n}")).collect();
        fs::write(&log, lines.join("\n")).unwrap();
        let tail = last_lines(&log, 15).unwrap();
        assert!(tail.starts_with("line 1985\n") && tail.ends_with("line 1999"), "{tail}");
    }
}
