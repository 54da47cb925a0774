//! The CNI side of the daemon: what a runtime asks, and how it is answered.
//!
//! `request` and `config` read what comes in, `result` writes what goes out, `identity` says what things are called;
//! `wishes` and `workload` are what
//! Kubernetes says of a pod, `join` is for a container's further networks, `service` does the work and `server` listens.

mod add;
mod adoption;
mod chained;
mod check;
mod config;
mod delegate;
mod gates;
mod identity;
mod ipam;
mod join;
mod request;
mod result;
mod server;
mod service;
mod undo;
mod wishes;
mod workload;

#[cfg(fuzzing)]
pub fn is_request(bytes: &[u8]) -> bool {
    request::Request::parse(bytes).is_ok()
}

pub use config::NetworkConfig;
pub use result::CniResult;
pub use server::serve;
pub use service::Service;
