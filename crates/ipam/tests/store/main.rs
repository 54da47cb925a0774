//! The allocator on real stores: etcd with and without transactions, and the embedded store. Most tests run on all of
//! them.

// Clippy exempts test functions only, not helpers in integration tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod assign;
mod contention;
mod interop;
mod release;
mod support;
mod tunnel;
