//! Measures policy on a node: the time from a change to the kernel, the start, and the cost per packet.

mod cluster;
mod monitor;
mod packets;
mod peers;
mod start;
pub mod traffic;
mod updates;

use crate::namespace::{BenchResult, enter};
use crate::{SuiteResult, plain};
use std::path::Path;

pub fn updates() -> SuiteResult {
    updates::measure().map_err(plain)
}

pub fn start() -> SuiteResult {
    start::measure().map_err(plain)
}

pub fn packets() -> SuiteResult {
    packets::measure().map_err(plain)
}

/// Runs a closure in a namespace, on a separate thread.
pub fn inside<T: Send>(netns: &Path, work: impl FnOnce() -> BenchResult<T> + Send) -> BenchResult<T> {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            enter(netns)?;
            work()
        });
        running.join().unwrap_or_else(|_| Err("a thread died".into()))
    })
}
