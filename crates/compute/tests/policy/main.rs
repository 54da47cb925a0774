//! Policy: datastores in, plans out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;
mod conversions;
mod effects;
mod faults;
mod history;
mod oracle;
mod orders;
mod stored;
