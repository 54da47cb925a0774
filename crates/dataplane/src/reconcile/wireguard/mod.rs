//! The configuration that only WireGuard devices have: keys, peers and their allowed IPs.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use observed::WireguardDevice;
#[cfg(test)]
mod tests;
