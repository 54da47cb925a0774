//! Plumbing shared by tests: nothing here is part of the product.
//!
//! Everything cleans up when it is dropped, also when a test fails half way.

pub mod conformance;
mod etcd;
mod port;

pub use etcd::{Etcd, EtcdOptions, EtcdTls};
pub use port::free_port;
