//! Controllers that follow the lifecycle of nodes and pods.

pub mod garbage;
pub mod host_endpoints;
pub mod pods;
