//! Computes the token bucket for a bandwidth limit, and the name of the IFB device that shapes the packets which a
//! workload sends.

use super::super::ReconcileContext;
use crate::kernel::{KernelLink, TokenBucket};
use tortie_plan::{BandwidthLimit, PlannedWorkload};

/// Maximum time that packets are queued; packets that would be queued longer are dropped.
const MAX_QUEUE_LATENCY_MS: u64 = 25;
/// Length of the link-layer header, which the MTU does not include.
const LINK_HEADER_BYTES: u32 = 18;
/// Prefix of the device names, which no other program uses.
const IFB_NAME_PREFIX: &str = "bwcali";

/// Returns the name of the IFB device of a workload interface.
pub fn ifb_name(interface: &str) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    // FNV-1a, so that all versions compute the same name.
    let hash = interface.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    format!("{IFB_NAME_PREFIX}{:09x}", hash >> 28)
}

/// Returns whether a link is such a device, regardless of which program created it.
pub fn is_shaping_device(link: &KernelLink) -> bool {
    link.kind.as_deref() == Some("ifb") && link.name.starts_with(IFB_NAME_PREFIX)
}

/// Computes the token bucket for a bandwidth limit. The bucket is at least as large as one packet, because larger
/// packets never pass.
pub fn token_bucket(bandwidth: &BandwidthLimit, mtu: u32) -> TokenBucket {
    let largest = mtu.saturating_add(LINK_HEADER_BYTES);
    let rate = (bandwidth.bits_per_second / 8).max(1);
    let burst = saturate(bandwidth.burst_bits / 8).max(largest);
    let queued = rate.saturating_mul(MAX_QUEUE_LATENCY_MS) / 1000;
    let peak = bandwidth.peak.map(|peak| {
        let burst = peak.burst_bytes.unwrap_or(largest).max(largest);
        ((peak.bits_per_second / 8).max(1), burst)
    });
    TokenBucket { rate, burst, limit: saturate(queued.saturating_add(burst.into())), peak }
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
    fn buckets_hold_at_least_one_packet() {
        let slow = BandwidthLimit { bits_per_second: 1000, burst_bits: 1000, peak: None };
        assert_eq!(
            token_bucket(&slow, 1500),
            TokenBucket { rate: 125, burst: 1518, limit: 1521, peak: None }
        );
        let peak = Some(PeakRate { bits_per_second: 16_000_000, burst_bytes: Some(3000) });
        let plain = BandwidthLimit { bits_per_second: 8_000_000, burst_bits: 800_000, peak };
        let expected =
            TokenBucket { rate: 1_000_000, burst: 100_000, limit: 125_000, peak: Some((2_000_000, 3000)) };
        assert_eq!(token_bucket(&plain, 1500), expected);
        let unlimited = BandwidthLimit { bits_per_second: 1 << 50, burst_bits: 1 << 50, peak: None };
        assert_eq!(
            (token_bucket(&unlimited, 1500).burst, token_bucket(&unlimited, 1500).limit),
            (u32::MAX, u32::MAX)
        );
    }

    #[test]
    fn device_names_are_valid_and_stable() {
        assert_eq!(ifb_name("cali0123456789a").len(), 15);
        assert_eq!(ifb_name("cali0123456789a"), ifb_name("cali0123456789a"));
        assert_ne!(ifb_name("cali0123456789a"), ifb_name("cali0123456789b"));
    }
}
