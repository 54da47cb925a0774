//! Low-level netlink for requests that `nlink` does not support: attributes, frames, and requests with their responses.

pub(crate) mod attributes;
mod exchange;
mod frames;

pub(crate) use attributes::Attributes;
pub(crate) use exchange::{ACKNOWLEDGE, DUMP, Request, answers, exchange};
pub(crate) use frames::{Frame, frames};
