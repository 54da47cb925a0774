//! Traffic limits of a workload, and the DSCP of its packets.

/// QoS of a workload. Ingress is traffic that the workload receives, egress is traffic that it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QosSettings {
    pub ingress: DirectionQos,
    pub egress: DirectionQos,
    /// DSCP of packets that it sends out of the cluster.
    pub dscp: Option<u8>,
}

/// Limits of one direction; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DirectionQos {
    pub bandwidth: Option<BandwidthLimit>,
    pub packets: Option<PacketRate>,
    /// Concurrent TCP connections.
    pub connections: Option<u32>,
}

/// A token bucket that fills at the rate and holds the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BandwidthLimit {
    pub bits_per_second: u64,
    pub burst_bits: u64,
    pub peak: Option<PeakRate>,
}

/// Maximum rate of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeakRate {
    pub bits_per_second: u64,
    /// Bytes that may be sent at once; the largest packet of the interface if `None`.
    pub burst_bytes: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketRate {
    pub per_second: u32,
    pub burst: u32,
}
