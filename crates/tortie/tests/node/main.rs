//! A node in a network namespace of its own, the real plugin, real containers' namespaces.

// Helpers of tests are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adoption;
mod bird;
mod churn;
mod configurations;
mod crash;
mod diags;
mod faults;
mod felix_chains;
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
