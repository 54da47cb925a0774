//! The allocator on real stores: etcd with and without transactions, and the embedded one; each test on all.

// Helpers of tests are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod assign;
mod contention;
mod interop;
mod release;
mod support;
mod tunnel;
