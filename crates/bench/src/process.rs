//! Runs processes that end with the measurement, and reads their CPU time and memory.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

/// Clock tick of /proc, which is the same on all Linux systems.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// Returns the path of the release build next to this program.
pub fn tortie() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("tortie");
    if !program.exists() {
        let reason = format!("{} is missing: cargo build --release -p tortie", program.display());
        return Err(io::Error::other(reason));
    }
    Ok(program)
}

/// Environment variable that names another build of `tortie` to compare with, for a before/after comparison in one run.
const BEFORE_VARIABLE: &str = "TORTIE_BENCH_BEFORE";

pub fn before() -> Option<PathBuf> {
    std::env::var_os(BEFORE_VARIABLE).map(PathBuf::from)
}

/// A child process, killed when dropped.
pub struct BenchProcess(pub Child);

/// Memory in KiB: resident pages, their maximum, and anonymous pages (`RssAnon`).
#[derive(Clone, Copy)]
pub struct ProcessMemory {
    pub resident: u64,
    pub peak: u64,
    pub own: u64,
}

impl BenchProcess {
    /// Builds a command that the kernel kills when this program ends for any reason.
    pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command
    }

    /// Returns the CPU time of all its threads so far.
    pub fn processor_time(&self) -> io::Result<Duration> {
        let mut time = Duration::ZERO;
        for thread in fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            // The first field is the CPU time in nanoseconds. A thread may have exited since the directory was read.
            if let Ok(stat) = fs::read_to_string(thread?.path().join("schedstat")) {
                let spent = stat.split_whitespace().next().and_then(|field| field.parse().ok());
                time += Duration::from_nanos(spent.unwrap_or(0));
            }
        }
        Ok(time)
    }

    pub fn memory(&self) -> io::Result<ProcessMemory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
        };
        Ok(ProcessMemory { resident: field("VmRSS:"), peak: field("VmHWM:"), own: field("RssAnon:") })
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the CPU time of all child processes that have exited, including their descendants.
pub fn time_of_the_ended() -> io::Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may contain any character, so fields are counted after its end.
    let (_, fields) = stat.rsplit_once(')').ok_or_else(|| io::Error::other("/proc/self/stat has no name"))?;
    let ticks = fields.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u32>().ok());
    Ok(CLOCK_TICK * ticks.sum::<u32>())
}
