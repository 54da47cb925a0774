//! One node with real BIRD routers for peers: what a person changes in the store, and what the routers then see.

// Helpers of tests are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod filters;
mod host_routes;
mod migration;
mod next_hops;
mod passwords;
mod router;
mod seeing;
mod several;
mod uptime;
mod workload;
mod world;
