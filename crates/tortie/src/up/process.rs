//! A process of ours that outlives the command that starts it, found again by its pid file.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// After this a process that does not end is killed.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Daemon {
    pub name: &'static str,
    exe: PathBuf,
    run_dir: PathBuf,
    words: Vec<OsString>,
}

impl Daemon {
    pub fn new(name: &'static str, exe: &Path, run_dir: &Path, words: Vec<OsString>) -> Daemon {
        Daemon { name, exe: exe.to_owned(), run_dir: run_dir.to_owned(), words }
    }

    pub fn log(&self) -> PathBuf {
        self.run_dir.join(format!("{}.log", self.name))
    }

    fn pid_file(&self) -> PathBuf {
        self.run_dir.join(format!("{}.pid", self.name))
    }

    /// Starts it unless it runs; whether it had to.
    pub fn start(&self, environment: &[(&str, OsString)]) -> io::Result<bool> {
        if self.is_running() {
            return Ok(false);
        }
        let log = File::create(self.log())?;
        let child = Command::new(&self.exe)
            .args(&self.words)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        let started_at = tortie_lab::start_time(child.id()).unwrap_or_default();
        std::fs::write(self.pid_file(), format!("{} {started_at}\n", child.id()))?;
        Ok(true)
    }

    pub fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    /// The process, if it runs. The time of its start tells it from a later one with the same number; its command line
    /// would not do, since that is empty for a moment while a program is being loaded.
    fn pid(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.pid_file()).ok()?;
        let (pid, started_at) = text.trim().split_once(' ')?;
        let pid: u32 = pid.parse().ok()?;
        let same = tortie_lab::start_time(pid)? == started_at.parse::<u64>().ok()?;
        same.then(|| i32::try_from(pid).ok().map(Pid::from_raw))?
    }

    pub fn stop(&self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut signal = Signal::SIGTERM;
        while let Some(pid) = self.pid() {
            kill(pid, signal)?;
            std::thread::sleep(PAUSE);
            if Instant::now() > deadline {
                signal = Signal::SIGKILL;
            }
        }
        for file in [self.pid_file(), self.log()] {
            match std::fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
