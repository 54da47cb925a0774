//! `tortie policy`: shows policy information from this host's kernel.

mod watch;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use std::io::Write;
use tortie_ctl::{CommandError, layout};
use tortie_dataplane::{CountedStage, CounterSubject, DataplaneError, Netns, RuleCounter, read_counters};

#[derive(Args, Debug)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Show how many packets each rule has matched
    ///
    /// The counters are read from the kernel of the current network namespace; the node's daemon need not be running.
    /// Rules are numbered from 1, as in `explain`. "end" counts packets that were denied at the end of a tier, or
    /// because no profile allows them. Staged policies are counted but not enforced. A counter is reset whenever its
    /// rule is rewritten.
    #[command(after_help = "Examples:
  tortie policy counters
  tortie policy counters -o json
  tortie lab exec node1 -- tortie policy counters")]
    Counters {
        /// Output format
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: CounterFormat,
    },
    Watch(watch::PolicyWatchArgs),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CounterFormat {
    Table,
    Json,
}

pub fn run(args: &PolicyArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let output = match &args.command {
        PolicyCommand::Watch(args) => return runtime.block_on(watch::watch(args, out)),
        PolicyCommand::Counters { output } => output,
    };
    let read = async { read_counters(&Netns::current()?).await };
    let counters = runtime.block_on(read).map_err(kernel_error)?;
    let text = match output {
        CounterFormat::Table => render_table(&counters),
        CounterFormat::Json => {
            serde_json::to_string_pretty(&counters.iter().map(describe_counter).collect::<Vec<_>>())? + "\n"
        }
    };
    out.write_all(text.as_bytes())?;
    Ok(())
}

/// Returns the error for a failed request to the kernel. The error for users without privileges names the remedy, because the
/// kernel lets only root read tables of nf_tables.
fn kernel_error(error: DataplaneError) -> CommandError {
    if rustix::process::geteuid().is_root() {
        return CommandError::message(error);
    }
    CommandError::message(format!("{error}; run as root"))
}

/// Returns owner and number of a rule. Denials at the end of a tier, or because no profile allows the packet, are
/// counted as separate rules.
fn describe_rule(counted: &CounterSubject) -> (String, String) {
    const END: &str = "end";
    match counted {
        CounterSubject::Rule(id) => (id.owner.to_string(), id.index.to_string()),
        CounterSubject::TierEnd { tier, .. } => (format!("tier/{tier}"), END.to_owned()),
        CounterSubject::NoProfile { .. } => ("profiles".to_owned(), END.to_owned()),
    }
}

fn name_stage(stage: CountedStage) -> &'static str {
    match stage {
        CountedStage::Normal => "normal",
        CountedStage::PreDnat => "pre-dnat",
        CountedStage::Untracked => "untracked",
    }
}

fn render_table(counters: &[RuleCounter]) -> String {
    let headings = ["POLICY", "DIRECTION", "STAGE", "RULE", "ACTION", "PACKETS", "BYTES"];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    for counter in counters {
        let (owner, number) = describe_rule(&counter.of);
        rows.push(vec![
            owner,
            counter.of.direction().to_string(),
            name_stage(counter.when).to_owned(),
            number,
            counter.verdict.to_string(),
            counter.packets.to_string(),
            counter.bytes.to_string(),
        ]);
    }
    layout(&rows)
}

fn describe_counter(counter: &RuleCounter) -> serde_json::Value {
    let (owner, number) = describe_rule(&counter.of);
    let number = match &counter.of {
        CounterSubject::Rule(id) => json!(id.index.number()),
        _ => json!(number),
    };
    json!({
        "policy": owner,
        "direction": counter.of.direction().to_string(),
        "stage": name_stage(counter.when),
        "rule": number,
        "action": counter.verdict.to_string(),
        "packets": counter.packets,
        "bytes": counter.bytes,
    })
}
