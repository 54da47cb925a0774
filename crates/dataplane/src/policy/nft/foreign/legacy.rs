//! The same in the tables of iptables-legacy, where they are in use.

use super::super::render::Allowed;
use super::super::rule::mark;
use super::super::table::Point;
use super::diff::{self, Edit, Kind};
use super::program::Legacy as Program;
use super::{COMMENT, SERVICES};
use crate::failure::{Concerns, Failure, KernelObject};
use crate::netns::Netns;
use std::time::Duration;

/// The kernel does not say when these tables change.
const INTERVAL: Duration = Duration::from_secs(5);

/// The chains that packets with our mark can come to: table, chain, where the kernel enters it, at which priority.
const CHAINS: [(&str, &str, Point, i32); 4] = [
    ("filter", "INPUT", Point::Input, 0),
    ("filter", "FORWARD", Point::Forward, 0),
    ("filter", "OUTPUT", Point::Output, 0),
    ("mangle", "PREROUTING", Point::Prerouting, -150),
];

pub(super) struct Legacy {
    netns: Netns,
    next: Duration,
    failures: Vec<Failure>,
}

impl Legacy {
    pub fn new(netns: Netns) -> Legacy {
        Legacy { netns, next: Duration::ZERO, failures: Vec::new() }
    }

    pub fn invalidate(&mut self) {
        self.next = Duration::ZERO;
    }

    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    pub async fn converge(&mut self, allowed: &[Allowed], now: Duration) {
        if now < self.next {
            return;
        }
        self.next = now + INTERVAL;
        self.failures = Vec::new();
        for program in Program::BOTH {
            let tables = match program.tables(&self.netns).await {
                Ok(tables) => tables,
                Err(error) => {
                    self.failures.push(error.into());
                    continue;
                }
            };
            for (table, chain, point, priority) in CHAINS {
                if !tables.iter().any(|known| known == table) {
                    continue;
                }
                let wanted =
                    allowed.iter().any(|place| place.point == point && place.priorities.contains(&priority));
                let place = Place { program, table, chain };
                if let Err(reason) = place.settle(&self.netns, wanted).await {
                    let object = place.object();
                    self.failures.push(Failure { object, concerns: Concerns::nobody(), reason });
                    // The program is missing or its lock is held; the other chains have to wait as well.
                    break;
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Place {
    program: Program,
    table: &'static str,
    chain: &'static str,
}

impl Place {
    fn object(self) -> KernelObject {
        let table = format!("{} of {}", self.table, self.program.name());
        KernelObject::ForeignChain { table, name: self.chain.to_owned() }
    }

    async fn settle(self, netns: &Netns, wanted: bool) -> Result<(), String> {
        let listing = self.run(netns, &["-S", self.chain]).await?;
        let (kinds, drops) = read(&listing, self.chain);
        for words in commands(&diff::edits(&kinds, drops, wanted), &kinds, self.chain) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.run(netns, &words).await?;
            tracing::info!(chain = %self.object(), command = words.join(" "), "what policy allows, there");
        }
        Ok(())
    }

    async fn run(self, netns: &Netns, words: &[&str]) -> Result<String, String> {
        let words = ["-t", self.table].iter().chain(words).map(|word| (*word).to_owned()).collect();
        self.program.run(netns, words).await
    }
}

/// What the program is told of our rule, after the chain.
fn rule() -> Vec<String> {
    let bits = format!("{0:#x}/{0:#x}", mark::ACCEPTED);
    ["-m", "mark", "--mark", &bits, "-m", "comment", "--comment", COMMENT, "-j", "ACCEPT"]
        .map(str::to_owned)
        .to_vec()
}

/// What the rules of a chain are to us, and whether its policy drops.
fn read(listing: &str, chain: &str) -> (Vec<Kind>, bool) {
    let quoted = rule()
        .iter()
        .map(|word| if word == COMMENT { format!("\"{word}\"") } else { word.clone() })
        .collect::<Vec<_>>();
    let ours = format!("-A {chain} {}", quoted.join(" "));
    let services = format!(" -j {SERVICES}");
    let kind = |line: &str| match line {
        line if line == ours => Kind::Ours,
        line if line.contains(&services) => Kind::Services,
        _ => Kind::Other,
    };
    let added = format!("-A {chain} ");
    let kinds = listing.lines().filter(|line| line.starts_with(&added)).map(kind).collect();
    (kinds, listing.lines().any(|line| line == format!("-P {chain} DROP")))
}

/// Rules are deleted by what they are, never by number: the chain may have changed since it was read.
fn commands(edits: &[Edit], kinds: &[Kind], chain: &str) -> Vec<Vec<String>> {
    let command = |edit: &Edit| match edit {
        Edit::Delete(_) => [vec!["-D".to_owned(), chain.to_owned()], rule()].concat(),
        Edit::Insert { before: None } => [vec!["-A".to_owned(), chain.to_owned()], rule()].concat(),
        Edit::Insert { before: Some(before) } => {
            let foreign = kinds.iter().take(*before).filter(|kind| **kind != Kind::Ours).count();
            [vec!["-I".to_owned(), chain.to_owned(), (foreign + 1).to_string()], rule()].concat()
        }
    };
    edits.iter().map(command).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "-A FORWARD -m mark --mark 0x10000/0x10000 -m comment --comment \"tortie: allowed by policy\" -j ACCEPT";

    #[test]
    fn a_listing_is_read_as_the_program_prints_it() {
        let listing = format!(
            "-P FORWARD DROP\n-A FORWARD -m comment --comment \"kubernetes\" -j KUBE-FORWARD\n{OURS}\n-A FORWARD -j DOCKER-USER\n"
        );
        assert_eq!(read(&listing, "FORWARD"), (vec![Kind::Services, Kind::Ours, Kind::Other], true));
        assert_eq!(read("-P FORWARD ACCEPT\n", "FORWARD"), (Vec::new(), false));
    }

    #[test]
    fn what_is_inserted_is_numbered_as_the_chain_will_be() {
        let kinds = [Kind::Services, Kind::Other, Kind::Ours];
        let commands = commands(&diff::edits(&kinds, true, true), &kinds, "FORWARD");
        let texts: Vec<String> = commands.iter().map(|words| words[..3].join(" ")).collect();
        assert_eq!(texts, ["-D FORWARD -m", "-I FORWARD 2"]);
    }
}
