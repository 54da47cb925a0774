//! `tortie replay FILE`: feeds the events of a recording to the core, without a kernel and without root.

use crate::engine::{EngineAction, EngineCore, PlanChange, event_from_json, held_from_json};
use crate::recording::{DIGEST_KEY, digest};
use crate::{bgp, flow_records, policy_sync};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::time::Duration;
use tortie_compute::{BgpEnvironment, ParameterEnvironment, PlanCompute};
use tortie_sync::record::json::RecordFormatError;
use tortie_sync::record::{RecordingError, RecordingHeader, RecordingReader};

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("{path}: {source}")]
    Open { path: String, source: io::Error },
    #[error(transparent)]
    Read(#[from] RecordingError),
    #[error("the first line: {0}")]
    Header(RecordFormatError),
    #[error("line {line}: {source}")]
    Event { line: u64, source: RecordFormatError },
    #[error("line {line}: the node that was recorded did something else; is this another version?")]
    Differs { line: u64 },
    #[error("{0}")]
    Write(#[from] io::Error),
}

/// Prints the actions of the recorded node with the time since its start, and the final plan. Compares the
/// actions with the recorded digests; a difference is returned as an error after everything has been printed.
pub fn replay(path: &Path, out: &mut dyn Write) -> Result<(), ReplayError> {
    let file =
        File::open(path).map_err(|source| ReplayError::Open { path: path.display().to_string(), source })?;
    replay_from(BufReader::new(file), out)
}

/// Like [`replay`], from any reader.
pub fn replay_from(input: impl BufRead, out: &mut dyn Write) -> Result<(), ReplayError> {
    let (header, mut reader) = RecordingReader::new(input)?;
    let mut core = build_core(&header).map_err(ReplayError::Header)?;
    let mut last = None;
    let mut same = 0_u64;
    let mut differs = None;
    while let Some(line) = reader.next_line()? {
        if let Some(recorded) = line.event.get(DIGEST_KEY) {
            if last.as_deref() == recorded.as_str() {
                same += 1;
            } else {
                differs = differs.or(Some(line.number));
            }
            continue;
        }
        let event = event_from_json(&line.event);
        let event = event.map_err(|source| ReplayError::Event { line: line.number, source })?;
        let actions = core.handle(line.at, event);
        last = digest(&actions);
        actions.iter().try_for_each(|action| print_action(line.at, action, out))?;
    }
    writeln!(out, "the same as recorded: {same} times")?;
    writeln!(out, "plan at the end: {:#?}", core.plan())?;
    match differs {
        Some(line) => Err(ReplayError::Differs { line }),
        None => Ok(()),
    }
}

/// Returns the core of the recorded node in its initial state.
pub fn build_core(header: &RecordingHeader) -> Result<EngineCore, RecordFormatError> {
    let environment = ParameterEnvironment::new(header.environment.clone(), header.settings.clone());
    let mut compute = PlanCompute::new(&header.node, environment);
    match &header.bgp {
        Some(bgp) => {
            compute.speak_bgp(BgpEnvironment { router_id: bgp.router_id.clone(), by_bird: bgp.by_bird });
        }
        None => compute.leave_cluster_routes(),
    }
    let held = header.held.iter().map(held_from_json).collect::<Result<_, _>>()?;
    let mut core = EngineCore::new(compute, held);
    if header.bgp.is_some() {
        core.register(bgp::PLAN_CONSUMER);
    }
    core.register(policy_sync::PLAN_CONSUMER);
    core.register(flow_records::PLAN_CONSUMER);
    Ok(core)
}

fn print_action(at: Duration, action: &EngineAction, out: &mut dyn Write) -> io::Result<()> {
    let at = format!("{:>12.6}", at.as_secs_f64());
    match action {
        EngineAction::Start { plan, .. } => writeln!(out, "{at} start with the plan: {plan:#?}"),
        EngineAction::Apply { settings, updates } => {
            if let Some(settings) = settings {
                writeln!(out, "{at} settings: {settings:?}")?;
            }
            updates.iter().try_for_each(|update| writeln!(out, "{at} {update:?}"))
        }
        EngineAction::Publish { consumer, change: PlanChange::Resync(plan) } => {
            writeln!(out, "{at} to {consumer}: its part of the plan: {plan:#?}")
        }
        EngineAction::Publish { consumer, change: PlanChange::Updates(updates) } => {
            updates.iter().try_for_each(|update| writeln!(out, "{at} to {consumer}: {update:?}"))
        }
        EngineAction::Answer { waiter, outcome: Ok(()) } => {
            writeln!(out, "{at} answer to request {}: done", waiter.0)
        }
        EngineAction::Answer { waiter, outcome: Err(refusal) } => {
            writeln!(out, "{at} answer to request {}: {refusal}", waiter.0)
        }
    }
}
