//! Bandwidth of workloads: what they receive passes through a bucket of tokens at the host's end of their interface; what they
//! send is led through a device of its own, an `ifb`, and passes through one there.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use desired::{device_of, is_device, is_shaped};
pub(super) use observed::Shaping;
