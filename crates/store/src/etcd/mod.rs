//! The etcd v3 protocol as a client: connections, failover, credentials, and the calls we make.
//!
//! Nothing above this module knows gRPC; nothing in it knows what the keys mean.

mod auth;
mod channel;
mod cluster;
mod failure;
mod kv;
mod limits;
mod member;
mod tls;
mod watch;

pub(crate) use cluster::{Cluster, Retry};
pub(crate) use kv::Committed;
pub use limits::Limits;
pub(crate) use watch::open_watch;
