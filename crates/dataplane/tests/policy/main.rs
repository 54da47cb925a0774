//! Policy against a real kernel and real packets, each test in network namespaces of its own. Needs root, iproute2,
//! nftables, iptables and ping.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod birth;
// Shared with the tests of `compute`, which use more of it.
#[allow(dead_code)]
#[path = "../../../compute/tests/policy/cluster.rs"]
mod cluster;
mod counted;
mod cut;
mod differential;
mod encapsulated;
mod faults;
mod flips;
mod flood;
mod foreign;
mod generate;
mod handover;
#[path = "../../../compute/tests/policy/history.rs"]
mod history;
mod logged;
mod loopback;
mod marks;
mod metadata;
// Shared with the other tests of the kernel, which use more of it.
#[allow(dead_code)]
#[path = "../kernel/namespace.rs"]
mod namespace;
mod nat;
mod neighbours;
mod orders;
mod packets;
mod plans;
mod prefix;
mod qos;
mod raw;
mod refusal;
mod refused_table;
mod repair;
mod segments;
mod shrink;
mod size;
mod sources;
mod table;
mod together;
mod world;
