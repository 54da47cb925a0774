//! What WireGuard devices are told beside what other devices are: keys, peers, and what each peer may send.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use observed::WireguardDevice;
#[cfg(test)]
mod tests;
