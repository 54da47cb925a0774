//! Compares Tortie's BGP speaker with BIRD 2, FRR and GoBGP on the same input from the same generator.
//!
//! Every measurement uses two new network namespaces: one for the speaker process, and one for all peers, which run in
//! this program. Measurements that exceed a time limit are abandoned, so that a slow speaker does not delay the rest.

mod config;
mod daemon;
mod feed;
mod flap;
mod kernel;
mod mesh;
mod ours;
mod place;
mod receive;
mod reflect;
mod report;
mod session;

pub use flap::measure as flap;
pub use kernel::measure as kernel;
pub use mesh::measure as mesh;
pub use receive::measure as receive;
pub use reflect::measure as reflect;

use crate::namespace::BenchResult;
use crate::{SuiteResult, plain};

/// Runs a measurement, or the speaker itself if this process was started as one.
pub fn run(measure: fn() -> BenchResult<()>) -> SuiteResult {
    match ours::is_wanted() {
        true => ours::speak(),
        false => measure().map_err(plain),
    }
}
