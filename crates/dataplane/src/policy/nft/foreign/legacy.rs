//! Inserts the accept rule into the tables of iptables-legacy, if these are in use.

use super::super::render::MarkedHook;
use super::super::table::HookPoint;
use super::diff::{self, ChainEdit, ForeignRuleKind};
use super::program::LegacyProgram as Program;
use super::{ACCEPT_RULE_COMMENT, KUBE_PROXY_CHAIN_PREFIX, bits};
use crate::failure::{AffectedWorkloads, KernelFailure, KernelObject};
use crate::netns::Netns;
use std::time::Duration;

/// Polling interval: the kernel does not report changes of these tables.
const LEGACY_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The chains that packets with our mark may reach: table, chain, hook and priority.
const LEGACY_CHAINS: [(&str, &str, HookPoint, i32); 4] = [
    ("filter", "INPUT", HookPoint::Input, 0),
    ("filter", "FORWARD", HookPoint::Forward, 0),
    ("filter", "OUTPUT", HookPoint::Output, 0),
    ("mangle", "PREROUTING", HookPoint::Prerouting, -150),
];

pub(super) struct LegacyTables {
    netns: Netns,
    next: Duration,
    failures: Vec<KernelFailure>,
}

impl LegacyTables {
    pub fn new(netns: Netns) -> LegacyTables {
        LegacyTables { netns, next: Duration::ZERO, failures: Vec::new() }
    }

    pub fn invalidate(&mut self) {
        self.next = Duration::ZERO;
    }

    pub fn failures(&self) -> &[KernelFailure] {
        &self.failures
    }

