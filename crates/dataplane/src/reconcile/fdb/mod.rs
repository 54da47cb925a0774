//! Forwarding entries of VXLAN devices: behind which node a MAC is.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use observed::Forwarding;
