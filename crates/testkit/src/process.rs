//! Child processes that are killed when the test ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Time limit for a daemon to become ready on a heavily loaded machine.
const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(300);

/// A child process, killed with SIGKILL when dropped.
#[derive(Debug)]
pub struct TestProcess(Child);

impl TestProcess {
    pub fn start(command: &mut Command) -> TestProcess {
        TestProcess(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Starts a process with standard input, output and error connected to /dev/null.
    pub fn quiet(command: &mut Command) -> TestProcess {
        TestProcess::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// Starts a process and waits for its first line of output. The line is empty if the process exits without output.
    pub fn until_first_line(command: &mut Command) -> (TestProcess, String) {
        let mut process = TestProcess::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let stdout = process.0.stdout.take().unwrap();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).unwrap();
            let _ = sender.send(line);
        });
        // The timeout makes a hanging process fail its own test instead of blocking the whole run.
        let line = receiver.recv_timeout(FIRST_LINE_TIMEOUT);
        let line = line.unwrap_or_else(|_| panic!("{command:?}: no output after {FIRST_LINE_TIMEOUT:?}"));
        (process, line)
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Takes standard output, which the command must have piped.
    pub fn take_output(&mut self) -> std::process::ChildStdout {
        self.0.stdout.take().unwrap()
    }

    /// Returns whether the process has exited.
    pub fn ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command and writes `input` to its standard input.
pub fn feed(command: &mut Command, input: &str) -> Child {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Ignore write errors: a program may exit without reading its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child
}

/// Runs a command with `input` on standard input and waits for it to exit.
pub fn output(command: &mut Command, input: &str) -> Output {
    feed(command, input).wait_with_output().unwrap()
}

/// Returns the resident set size of a process in bytes.
pub fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
