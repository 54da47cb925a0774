//! The allocator on real stores: etcd and the embedded one, each test on both.

mod assign;
mod contention;
mod interop;
mod release;
mod support;
mod tunnel;
