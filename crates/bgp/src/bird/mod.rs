//! Support for BIRD 2 instead of our own speaker: renders its configuration from the same plan and reads its state
//! from the control socket.
//!
//! One BIRD serves both families. A session carries the family of its addresses, as with our own speaker.

mod control;
mod filters;
mod policy;
mod render;
mod reply;

/// Parses text as every kind of BIRD reply and returns how many kinds succeeded.
#[doc(hidden)]
pub fn read_reply(text: &str) -> usize {
    let mut lines = Vec::new();
    for line in text.lines() {
        let before = lines.last().map_or(0, |last: &reply::ReplyLine| last.code);
        let Ok((line, _)) = reply::ReplyLine::parse(line, before) else { break };
        lines.push(line);
    }
    let daemon = reply::daemon(&lines);
    let status = daemon.as_ref().is_ok_and(|daemon| reply::status(64512, daemon, &lines).is_ok());
    usize::from(daemon.is_ok()) + usize::from(status) + usize::from(reply::routes(&lines).is_ok())
}

pub use control::{BirdControl, ControlError};
pub use render::{BirdConfig, render};
