//! Packets without end between two pods, and which of them were answered.

use crate::lab::Lab;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use tortie_testkit::{Process, eventually_showing};

/// Sends a packet every few milliseconds until it is dropped, and writes down every answer.
pub struct Pinger {
    _process: Process,
    log: PathBuf,
}

impl Pinger {
    pub fn start(lab: &Lab, from: &str, to: &str) -> Pinger {
        Pinger::every("0.005", lab, from, to)
    }

    /// With so many seconds from one to the next.
    pub fn every(interval: &str, lab: &Lab, from: &str, to: &str) -> Pinger {
        let log = lab.dir().join(format!("ping-{from}-{to}"));
        let ping = ["ping", "-n", "-i", interval, to];
        let mut command = lab.command(&[&["exec", from, "--"], &ping[..]].concat());
        let file = File::create(&log).unwrap();
        let process = Process::start(command.stdout(file.try_clone().unwrap()).stderr(file));
        Pinger { _process: process, log }
    }

    /// The numbers of the packets that were answered.
    fn answered(&self) -> BTreeSet<u32> {
        let text = std::fs::read_to_string(&self.log).unwrap();
        let number = |line: &str| line.split("icmp_seq=").nth(1)?.split(' ').next()?.parse().ok();
        // The last line may still be on its way.
        text.lines().filter(|line| line.ends_with(" ms")).filter_map(number).collect()
    }

    /// How many packets were answered.
    pub fn answers(&self) -> usize {
        self.answered().len()
    }

    /// Waits until this many more packets were answered than before.
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

    /// How many packets were not answered although a later one was.
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

/// The daemon of a node is killed, then stopped, and starts again each time, with so many answers in between.
pub fn restart_under(lab: &Lab, pingers: &[Pinger], node: &str, answers: usize) {
    let sessions = lab.sessions_in_use(node);
    for how in [&["--kill"][..], &[]] {
        lab.run(&[&["node", "stop", node], how].concat());
        pingers.iter().for_each(|pinger| pinger.wait_for_more(answers));
        lab.run(&["node", "start", node]);
        pingers.iter().for_each(|pinger| pinger.wait_for_more(answers));
        // Routes that are not repeated before a node goes away again are withdrawn (RFC 4724, section 4.2).
        let advertised = || lab.sessions_in_use(node) >= sessions;
        eventually_showing(&format!("{node} advertises its routes again"), advertised, || lab.picture());
    }
}
