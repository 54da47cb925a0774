//! Policy against a real kernel and real packets, each test in network namespaces of its own. Needs root, iproute2,
//! nftables and ping.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod birth;
mod counted;
mod differential;
mod flips;
mod flood;
mod generate;
// Shared with the other tests of the kernel, which use more of it.
#[allow(dead_code)]
#[path = "../kernel/namespace.rs"]
mod namespace;
mod packets;
mod plans;
mod refusal;
mod repair;
mod shrink;
mod size;
mod table;
mod world;
