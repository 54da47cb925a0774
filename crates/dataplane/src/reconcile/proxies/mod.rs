//! Proxied addresses: the host answers ARP and ND requests for them on its links, so that hosts on the same subnet
//! reach workloads without a route.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use observed::ObservedProxies;
