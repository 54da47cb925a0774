//! Runs the programs of iptables-legacy. Its tables have no netlink interface, and each change replaces a whole table
//! under a lock; only its own programs should do that.

use crate::error::DataplaneResult;
use crate::netns::Netns;
use std::io::{ErrorKind, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Seconds to wait for the xtables lock. The whole dataplane waits as long.
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

    /// Runs a command of the program. Returns its output, or its error message.
    pub async fn run(self, netns: &Netns, words: Vec<String>) -> std::result::Result<String, String> {
        let program = self.name().to_owned();
        run(
            netns,
            program,
            [vec!["-w".to_owned(), LOCK_WAIT_SECONDS.to_owned()], words].concat(),
            String::new(),
        )
        .await
    }

    /// Returns the output of `iptables-save` for a table.
    pub async fn save(self, netns: &Netns, table: &str) -> std::result::Result<String, String> {
        let program = format!("{}-save", self.name());
        run(netns, program, vec!["-t".to_owned(), table.to_owned()], String::new()).await
    }

    /// Runs `iptables-restore` without flushing existing rules; either all lines take effect or none.
    pub async fn restore(self, netns: &Netns, lines: String) -> std::result::Result<(), String> {
        let program = format!("{}-restore", self.name());
        let words = ["--noflush", "-w", LOCK_WAIT_SECONDS].map(str::to_owned).to_vec();
        run(netns, program, words, lines).await.map(drop)
    }
}

async fn run(
    netns: &Netns,
    program: String,
    words: Vec<String>,
    input: String,
) -> std::result::Result<String, String> {
    let command = format!("{program} {}", words.join(" "));
    let outcome = netns.within(move || run_here(&program, &words, &input)).await;
    match outcome {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(reason)) => Err(format!("{command}: {reason}")),
        Err(error) => Err(error.to_string()),
    }
}

fn run_here(program: &str, words: &[String], input: &str) -> std::result::Result<String, String> {
    let spawned = Command::new(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| match error.kind() {
        ErrorKind::NotFound => "program not found on this host".to_owned(),
        _ => error.to_string(),
    })?;
    let outcome = converse(&mut child, input);
    if outcome.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    outcome
}

fn converse(child: &mut Child, input: &str) -> std::result::Result<String, String> {
    let text = |error: std::io::Error| error.to_string();
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let read = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut said = String::new();
            if let Some(stream) = stream {
                let _ = stream.take(MAX_OUTPUT_BYTES).read_to_string(&mut said);
            }
            said
        })
    };
    let said = read(stdout.map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let complained = read(stderr.map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    if let Some(mut stdin) = stdin {
        stdin.write_all(input.as_bytes()).map_err(text)?;
    }
    let limit = Instant::now() + PROGRAM_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(text)? {
            break status;
        }
        if Instant::now() > limit {
            return Err(format!("still running after {} s", PROGRAM_TIMEOUT.as_secs()));
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
    };
    let (said, complained) = (said.join().unwrap_or_default(), complained.join().unwrap_or_default());
    if status.success() { Ok(said) } else { Err(complained.trim().to_owned()) }
}
