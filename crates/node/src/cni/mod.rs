//! The CNI server of the daemon, which handles the requests that the plugins pass on.
//!
//! `request` and `config` parse requests, `result` renders results, and `identity` derives names. `pod_annotations` and
//! `workload` read the pod and its annotations from Kubernetes, `join` handles further networks of a container,
//! `service` dispatches the commands, and `server` listens on the socket.

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
mod pod_annotations;
mod request;
mod result;
mod server;
mod service;
mod undo;
mod workload;

#[doc(hidden)]
pub fn is_request(bytes: &[u8]) -> bool {
    request::CniRequest::parse(bytes).is_ok()
}

pub use config::NetworkConfig;
pub use result::CniResult;
pub use server::serve;
pub use service::CniService;
