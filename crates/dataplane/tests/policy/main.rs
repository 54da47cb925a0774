//! Tests of policy against a real kernel with real packets; each test uses its own network namespaces. Needs root,
//! iproute2, nftables, iptables and ping.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ambient;
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
mod flows;
mod foreign;
mod generate;
mod handover;
#[path = "../../../compute/tests/policy/history.rs"]
mod history;
mod logged;
mod loopback;
mod marks;
mod metadata;
// Shared with the kernel tests, which use more of it.
#[allow(dead_code)]
#[path = "../kernel/namespace.rs"]
mod namespace;
mod nat;
mod neighbours;
mod orders;
mod packets;
mod plans;
mod prefix;
mod proxies;
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
