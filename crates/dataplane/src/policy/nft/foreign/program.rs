//! Runs the programs of iptables-legacy. Its tables have no netlink interface, and each change replaces a whole table
//! under a lock; only its own programs should do that.

use crate::error::{DataplaneError, DataplaneResult};
use crate::netns::Netns;
use std::io::{self, ErrorKind, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Seconds that a program waits for the xtables lock. The dataplane is blocked during this time.
const LOCK_WAIT_SECONDS: &str = "1";
/// Time after which a program is considered stuck.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(10);
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum number of bytes read from the output of a program.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;

/// The two families of legacy tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyProgram {
    V4,
    V6,
}

impl LegacyProgram {
    pub const BOTH: [LegacyProgram; 2] = [LegacyProgram::V4, LegacyProgram::V6];

    pub fn name(self) -> &'static str {
        match self {
            LegacyProgram::V4 => "iptables-legacy",
            LegacyProgram::V6 => "ip6tables-legacy",
        }
    }

    /// Returns the legacy tables of a namespace: only those that a program has used exist.
    pub async fn tables(self, netns: &Netns) -> DataplaneResult<Vec<String>> {
        let path = match self {
            LegacyProgram::V4 => "/proc/thread-self/net/ip_tables_names",
            LegacyProgram::V6 => "/proc/thread-self/net/ip6_tables_names",
        };
        // The file does not exist if the kernel has no legacy tables at all.
        let names = netns.within(move || std::fs::read_to_string(path).unwrap_or_default()).await?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// Runs a command of the program, and returns its output.
    pub async fn run(self, netns: &Netns, arguments: Vec<String>) -> Result<String, ProgramError> {
        let arguments = [vec!["-w".to_owned(), LOCK_WAIT_SECONDS.to_owned()], arguments].concat();
        run_program(netns, self.name().to_owned(), arguments, String::new()).await
    }

    /// Returns the output of `iptables-save` for a table.
    pub async fn save(self, netns: &Netns, table: &str) -> Result<String, ProgramError> {
        let program = format!("{}-save", self.name());
        run_program(netns, program, vec!["-t".to_owned(), table.to_owned()], String::new()).await
    }

    /// Runs `iptables-restore` without flushing existing rules; either all lines take effect or none.
    pub async fn restore(self, netns: &Netns, lines: String) -> Result<(), ProgramError> {
        let program = format!("{}-restore", self.name());
        let arguments = ["--noflush", "-w", LOCK_WAIT_SECONDS].map(str::to_owned).to_vec();
        run_program(netns, program, arguments, lines).await.map(drop)
    }
}

/// A command that failed.
#[derive(Debug, thiserror::Error)]
#[error("{command}: {source}")]
pub struct ProgramError {
    command: String,
    source: ProgramFailure,
}

#[derive(Debug, thiserror::Error)]
enum ProgramFailure {
    #[error("program not found on this host")]
    NotFound,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("still running after {} s", PROGRAM_TIMEOUT.as_secs())]
    Stuck,
    /// The message that the program has written.
    #[error("{0}")]
    Rejected(String),
    #[error(transparent)]
    Namespace(#[from] DataplaneError),
}

async fn run_program(
    netns: &Netns,
    program: String,
    arguments: Vec<String>,
    input: String,
) -> Result<String, ProgramError> {
    let command = format!("{program} {}", arguments.join(" "));
    let outcome = netns.within(move || run_blocking(&program, &arguments, &input)).await;
    outcome.unwrap_or_else(|error| Err(error.into())).map_err(|source| ProgramError { command, source })
}

fn run_blocking(program: &str, arguments: &[String], input: &str) -> Result<String, ProgramFailure> {
    let spawned = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(ProgramFailure::NotFound),
        Err(error) => return Err(error.into()),
    };
    let outcome = exchange_data(&mut child, input);
    if outcome.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    outcome
}

/// Writes the input of a program, and returns its output once it has ended.
fn exchange_data(child: &mut Child, input: &str) -> Result<String, ProgramFailure> {
    let output = read_in_thread(child.stdout.take());
    let messages = read_in_thread(child.stderr.take());
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let limit = Instant::now() + PROGRAM_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > limit {
            return Err(ProgramFailure::Stuck);
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
    };
    let output = output.join().unwrap_or_default();
    let messages = messages.join().unwrap_or_default();
    if status.success() { Ok(output) } else { Err(ProgramFailure::Rejected(messages.trim().to_owned())) }
}

/// Reads a stream while the program runs: a program whose output is not read blocks.
fn read_in_thread(stream: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(stream) = stream {
            let _ = stream.take(MAX_OUTPUT_BYTES).read_to_string(&mut text);
        }
        text
    })
}
