//! The routing tables: the routes that peers advertised and that we originate, and the decision which are best.

pub mod attrs;
pub(crate) mod codec;
pub(crate) mod decide;
pub(crate) mod journal;
pub(crate) mod table;

#[cfg(test)]
mod tests;
