//! Forwarding entries of VXLAN devices, which map a MAC to a node.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use observed::ObservedForwarding;
