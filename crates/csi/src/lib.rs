#![doc = include_str!("../README.md")]

mod credentials;
mod error;
mod flexvolume;
mod flexvolume_program;
mod listener;
mod mounts;
pub mod proto;
mod publisher;
mod server;
mod service;
mod volume;

pub use error::CsiError;
pub use flexvolume::{FLEXVOLUME_CONFIG_FILE, run_flexvolume};
pub use publisher::DEFAULT_PREFIX;
pub use server::{CsiOptions, DEFAULT_KUBELET_DIR, run};
