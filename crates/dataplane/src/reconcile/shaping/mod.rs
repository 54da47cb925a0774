//! Bandwidth limits of workloads. Packets to a workload pass a token bucket at the host end of its interface; packets
//! from it are redirected through an `ifb` device and pass a bucket there.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use desired::{device_of, is_device, is_shaped};
pub(super) use observed::ShapingState;
