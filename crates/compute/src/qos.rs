//! Converts the `qosControls` of an endpoint, leaving out values that cannot be applied.

use tortie_model::kinds::{DirectionLimits, QoSControls};
use tortie_plan::{BandwidthLimit, DirectionQos, PacketRate, PeakRate, QosSettings};

/// Default bursts, in bits and in packets.
const DEFAULT_BURST_BITS: u64 = 4 << 30;
const DEFAULT_PACKET_BURST: u32 = 5;

pub(crate) fn convert_qos(controls: Option<&QoSControls>) -> QosSettings {
    let Some(controls) = controls else { return QosSettings::default() };
    QosSettings {
        ingress: convert_limits(&controls.ingress()),
        egress: convert_limits(&controls.egress()),
        dscp: controls.dscp.as_ref().and_then(|dscp| dscp.value()),
    }
}

fn convert_limits(written: &DirectionLimits) -> DirectionQos {
    DirectionQos {
        bandwidth: filter_positive(written.bandwidth).map(|bits_per_second| BandwidthLimit {
            bits_per_second,
            burst_bits: filter_positive(written.burst).unwrap_or(DEFAULT_BURST_BITS),
            // A peak rate that does not exceed the rate would prevent the rate from being reached.
            peak: filter_positive(written.peakrate).filter(|peak| *peak > bits_per_second).map(
                |bits_per_second| PeakRate {
                    bits_per_second,
                    burst_bytes: filter_positive(written.minburst).map(narrow),
                },
            ),
        }),
        packets: filter_positive(written.packet_rate).map(|rate| PacketRate {
            per_second: narrow(rate),
            burst: filter_positive(written.packet_burst).map_or(DEFAULT_PACKET_BURST, narrow),
        }),
        connections: filter_positive(written.max_connections).map(narrow),
    }
}

/// Returns `None` for zero and negative numbers, which mean no limit.
fn filter_positive(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number > 0)
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::scalar::Dscp;

    #[test]
    fn missing_limits_have_defaults_and_bad_are_ignored() {
        assert_eq!(convert_qos(None), QosSettings::default());
        let qos = convert_qos(Some(&QoSControls {
            ingress_bandwidth: 1_000_000,
            ingress_peakrate: 1_000_000,
            egress_bandwidth: 1_000_000,
            egress_burst: 80_000,
            egress_peakrate: 2_000_000,
            egress_minburst: 3000,
            egress_packet_rate: 10,
            ingress_max_connections: i64::MAX,
            egress_max_connections: -1,
            dscp: Some(Dscp::Name("AF21".into())),
            ..QoSControls::default()
        }));
        let bandwidth =
            BandwidthLimit { bits_per_second: 1_000_000, burst_bits: DEFAULT_BURST_BITS, peak: None };
        assert_eq!(
            qos.ingress,
            DirectionQos { bandwidth: Some(bandwidth), packets: None, connections: Some(u32::MAX) }
        );
        let peak = Some(PeakRate { bits_per_second: 2_000_000, burst_bytes: Some(3000) });
        let bandwidth = BandwidthLimit { burst_bits: 80_000, peak, ..bandwidth };
        let packets = Some(PacketRate { per_second: 10, burst: 5 });
        assert_eq!(qos.egress, DirectionQos { bandwidth: Some(bandwidth), packets, connections: None });
        assert_eq!(qos.dscp, Some(18));
    }
}