    pub async fn converge(&mut self, allowed: &[MarkedHook], now: Duration) {
        if now < self.next {
            return;
        }
        self.next = now + LEGACY_POLL_INTERVAL;
        self.failures = Vec::new();
        for program in Program::BOTH {
            let tables = match program.tables(&self.netns).await {
                Ok(tables) => tables,
                Err(error) => {
                    self.failures.push(error.into());
                    continue;
                }
            };
            for (table, chain, point, priority) in LEGACY_CHAINS {
                if !tables.iter().any(|known| known == table) {
                    continue;
                }
                let wanted =
                    allowed.iter().any(|place| place.point == point && place.priorities.contains(&priority));
                let place = LegacyChain { program, table, chain };
                if let Err(reason) = place.settle(&self.netns, wanted, bits(allowed)).await {
                    let object = place.object();
                    self.failures.push(KernelFailure {
                        object,
                        concerns: AffectedWorkloads::nobody(),
                        reason: reason.into(),
                    });
                    // The program is missing or its lock is held: the other chains would fail as well.
                    break;
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct LegacyChain {
    program: Program,
    table: &'static str,
    chain: &'static str,
}

impl LegacyChain {
    fn object(self) -> KernelObject {
        let table = format!("{} of {}", self.table, self.program.name());
        KernelObject::ForeignChain { table, name: self.chain.to_owned() }
    }

    async fn settle(self, netns: &Netns, wanted: bool, bits: u32) -> Result<(), String> {
        let listing = self.run(netns, &["-S", self.chain]).await?;
        let (rules, drops) = read(&listing, self.chain, bits);
        let kinds: Vec<ForeignRuleKind> = rules.iter().map(|rule| rule.kind).collect();
        for words in commands(&diff::edits(&kinds, drops, wanted), &rules, self.chain, bits) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.run(netns, &words).await?;
            tracing::info!(chain = %self.object(), command = words.join(" "), "changed our rule in this chain");
        }
        Ok(())
    }

    async fn run(self, netns: &Netns, words: &[&str]) -> Result<String, String> {
        let words = ["-t", self.table].iter().chain(words).map(|word| (*word).to_owned()).collect();
        self.program.run(netns, words).await
    }
}

/// A rule of a chain, and the mark bits that it matches if it is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListedRule {
    kind: ForeignRuleKind,
    bits: u32,
}

/// Returns the arguments for our rule, after the chain name.
fn rule(bits: u32) -> Vec<String> {
    let bits = format!("{bits:#x}/{bits:#x}");
    ["-m", "mark", "--mark", &bits, "-m", "comment", "--comment", ACCEPT_RULE_COMMENT, "-j", "ACCEPT"]
        .map(str::to_owned)
        .to_vec()
}

/// Returns our rule in the form that the program prints.
fn printed(chain: &str, bits: u32) -> String {
    let quoted = rule(bits)
        .iter()
        .map(|word| if word == ACCEPT_RULE_COMMENT { format!("\"{word}\"") } else { word.clone() })
        .collect::<Vec<_>>();
    format!("-A {chain} {}", quoted.join(" "))
}

/// Classifies the rules of a chain, and returns whether its policy drops. Our rule with other bits was written before
/// the mask changed.
fn read(listing: &str, chain: &str, bits: u32) -> (Vec<ListedRule>, bool) {
    let services = format!(" -j {KUBE_PROXY_CHAIN_PREFIX}");
    let listed = |line: &str| {
        let (_, rest) = line.split_once(" --mark 0x").unwrap_or_default();
        let digits = rest.split('/').next().unwrap_or_default();
        let asked = u32::from_str_radix(digits, 16).unwrap_or_default();
        let kind = match line {
            line if line == printed(chain, asked) && asked == bits => ForeignRuleKind::Ours,
            line if line == printed(chain, asked) => ForeignRuleKind::Copy,
            line if line.contains(&services) => ForeignRuleKind::Services,
            _ => ForeignRuleKind::Other,
        };
        ListedRule { kind, bits: asked }
    };
    let added = format!("-A {chain} ");
    let rules = listing.lines().filter(|line| line.starts_with(&added)).map(listed).collect();
    (rules, listing.lines().any(|line| line == format!("-P {chain} DROP")))
}

/// Renders edits as commands. Rules are deleted by their content and never by number, as the chain may have changed
/// since it was read.
fn commands(edits: &[ChainEdit], rules: &[ListedRule], chain: &str, bits: u32) -> Vec<Vec<String>> {
    let own = |kind: ForeignRuleKind| matches!(kind, ForeignRuleKind::Ours | ForeignRuleKind::Copy);
    let command = |edit: &ChainEdit| match edit {
        ChainEdit::Delete(index) => {
            let there = rules.get(*index).map_or(bits, |listed| listed.bits);
            [vec!["-D".to_owned(), chain.to_owned()], rule(there)].concat()
        }
        ChainEdit::Insert { before: None } => [vec!["-A".to_owned(), chain.to_owned()], rule(bits)].concat(),
        ChainEdit::Insert { before: Some(before) } => {
            let foreign = rules.iter().take(*before).filter(|listed| !own(listed.kind)).count();
            [vec!["-I".to_owned(), chain.to_owned(), (foreign + 1).to_string()], rule(bits)].concat()
        }
    };
    edits.iter().map(command).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "-A FORWARD -m mark --mark 0x10000/0x10000 -m comment --comment \"tortie: allowed by policy\" -j ACCEPT";
    const BITS: u32 = 0x10000;

    fn kinds(listing: &str, bits: u32) -> (Vec<ForeignRuleKind>, bool) {
        let (rules, drops) = read(listing, "FORWARD", bits);
        (rules.iter().map(|rule| rule.kind).collect(), drops)
    }

    #[test]
    fn a_listing_is_read_as_the_program_prints_it() {
        let listing = format!(
            "-P FORWARD DROP\n-A FORWARD -m comment --comment \"kubernetes\" -j KUBE-FORWARD\n{OURS}\n-A FORWARD -m mark --mark 0x1 -j DOCKER-USER\n"
        );
        assert_eq!(
            kinds(&listing, BITS),
            (vec![ForeignRuleKind::Services, ForeignRuleKind::Ours, ForeignRuleKind::Other], true)
        );
        assert_eq!(
            kinds(&listing, 4),
            (vec![ForeignRuleKind::Services, ForeignRuleKind::Copy, ForeignRuleKind::Other], true)
        );
        assert_eq!(kinds("-P FORWARD ACCEPT\n", BITS), (Vec::new(), false));
    }

    #[test]
    fn what_is_inserted_is_numbered_as_the_chain_will_be() {
        let rules = [ForeignRuleKind::Services, ForeignRuleKind::Other, ForeignRuleKind::Ours]
            .map(|kind| ListedRule { kind, bits: BITS });
        let kinds = rules.map(|rule| rule.kind);
        let commands = commands(&diff::edits(&kinds, true, true), &rules, "FORWARD", BITS);
        let texts: Vec<String> = commands.iter().map(|words| words[..3].join(" ")).collect();
        assert_eq!(texts, ["-D FORWARD -m", "-I FORWARD 2"]);
    }

    #[test]
    fn a_rule_with_the_bits_of_before_goes_as_it_was_written() {
        let (rules, _) = read(&format!("-P FORWARD DROP\n{OURS}\n"), "FORWARD", 4);
        let kinds: Vec<ForeignRuleKind> = rules.iter().map(|rule| rule.kind).collect();
        let commands = commands(&diff::edits(&kinds, true, true), &rules, "FORWARD", 4);
        let texts: Vec<String> = commands.iter().map(|words| words[..6].join(" ")).collect();
        assert_eq!(texts, ["-D FORWARD -m mark --mark 0x10000/0x10000", "-A FORWARD -m mark --mark 0x4/0x4"]);
    }
}
