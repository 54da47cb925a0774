//! Low-level netlink for requests that `nlink` does not support: attributes, frames, and requests with their responses.

pub(crate) mod attributes;
mod exchange;
mod frames;

pub(crate) use attributes::NetlinkAttributes;
pub(crate) use exchange::{NLM_F_ACK, NLM_F_DUMP, NetlinkRequest, answers, exchange};
pub(crate) use frames::{NetlinkFrame, frames};
