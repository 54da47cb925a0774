//! The routing tables: what peers advertised and what we originate, and which of it is best.

pub mod attrs;
pub(crate) mod codec;
pub(crate) mod decide;
pub(crate) mod journal;
pub(crate) mod table;

#[cfg(test)]
mod tests;
