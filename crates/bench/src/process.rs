//! Processes that do not outlive the measurement, and what they cost.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

/// Clock ticks of /proc, the same on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// The release build that lies beside this program.
pub fn tortie() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("tortie");
    if !program.exists() {
        let reason = format!("{} is missing: cargo build --release -p tortie", program.display());
        return Err(io::Error::other(reason));
    }
    Ok(program)
}

/// Another build of `tortie` that takes the place of the peer, for a comparison of before and after within one run.
const BEFORE_VARIABLE: &str = "TORTIE_BENCH_BEFORE";

pub fn before() -> Option<PathBuf> {
    std::env::var_os(BEFORE_VARIABLE).map(PathBuf::from)
}

/// Killed when dropped.
pub struct Process(pub Child);

/// In KiB: resident pages, the most there have been of them, and those that belong to nobody else and to no file.
#[derive(Clone, Copy)]
pub struct Memory {
    pub resident: u64,
    pub peak: u64,
    pub own: u64,
}

impl Process {
    /// A command that the kernel kills with this program, however this one ends.
    pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command
    }

    /// Processor time used so far, in all its threads.
    pub fn processor_time(&self) -> io::Result<Duration> {
        let mut time = Duration::ZERO;
        for thread in fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            // Nanoseconds on a processor come first; a thread may have ended meanwhile.
            if let Ok(stat) = fs::read_to_string(thread?.path().join("schedstat")) {
                let spent = stat.split_whitespace().next().and_then(|field| field.parse().ok());
                time += Duration::from_nanos(spent.unwrap_or(0));
            }
        }
        Ok(time)
    }

    pub fn memory(&self) -> io::Result<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
        };
        Ok(Memory { resident: field("VmRSS:"), peak: field("VmHWM:"), own: field("RssAnon:") })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processor time of all processes that were started from here and have ended, and of those they started.
pub fn time_of_the_ended() -> io::Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may contain anything; the fields are counted from behind it.
    let (_, fields) = stat.rsplit_once(')').ok_or_else(|| io::Error::other("/proc/self/stat has no name"))?;
    let ticks = fields.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u32>().ok());
    Ok(TICK * ticks.sum::<u32>())
}
