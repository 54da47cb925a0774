//! Policy: plans that are computed from datastores.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ambient;
mod cluster;
mod conversions;
mod effects;
mod faults;
mod history;
mod identities;
mod oracle;
mod orders;
mod proxies;
mod stored;
