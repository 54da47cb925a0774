//! A process of ours that outlives the command that starts it, found again by its pid file.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tortie_process::{PidFile, Signal};

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

    fn pid_file(&self) -> PidFile {
        PidFile::at(self.run_dir.join(format!("{}.pid", self.name)))
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
        self.pid_file().write(child.id())?;
        Ok(true)
    }

    pub fn is_running(&self) -> bool {
        self.pid_file().running().is_some()
    }

    pub fn stop(&self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut signal = Signal::TERM;
        while self.pid_file().signal(signal)? {
            std::thread::sleep(PAUSE);
            if Instant::now() > deadline {
                signal = Signal::KILL;
            }
        }
        self.pid_file().remove()?;
        match std::fs::remove_file(self.log()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
