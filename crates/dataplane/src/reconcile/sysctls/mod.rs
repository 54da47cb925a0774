//! The sysctls of workload interfaces. Their current values are part of the link (`kernel::Conf`).

pub(super) mod apply;
mod desired;
mod diff;
