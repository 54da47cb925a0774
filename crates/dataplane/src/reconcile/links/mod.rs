//! Interfaces: which there are, and which lead to workloads. Nothing is made here yet but by `pod`.

mod desired;
mod diff;
mod observed;

pub(super) use observed::Links;
