//! Permanent neighbour entries of workloads.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use observed::Neighbours;
