//! Permanent neighbour entries of workloads and VTEPs.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use observed::ObservedNeighbours;
