//! Integration tests of hubs and nodes over real sockets, with real stores.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod failover;
mod slow;
mod strangers;
mod tls;
mod version_1;
mod world;
