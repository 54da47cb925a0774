//! What follows the life of nodes and pods.

pub mod garbage;
pub mod host_endpoints;
pub mod pods;
