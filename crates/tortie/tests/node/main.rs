//! Tests of a node in its own network namespace, with the real plugin and real container namespaces.

// Test helpers may panic like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adoption;
mod bird;
mod churn;
mod configurations;
mod crash;
mod diags;
mod etcd_cluster;
mod faults;
mod felix_chains;
mod flows;
mod hardening;
mod leave;
mod life;
mod metrics;
mod midway;
mod mtu;
mod nat;
mod networks;
mod policy;
mod policy_only;
mod policy_sync;
mod refusals;
mod restored;
mod settings;
mod soak;
mod subnet;
mod systemd;
mod takeover;
mod textbook;
mod up;
mod without_ipv6;
mod world;
