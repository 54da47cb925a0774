//! Removes and reads Felix's chains in the tables of iptables-legacy, with `iptables-legacy-save` and `-restore`.

use super::guards::{FORWARD, FilterProgram, INPUT};
use super::{FELIX_CHAIN_PREFIX, FELIX_COMMENT_PREFIX, FelixRemoval, is_felix};
use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::netns::Netns;
use crate::policy::nft::foreign::program::{LegacyProgram, ProgramError};

const FILTER: &str = "filter";

pub(super) async fn remove(netns: &Netns) -> FelixRemoval {
    let mut outcome = FelixRemoval::default();
    for program in LegacyProgram::BOTH {
        let tables = match program.tables(netns).await {
            Ok(tables) => tables,
            Err(error) => {
                outcome.failures.push(error.to_string());
                continue;
            }
        };
        for table in tables {
            match remove_from_table(netns, program, &table).await {
                Ok(count) => outcome.removed += count,
                Err(error) => outcome.failures.push(error.to_string()),
            }
        }
    }
    outcome
}

/// Removes Felix's chains and rules from a table, and returns their number.
async fn remove_from_table(
    netns: &Netns,
    program: LegacyProgram,
    table: &str,
) -> Result<usize, ProgramError> {
    let Some((count, lines)) = render_removal(table, &program.save(netns, table).await?) else {
        return Ok(0);
    };
    program.restore(netns, lines).await?;
    Ok(count)
}

/// Returns the filter tables that contain chains of Felix.
pub(super) async fn read_filter_programs(netns: &Netns) -> DataplaneResult<Vec<FilterProgram>> {
    let mut programs = Vec::new();
    for program in LegacyProgram::BOTH {
        if !program.tables(netns).await?.iter().any(|table| table == FILTER) {
            continue;
        }
        let saved = program.save(netns, FILTER).await;
        let object = KernelObject::KernelState("tables of iptables-legacy");
        let saved = saved.map_err(|error| DataplaneError::Kernel { object, reason: error.to_string() })?;
        programs.extend(parse_filter(&saved, program == LegacyProgram::V6));
    }
    Ok(programs)
}

/// Parses a saved filter table; `None` if it has no chains of Felix.
fn parse_filter(saved: &str, ipv6: bool) -> Option<FilterProgram> {
    let mut chains = saved.lines().filter_map(|line| line.strip_prefix(':'));
    chains.find(|chain| chain.starts_with(FELIX_CHAIN_PREFIX))?;
    let entries = vec![(INPUT, "INPUT".to_owned()), (FORWARD, "FORWARD".to_owned())];
    let mut filter = FilterProgram { ipv6, entries, ..FilterProgram::default() };
    for rule in saved.lines().filter_map(|line| line.strip_prefix("-A ")) {
        let chain = rule.split(' ').next().unwrap_or_default();
        filter.targets.entry(chain.to_owned()).or_default().extend(find_target(rule).map(str::to_owned));
    }
    Some(filter)
}

/// Renders the `iptables-restore` input that removes Felix's chains and rules from a saved table, and counts them.
fn render_removal(table: &str, saved: &str) -> Option<(usize, String)> {
    let chains: Vec<&str> = saved
        .lines()
        .filter_map(|line| line.strip_prefix(':')?.split(' ').next())
        .filter(|name| name.starts_with(FELIX_CHAIN_PREFIX))
        .collect();
    let rules: Vec<&str> = saved
        .lines()
        .filter_map(|line| line.strip_prefix("-A "))
        .filter(|rule| {
            !rule.starts_with(FELIX_CHAIN_PREFIX) && is_felix(find_felix_comment(rule), find_target(rule))
        })
        .collect();
    if chains.is_empty() && rules.is_empty() {
        return None;
    }
    let mut lines = vec![format!("*{table}")];
    // Declaring an existing chain again flushes it.
    lines.extend(chains.iter().map(|name| format!(":{name} - [0:0]")));
    lines.extend(rules.iter().map(|rule| format!("-D {rule}")));
    lines.extend(chains.iter().map(|name| format!("-X {name}")));
    lines.push("COMMIT\n".to_owned());
    Some((chains.len() + rules.len(), lines.join("\n")))
}

/// Returns the comment of a rule if Felix wrote it.
fn find_felix_comment(rule: &str) -> Option<&str> {
    let (_, text) = rule.split_once("--comment ")?;
    let text = text.trim_start_matches('"');
    text.starts_with(FELIX_COMMENT_PREFIX).then_some(text)
}

/// Returns the chain or target to which a rule jumps.
fn find_target(rule: &str) -> Option<&str> {
    let (_, target) = rule.rsplit_once(" -j ").or_else(|| rule.rsplit_once(" -g "))?;
    target.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chains_and_rules_of_felix_are_removed() {
        let saved = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:DOCKER - [0:0]\n:cali-FORWARD - [0:0]\n\
            :cali-fw-cali1 - [0:0]\n\
            -A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD\n\
            -A FORWARD -j DOCKER\n\
            -A FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x10000/0x10000 -j ACCEPT\n\
            -A FORWARD -m comment --comment \"not cali: mine\" -j ACCEPT\n\
            -A cali-FORWARD -i cali+ -m comment --comment \"cali:x\" -j cali-fw-cali1\nCOMMIT\n";
        let (count, lines) = render_removal("filter", saved).unwrap();
        assert_eq!(count, 4);
        assert_eq!(
            lines,
            "*filter\n:cali-FORWARD - [0:0]\n:cali-fw-cali1 - [0:0]\n\
             -D FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD\n\
             -D FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x10000/0x10000 -j ACCEPT\n\
             -X cali-FORWARD\n-X cali-fw-cali1\nCOMMIT\n"
        );
        assert_eq!(render_removal("nat", "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"), None);
    }
}
