//! Tests of the dataplane against a real kernel; each test uses its own network namespaces. Needs root, iproute2 and
//! ping.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod learnt;
mod migration;
mod namespace;
mod pods;
mod proxies;
mod read_only;
mod refused;
mod repair;
mod restart;
mod routes;
mod tunnels;
