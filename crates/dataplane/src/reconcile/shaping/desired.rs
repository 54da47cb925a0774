//! Computes the token bucket for a bandwidth, and the device for packets that a workload sends.

use super::super::ReconcileContext;
use crate::kernel::{KernelLink, TokenBucket};
use tortie_plan::{BandwidthLimit, PlannedWorkload};

/// Packets that would be queued longer are dropped.
const MAX_QUEUE_LATENCY_MS: u64 = 25;
/// Length of the link-layer header, which the MTU does not include.
const LINK_HEADER_BYTES: u32 = 18;
/// Prefix of the device names, which no other program uses.
const IFB_NAME_PREFIX: &str = "bwcali";

/// Returns the name of the device for packets that the workload of an interface sends.
pub fn device_of(interface: &str) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    // FNV-1a, which is the same in all versions.
    let hash = interface.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    format!("{IFB_NAME_PREFIX}{:09x}", hash >> 28)
}

/// Whether a link is a device of that kind, whichever program created it.
pub fn is_device(link: &KernelLink) -> bool {
    link.kind.as_deref() == Some("ifb") && link.name.starts_with(IFB_NAME_PREFIX)
}

/// Computes the bucket for a bandwidth. It holds at least one packet: a larger packet would never pass.
pub fn bucket(bandwidth: &BandwidthLimit, mtu: u32) -> TokenBucket {
    let largest = mtu.saturating_add(LINK_HEADER_BYTES);
    let rate = (bandwidth.bits_per_second / 8).max(1);
    let burst = saturate(bandwidth.burst_bits / 8).max(largest);
    let waiting = rate.saturating_mul(MAX_QUEUE_LATENCY_MS) / 1000;
    let peak = bandwidth.peak.map(|peak| {
        let at_once = peak.burst_bytes.unwrap_or(largest).max(largest);
        ((peak.bits_per_second / 8).max(1), at_once)
    });
    TokenBucket { rate, burst, limit: saturate(waiting.saturating_add(burst.into())), peak }
}

fn saturate(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the workloads with a bandwidth limit whose interface exists.
pub fn shaped_workloads(context: &ReconcileContext) -> impl Iterator<Item = (&KernelLink, &PlannedWorkload)> {
    let shaped = context.plan.workloads().values().filter(|workload| is_shaped(workload));
    shaped.filter_map(|workload| {
        let link = context.links.named(&workload.interface)?;
        let (_, active) = context.plan.active(&workload.interface)?;
        (active == workload).then_some((link, workload))
    })
}

pub fn is_shaped(workload: &PlannedWorkload) -> bool {
    workload.qos.ingress.bandwidth.is_some() || workload.qos.egress.bandwidth.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_plan::PeakRate;

    #[test]
    fn a_bucket_holds_at_least_a_packet() {
        let slow = BandwidthLimit { bits_per_second: 1000, burst_bits: 1000, peak: None };
        assert_eq!(bucket(&slow, 1500), TokenBucket { rate: 125, burst: 1518, limit: 1521, peak: None });
        let peak = Some(PeakRate { bits_per_second: 16_000_000, burst_bytes: Some(3000) });
        let plain = BandwidthLimit { bits_per_second: 8_000_000, burst_bits: 800_000, peak };
        let expected =
            TokenBucket { rate: 1_000_000, burst: 100_000, limit: 125_000, peak: Some((2_000_000, 3000)) };
        assert_eq!(bucket(&plain, 1500), expected);
        let endless = BandwidthLimit { bits_per_second: 1 << 50, burst_bits: 1 << 50, peak: None };
        assert_eq!((bucket(&endless, 1500).burst, bucket(&endless, 1500).limit), (u32::MAX, u32::MAX));
    }

    #[test]
    fn device_names_are_valid_and_stable() {
        assert_eq!(device_of("cali0123456789a").len(), 15);
        assert_eq!(device_of("cali0123456789a"), device_of("cali0123456789a"));
        assert_ne!(device_of("cali0123456789a"), device_of("cali0123456789b"));
    }
}
