//! A lab inside the guest; gone when dropped.

use crate::world::TORTIE;
use std::process::{Command, Output, Stdio};

pub struct Lab {
    name: &'static str,
}

impl Lab {
    pub fn up(name: &'static str, args: &[&str]) -> Lab {
        let lab = Lab { name };
        lab.run(&[&["up"], args].concat());
        lab
    }

    pub fn output(&self, args: &[&str]) -> Output {
        let mut command = Command::new(TORTIE);
        command.args(["lab", "--name", self.name]).args(args).stdin(Stdio::null()).output().unwrap()
    }

    /// What a command that must succeed prints.
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "lab {args:?}: {}\n{out}{err}", output.status);
        out.into_owned()
    }

    /// A new pod; its IPv4 address.
    pub fn add(&self, pod: &str, node: &str) -> String {
        let printed = self.run(&["pod", "add", pod, "--node", node]);
        printed.lines().find(|address| !address.contains(':')).unwrap().to_owned()
    }

    pub fn on(&self, place: &str, words: &str) -> String {
        self.run(&[&["exec", place, "--"], &words.split_whitespace().collect::<Vec<_>>()[..]].concat())
    }

    pub fn pings(&self, from: &str, words: &str) -> bool {
        let ping: Vec<&str> =
            ["ping", "-n", "-c", "1", "-W", "5"].into_iter().chain(words.split(' ')).collect();
        self.output(&[&["exec", from, "--"], &ping[..]].concat()).status.success()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.output(&["down"]);
    }
}
