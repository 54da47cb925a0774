//! Namespaces and processes that do not outlive the test.

use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

static COUNT: AtomicU32 = AtomicU32::new(0);

pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Namespace(pub String);

impl Namespace {
    pub fn new(what: &str) -> Namespace {
        let name = format!("tp{}-{}-{what}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&["netns", "add", &name]);
        let namespace = Namespace(name);
        namespace.ip("link set lo up");
        namespace
    }

    /// `ip WORDS...` inside.
    pub fn ip(&self, words: &str) -> String {
        ip(&["-n", &self.0].into_iter().chain(words.split_whitespace()).collect::<Vec<_>>())
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]);
        command
    }

    pub fn run(&self, program: &str, words: &[&str]) -> Output {
        self.command(program).args(words).output().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

fn ip(words: &[&str]) -> String {
    let output = Command::new("ip").args(words).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "these tests need root and iproute2: ip {words:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits for something that must come to be; `picture` is for whoever looks at the failure.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool, picture: impl Fn() -> String) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "it never happened that {what}\n{}", picture());
        std::thread::sleep(Duration::from_millis(50));
    }
}
