//! Netlink by hand, for what `nlink` knows nothing of: attributes, messages, and questions with their answers.

pub(crate) mod attributes;
mod exchange;
mod frames;

pub(crate) use attributes::Attributes;
pub(crate) use exchange::{ACKNOWLEDGE, DUMP, Request, answers, exchange};
pub(crate) use frames::{Frame, frames};
