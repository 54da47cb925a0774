#![doc = include_str!("../README.md")]

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

pub use rustix::process::Signal;

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
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
        let handle = match pidfd_open(number, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // The pidfd refers to the process that had the pid when it was opened. Check again that this is our process,
        // in case the pid was reused between the first check and `pidfd_open`.
        if self.running() != Some(pid) {
            return Ok(false);
        }
        match pidfd_send_signal(&handle, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
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
    // The process name in parentheses may contain any character, so the fields are counted from its end.
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
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        file.write(child.id()).unwrap();
        assert!(file.signal(Signal::TERM).unwrap());
        child.wait().unwrap();
        assert!(!file.signal(Signal::TERM).unwrap());
        file.remove().unwrap();
        file.remove().unwrap();
    }
}
