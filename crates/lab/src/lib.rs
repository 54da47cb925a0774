#![doc = include_str!("../README.md")]

mod bgp;
mod bird;
mod cli;
mod cluster;
mod cni;
mod demo;
mod down;
mod encap;
mod enter;
mod error;
mod fabric;
mod files;
mod hub;
mod kube;
mod logs;
mod names;
mod netns;
mod node;
mod place;
mod pod;
mod process;
mod routes;
mod sessions;
mod sidecar;
mod status;
mod store;
mod top;
mod topology;
mod up;

pub use cli::{LabArgs, run};
pub use error::{LabError, LabResult};
pub use place::LabPaths;
