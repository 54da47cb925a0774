//! Pods that talk while something happens to their nodes: numbered packets at a steady pace, both ways, over both families.

use crate::{Lab, family};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use tortie_testkit::{Process, eventually};

/// Two pods that ping each other until this is dropped.
pub struct Talk(Vec<Pinger>);

impl Talk {
    /// Each end is a pod and its addresses. Returns once both have heard from the other.
    pub fn start(lab: &Lab, one: (&str, &[String]), two: (&str, &[String])) -> Talk {
        let ways = [(one.0, two.1), (two.0, one.1)];
        let ways =
            ways.into_iter().flat_map(|(from, to)| [(from, family(to, false)), (from, family(to, true))]);
        let talk = Talk(ways.map(|(from, to)| Pinger::start(lab, from, to)).collect());
        talk.go_on(20);
        talk
    }

    /// Waits until this many more packets were answered each way.
    pub fn go_on(&self, more: usize) {
        self.0.iter().for_each(|pinger| pinger.wait_for_more(more));
    }

    /// How many packets were not answered although a later one was, of all ways together.
    pub fn lost(&self) -> usize {
        self.0.iter().map(|pinger| pinger.lost().len()).sum()
    }

    pub fn none_lost(&self) {
        self.0.iter().for_each(Pinger::none_lost);
    }

    /// Ends and starts the daemons of these nodes, by kill -9 and as asked to.
    pub fn through_restarts(&self, lab: &Lab, nodes: &[&str]) {
        for node in nodes {
            for how in [&["--kill"][..], &[]] {
                lab.run(&[&["node", "stop", node], how].concat());
                self.go_on(20);
                lab.run(&["node", "start", node]);
                self.go_on(20);
            }
        }
    }
}

/// Sends a packet every few milliseconds until it is dropped, and writes down every answer.
pub struct Pinger {
    _process: Process,
    log: PathBuf,
}

impl Pinger {
    pub fn start(lab: &Lab, from: &str, to: &str) -> Pinger {
        let log = lab.dir().join(format!("ping-{from}-{to}"));
        let ping = ["ping", "-n", "-i", "0.005", to];
        let mut command = lab.command(&[&["exec", from, "--"], &ping[..]].concat());
        let process = Process::start(command.stdout(File::create(&log).unwrap()));
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

    pub fn wait_for_more(&self, more: usize) {
        let wanted = self.answered().len() + more;
        let what = format!("{more} more answers in {}", self.log.display());
        eventually(&what, || self.answered().len() >= wanted);
    }

    pub fn none_lost(&self) {
        let lost = self.lost();
        assert!(lost.is_empty(), "{}: lost {lost:?}", self.log.display());
    }

    fn lost(&self) -> Vec<u32> {
        let answered = self.answered();
        let sent = 1..=answered.last().copied().unwrap_or(0);
        sent.filter(|number| !answered.contains(number)).collect()
    }
}
