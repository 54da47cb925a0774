//! `tortie datastore` as a process of its own, killed (with SIGKILL) when it is dropped.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub struct Datastore {
    child: Child,
    pub url: String,
}

impl Datastore {
    /// Starts it on a free port and waits for its ready line.
    pub fn start(dir: &Path, more: &[&str]) -> Datastore {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(["datastore", "--listen", "http://127.0.0.1:0", "--data-dir"])
            .arg(dir)
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split_whitespace().find(|word| word.starts_with("http://"));
        let url = url.unwrap_or_else(|| panic!("no ready line but {line:?}")).to_owned();
        Datastore { child, url }
    }
}

impl Drop for Datastore {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
