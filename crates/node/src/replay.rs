//! `tortie replay FILE`: the core takes the events of a recording, without a kernel and without root.

use crate::engine::{Action, Core, event_from_json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::time::Duration;
use tortie_compute::{BgpEnvironment, Compute, Environment};
use tortie_sync::record::json::{FormatError, key_from_json};
use tortie_sync::record::{Header, ReadError, Reader};

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("{path}: {error}")]
    Open { path: String, error: io::Error },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the first line: {0}")]
    Header(FormatError),
    #[error("line {line}: {error}")]
    Event { line: u64, error: FormatError },
    #[error("{0}")]
    Write(#[from] io::Error),
}

/// Prints what the node had its dataplane do, with the time since its start, and the plan at the end.
pub fn replay(path: &Path, out: &mut dyn Write) -> Result<(), ReplayError> {
    let open = |error| ReplayError::Open { path: path.display().to_string(), error };
    replay_from(BufReader::new(File::open(path).map_err(open)?), out)
}

/// The same from anything that can be read.
pub fn replay_from(input: impl BufRead, out: &mut dyn Write) -> Result<(), ReplayError> {
    let (header, mut reader) = Reader::new(input)?;
    let mut core = core(&header).map_err(ReplayError::Header)?;
    while let Some(line) = reader.next_line()? {
        let event = event_from_json(&line.event);
        let event = event.map_err(|error| ReplayError::Event { line: line.number, error })?;
        for action in core.handle(line.at, event) {
            print(line.at, &action, out)?;
        }
    }
    writeln!(out, "plan at the end: {:#?}", core.plan())?;
    Ok(())
}

/// The core of a node before anything happened.
pub fn core(header: &Header) -> Result<Core, FormatError> {
    let environment = Environment::new(header.environment.clone(), header.settings.clone());
    let mut compute = Compute::new(&header.node, environment);
    if let Some(bgp) = &header.bgp {
        compute.speak_bgp(BgpEnvironment { router_id: bgp.router_id.clone(), by_bird: bgp.by_bird });
    }
    let held = header.held.iter().map(key_from_json).collect::<Result<_, _>>()?;
    Ok(Core::new(compute, held))
}

fn print(at: Duration, action: &Action, out: &mut dyn Write) -> io::Result<()> {
    let at = format!("{:>12.6}", at.as_secs_f64());
    match action {
        Action::Start { plan, .. } => writeln!(out, "{at} start with the plan: {plan:#?}"),
        Action::Apply { settings, updates } => {
            if let Some(settings) = settings {
                writeln!(out, "{at} settings: {settings:?}")?;
            }
            updates.iter().try_for_each(|update| writeln!(out, "{at} {update:?}"))
        }
        // What the kernel has goes to BGP as it is.
        Action::Advertise(_) => Ok(()),
        Action::Answer { waiter, outcome: Ok(()) } => {
            writeln!(out, "{at} answer to request {}: done", waiter.0)
        }
        Action::Answer { waiter, outcome: Err(refusal) } => {
            writeln!(out, "{at} answer to request {}: {refusal}", waiter.0)
        }
    }
}
