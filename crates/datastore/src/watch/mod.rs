//! Watches: the hub finds who watches a changed key; each stream carries the watches of one client.

mod codec;
mod frame;
mod hub;
mod interest;
mod replay;
mod stream;

pub use codec::WatchCodec;
pub use frame::{Frame, TERM};
pub use hub::Hub;
pub use stream::serve;
