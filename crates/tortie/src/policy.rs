//! `tortie policy`: what the kernel of this host says about policy.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use std::io::Write;
use tortie_ctl::{Failure, layout};
use tortie_dataplane::{Netns, RuleCounter, When, counters};
use tortie_plan::{Direction, RuleIndex};

/// Look at the policy that this host's kernel enforces
#[derive(Args, Debug)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show how many packets each rule has matched
    ///
    /// Reads the kernel of the network namespace it is run in; no daemon is asked. Staged policies are counted and
    /// enforce nothing. A rule counts from when it was last written. Rules are numbered from 1, as in `tortie explain`.
    Counters {
        /// How to print it
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Format,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Table,
    Json,
}

pub fn run(args: &PolicyArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let Command::Counters { output } = &args.command;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let read = async { counters(&Netns::current()?).await };
    let counters = runtime.block_on(read).map_err(|error| Failure::Message(error.to_string()))?;
    let text = match output {
        Format::Table => table(&counters),
        Format::Json => {
            serde_json::to_string_pretty(&counters.iter().map(object).collect::<Vec<_>>())
                .map_err(|error| Failure::Message(error.to_string()))?
                + "\n"
        }
    };
    out.write_all(text.as_bytes())?;
    Ok(())
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

fn when(when: When) -> &'static str {
    match when {
        When::Normal => "normal",
        When::PreDnat => "pre-dnat",
        When::Untracked => "untracked",
    }
}

fn table(counters: &[RuleCounter]) -> String {
    let headings = ["POLICY", "DIRECTION", "STAGE", "RULE", "PACKETS", "BYTES"].map(str::to_owned).to_vec();
    let row = |counter: &RuleCounter| {
        vec![
            counter.holder.clone(),
            direction(counter.direction).to_owned(),
            when(counter.when).to_owned(),
            RuleIndex::at(counter.rule).to_string(),
            counter.packets.to_string(),
            counter.bytes.to_string(),
        ]
    };
    layout(&[headings].into_iter().chain(counters.iter().map(row)).collect::<Vec<_>>())
}

fn object(counter: &RuleCounter) -> serde_json::Value {
    json!({
        "policy": counter.holder,
        "direction": direction(counter.direction),
        "stage": when(counter.when),
        "rule": RuleIndex::at(counter.rule).number(),
        "packets": counter.packets,
        "bytes": counter.bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_is_number_1() {
        let counter = RuleCounter {
            holder: "gnp/a".into(),
            direction: Direction::Ingress,
            when: When::Normal,
            rule: 0,
            packets: 7,
            bytes: 70,
        };
        assert_eq!(object(&counter)["rule"], 1);
        let table = table(&[counter]);
        let row: Vec<&str> = table.lines().last().unwrap_or_default().split_whitespace().collect();
        assert_eq!(row, ["gnp/a", "ingress", "normal", "1", "7", "70"]);
    }
}
