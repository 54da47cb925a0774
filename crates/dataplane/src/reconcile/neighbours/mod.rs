//! Permanent neighbour entries, of workloads and of the other ends of tunnels.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use observed::Neighbours;
