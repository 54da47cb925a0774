//! BIRD 2 in the speaker's place: a configuration made of the same plan, and what BIRD says on its control socket.
//!
//! One BIRD serves both families. A session carries the family of its addresses, as with our own speaker.

mod control;
mod filters;
mod policy;
mod render;
mod reply;

pub use control::{Control, ControlError};
pub use render::{Rendered, render};
