//! Addresses that the host answers for on its links, so that who is on the same subnet reaches workloads without a route.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use observed::Proxies;
