//! What the traffic of a workload is limited to, and how it is marked.

/// Ingress is what the workload receives, egress what it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Qos {
    pub ingress: Limits,
    pub egress: Limits,
    /// What it sends out of the cluster carries this code point.
    pub dscp: Option<u8>,
}

/// `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub bandwidth: Option<Bandwidth>,
    pub packets: Option<PacketRate>,
    /// TCP connections at a time.
    pub connections: Option<u32>,
}

/// A bucket of tokens that fills with the rate and holds the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bandwidth {
    pub bits_per_second: u64,
    pub burst_bits: u64,
    pub peak: Option<PeakRate>,
}

/// How fast a burst may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeakRate {
    pub bits_per_second: u64,
    /// What may be sent at once; the largest packet of the interface if `None`.
    pub burst_bytes: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketRate {
    pub per_second: u32,
    pub burst: u32,
}
