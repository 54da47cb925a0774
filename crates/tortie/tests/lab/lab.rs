//! A lab for one test.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

static LAB_COUNT: AtomicU32 = AtomicU32::new(0);

/// A lab with a unique name, brought down on drop.
pub struct TestLab {
    pub name: String,
}

impl TestLab {
    pub fn new() -> TestLab {
        let number = LAB_COUNT.fetch_add(1, Ordering::Relaxed);
        TestLab { name: format!("t{}x{number}", std::process::id()) }
    }

    pub fn up(args: &[&str]) -> TestLab {
        let lab = TestLab::new();
        lab.run(&[&["up"], args].concat());
        lab
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.args(["lab", "--name", &self.name]).args(args).stdin(Stdio::null());
        command
    }

    pub fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed and returns its output.
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "lab {args:?}: {}\n{out}{err}\n{}", output.status, self.picture());
        out.into_owned()
    }

    /// Runs a command that must fail and returns its standard error.
    pub fn refused(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(!output.status.success(), "lab {args:?} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    pub fn add(&self, pod: &str, node: &str, more: &[&str]) -> Vec<String> {
        let printed = self.run(&[&["pod", "add", pod, "--node", node], more].concat());
        printed.lines().map(str::to_owned).collect()
    }

    pub fn ping(&self, from: &str, to: &str) {
        self.run(&["exec", from, "--", "ping", "-n", "-c", "1", "-W", "10", to]);
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.run(&["status", "-o", "json"])).unwrap()
    }

    /// Returns the number of established BGP sessions over which the node has advertised routes.
    pub fn sessions_in_use(&self, node: &str) -> usize {
        let status = self.status();
        let own = status["nodes"].as_array().unwrap().iter().find(|other| other["name"] == node).unwrap();
        let in_use =
            |session: &&Value| session["state"] == "Established" && session["sent"].as_u64() > Some(0);
        own["sessions"].as_array().unwrap().iter().filter(in_use).count()
    }

    pub fn pings(&self, from: &str, to: &str) -> bool {
        self.output(&["exec", from, "--", "ping", "-n", "-c", "1", "-w", "2", to]).status.success()
    }

    pub fn node(&self, name: &str) -> Value {
        serde_json::from_str(&self.run(&["ctl", "get", "node", name, "-o", "json"])).unwrap()
    }

    pub fn apply(&self, yaml: &str) {
        let file = self.dir().join("applied.yaml");
        std::fs::write(&file, yaml).unwrap();
        self.run(&["ctl", "apply", "-f", file.to_str().unwrap()]);
    }

    pub fn addresses_are_accounted_for(&self) {
        let check = || self.run(&["ctl", "ipam", "check"]);
        tortie_testkit::eventually_showing(
            "no address is leaked",
            || check().contains("found 0 problems"),
            || format!("{}\n{}", check(), self.picture()),
        );
    }

    /// Returns the status of the lab, for failure messages.
    pub fn picture(&self) -> String {
        String::from_utf8_lossy(&self.output(&["status"]).stdout).into_owned()
    }

    pub fn dir(&self) -> PathBuf {
        PathBuf::from("/run/tortie-lab").join(&self.name)
    }

    /// Returns the namespaces, processes and files of this lab.
    pub fn traces(&self) -> Vec<String> {
        let mut found = self.namespaces();
        found.extend(self.dir().exists().then(|| self.dir().display().to_string()));
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let path = entry.ok()?.path();
            path.file_name()?.to_str()?.parse::<u32>().ok()?;
            let words =
                [std::fs::read(path.join("cmdline")).ok()?, std::fs::read(path.join("environ")).ok()?];
            let text = String::from_utf8_lossy(&words.concat()).replace('\0', " ");
            text.contains(&format!("{}/", self.dir().display())).then_some(text)
        });
        found.extend(processes);
        found
    }

    pub fn namespaces(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir("/run/netns") else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| name.starts_with(&format!("tortie-{}-", self.name))).collect()
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        let _ = self.output(&["down"]);
    }
}

pub fn family(addresses: &[String], v6: bool) -> &str {
    addresses.iter().find(|address| address.contains(':') == v6).unwrap()
}
