//! Tests of one node with real BIRD routers as peers: changes in the datastore and their effect on the routers.

// Test helpers may panic like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod filters;
mod host_routes;
mod migration;
mod next_hops;
mod passwords;
mod router;
mod secrets;
mod seeing;
mod several;
mod uptime;
mod workload;
mod world;
