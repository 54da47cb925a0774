//! Our speaker, BIRD 2, FRR and GoBGP fed the same by the same generator.
//!
//! Every measurement has two hosts of its own: one for the speaker, a process of its own, and one for all peers, which
//! are this program. What takes longer than a limit is given up, so that the slowest does not keep everybody waiting.

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

use crate::namespace::Result;
use crate::{Outcome, plain};

/// Takes a measurement, unless this process is to be a speaker.
pub fn run(measure: fn() -> Result<()>) -> Outcome {
    match ours::is_wanted() {
        true => ours::speak(),
        false => measure().map_err(plain),
    }
}
