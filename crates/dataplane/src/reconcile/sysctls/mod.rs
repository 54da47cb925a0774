//! The settings of workload interfaces. What they are now comes with the interface itself (`kernel::Conf`).

pub(super) mod apply;
mod desired;
mod diff;
