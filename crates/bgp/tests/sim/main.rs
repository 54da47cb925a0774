//! Tests the core of the speaker with a simulated clock and network.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agreement;
mod collisions;
mod floods;
mod malformed;
mod net;
mod refresh;
mod restart;
mod routes;
mod sessions;
