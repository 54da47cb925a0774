#![doc = include_str!("../README.md")]

mod credentials;
mod error;
mod flexvolume;
mod listener;
mod mounts;
pub mod proto;
mod publisher;
mod server;
mod service;
mod volume;

pub use error::{CsiError, VolumeError};
pub use flexvolume::{FLEXVOLUME_CONFIG_FILE, run_flexvolume};
pub use publisher::{DEFAULT_PREFIX, MAX_VOLUMES, VolumePublisher};
pub use server::{CsiOptions, DEFAULT_KUBELET_DIR, run};
pub use volume::{DRIVER_NAME, PodIdentity, PodVolume, VolumePlugin, VolumeTarget};
