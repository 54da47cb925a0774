//! Watches: the hub finds the watchers of a changed key; each stream carries the watches of one client.

mod body;
mod filter;
mod frame;
mod hub;
mod queue;
mod replay;
mod stream;

pub use body::WatchBody;
pub use frame::RAFT_TERM;
pub use hub::WatchHub;
pub use stream::{WatchAccess, serve};
