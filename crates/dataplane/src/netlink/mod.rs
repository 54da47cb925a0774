//! Low-level netlink for requests that `nlink` does not support: attributes, frames, and requests with their responses.

pub mod attributes;
mod exchange;
mod frames;

pub use attributes::NetlinkAttributes;
pub use exchange::{NLM_F_ACK, NLM_F_DUMP, NetlinkRequest, answers, exchange};
pub use frames::{NetlinkFrame, frames};
