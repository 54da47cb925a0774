//! The allocator on real stores: etcd with and without transactions, and the embedded store. Most tests run on
//! all of them.

// The test lints do not recognise helpers outside of test functions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod assign;
mod contention;
mod interop;
mod release;
mod support;
mod tunnel;
