//! Processes that do not outlive the test.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

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
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
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
