//! Continuous pings between two pods, and which of them were answered.

use crate::lab::TestLab;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use tortie_testkit::{TestProcess, eventually_showing};

/// A ping every few milliseconds until dropped, with a log of all answers.
pub struct ContinuousPing {
    _process: TestProcess,
    log: PathBuf,
}

impl ContinuousPing {
    pub fn start(lab: &TestLab, from: &str, to: &str) -> ContinuousPing {
        ContinuousPing::every("0.005", lab, from, to)
    }

    /// Starts with the given interval in seconds.
    pub fn every(interval: &str, lab: &TestLab, from: &str, to: &str) -> ContinuousPing {
        let log = lab.dir().join(format!("ping-{from}-{to}"));
        let ping = ["ping", "-n", "-i", interval, to];
        let mut command = lab.command(&[&["exec", from, "--"], &ping[..]].concat());
        let file = File::create(&log).unwrap();
        let process = TestProcess::start(command.stdout(file.try_clone().unwrap()).stderr(file));
        ContinuousPing { _process: process, log }
    }

    /// Returns the sequence numbers of the answered packets.
    fn answered(&self) -> BTreeSet<u32> {
        let text = std::fs::read_to_string(&self.log).unwrap();
        let number = |line: &str| line.split("icmp_seq=").nth(1)?.split(' ').next()?.parse().ok();
        // The last line may be incomplete.
        text.lines().filter(|line| line.ends_with(" ms")).filter_map(number).collect()
    }

    /// Returns how many packets were answered.
    pub fn answers(&self) -> usize {
        self.answered().len()
    }

    /// Waits until this many more packets have been answered.
    pub fn wait_for_more(&self, more: usize) {
        let wanted = self.answered().len() + more;
        let what = format!("{more} more answers in {}", self.log.display());
        eventually_showing(&what, || self.answered().len() >= wanted, || self.last_lines());
    }

    fn last_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    /// Returns how many packets were not answered although a later one was.
    pub fn lost(&self) -> usize {
        let answered = self.answered();
        answered.last().map_or(0, |last| *last as usize).saturating_sub(answered.len())
    }

    pub fn none_lost(&self) {
        let answered = self.answered();
        let sent: BTreeSet<u32> = (1..=answered.last().copied().unwrap_or(0)).collect();
        let lost: Vec<&u32> = sent.difference(&answered).collect();
        assert!(lost.is_empty(), "{}: lost {lost:?} of {}", self.log.display(), sent.len());
    }
}

/// Kills and restarts, then stops and restarts the daemon of a node, with this many answers in between.
pub fn restart_under(lab: &TestLab, pingers: &[ContinuousPing], node: &str, answers: usize) {
    let sessions = lab.sessions_in_use(node);
    for how in [&["--kill"][..], &[]] {
        lab.run(&[&["node", "stop", node], how].concat());
        pingers.iter().for_each(|pinger| pinger.wait_for_more(answers));
        lab.run(&["node", "start", node]);
        pingers.iter().for_each(|pinger| pinger.wait_for_more(answers));
        // Routes that are not re-advertised before the node restarts again are withdrawn (RFC 4724, section 4.2).
        let advertised = || lab.sessions_in_use(node) >= sessions;
        eventually_showing(&format!("{node} advertises its routes again"), advertised, || lab.picture());
    }
}
