//! Processes that outlive the command that starts them: found again by pid file, ended by pidfd, with a heap that does
//! not fray.

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

pub use rustix::process::Signal;

/// A file that names one process: `PID START-TIME`. The start time tells the process from a later one with the same
/// pid; the command line would not do, since that is empty for a moment while a program is being loaded.
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

    /// The pid, if that process still runs.
    pub fn running(&self) -> Option<u32> {
        let text = fs::read_to_string(&self.0).ok()?;
        let (pid, started_at) = text.trim().split_once(' ')?;
        let pid = pid.parse().ok()?;
        (start_time(pid)? == started_at.parse::<u64>().ok()?).then_some(pid)
    }

    /// Sends a signal to the process; false if it is gone already.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let Some(pid) = self.running() else { return Ok(false) };
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
        let handle = match pidfd_open(number, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // The handle stays with the process it was opened for; this check says that it is ours.
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

/// Set in the environment of daemons that a supervisor starts.
pub const SUPERVISED: &str = "TORTIE_SUPERVISED";

/// Has this process ended when its supervisor is killed; without a supervisor, does nothing.
pub fn end_with_supervisor() -> io::Result<()> {
    if env::var_os(SUPERVISED).is_none() {
        return Ok(());
    }
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?)
}

/// How many heaps the C library may have; it reads this when a program is loaded.
const ARENAS: &str = "MALLOC_ARENA_MAX";
/// Enough that threads seldom wait for each other. With two, a start takes 5 % more processor time.
const FEW: &str = "3";

/// Loads this program again with few heaps, in the same process. By itself the C library makes one for nearly every thread,
/// and what is freed in one is of no use to the others: after some thousand containers a node has more memory that
/// nobody uses than memory in use, and it has more with every thousand. Who has set the number already is not asked
/// again; where the program cannot be loaded anew (it was replaced, say), it goes on as it is.
pub fn share_heaps() {
    let set = env::var_os(ARENAS).is_some() || env::var_os("GLIBC_TUNABLES").is_some();
    let mut args = env::args_os();
    if let (false, Some(name), Ok(program)) = (set, args.next(), env::current_exe()) {
        // It comes back only if it fails.
        let _ = Command::new(program).arg0(name).args(args).env(ARENAS, FEW).exec();
    }
}

/// Sends a signal to a child of this process that has not been waited for.
pub fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        Some(pid) => Ok(rustix::process::kill_process(pid, signal)?),
        None => Err(io::Error::other(format!("{pid} is not the number of a process"))),
    }
}

/// When a process started, in ticks since boot; None if it does not run any more.
fn start_time(pid: u32) -> Option<u64> {
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
    fn a_pid_file_of_another_process_is_not_believed() {
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
