//! Processes that do not outlive the test.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// For a daemon to become ready on a machine with much other work.
const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(300);

/// Killed (with SIGKILL) when dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Process {
        Process(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// A daemon without input whose output nobody reads.
    pub fn quiet(command: &mut Command) -> Process {
        Process::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// Returns once it has written its first line, with that line; empty if it ended before.
    pub fn until_first_line(command: &mut Command) -> (Process, String) {
        let mut process = Process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let stdout = process.0.stdout.take().unwrap();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).unwrap();
            let _ = sender.send(line);
        });
        // A process that hangs fails its own test, not the whole run.
        let line = receiver.recv_timeout(FIRST_LINE_TIMEOUT);
        let line = line.unwrap_or_else(|_| panic!("{command:?}: no output after {FIRST_LINE_TIMEOUT:?}"));
        (process, line)
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command and gives it its input.
pub fn feed(command: &mut Command, input: &str) -> Child {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A program may answer without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child
}

/// Runs a command with an input to its end.
pub fn output(command: &mut Command, input: &str) -> Output {
    feed(command, input).wait_with_output().unwrap()
}

/// The bytes of memory that a process has.
pub fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
