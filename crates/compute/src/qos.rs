//! What an endpoint's `qosControls` ask for, within what can be had.

use tortie_model::kinds::QoSControls;
use tortie_plan::{Bandwidth, Limits, PacketRate, PeakRate, Qos};

/// Bursts of nobody's choice, in bits and in packets.
const BURST_BITS: u64 = 4 << 30;
const PACKET_BURST: u32 = 5;

/// The numbers of one direction as they are written.
struct Direction {
    bandwidth: i64,
    burst: i64,
    peakrate: i64,
    minburst: i64,
    packet_rate: i64,
    packet_burst: i64,
    connections: i64,
}

pub(crate) fn read(controls: Option<&QoSControls>) -> Qos {
    let Some(controls) = controls else { return Qos::default() };
    let ingress = Direction {
        bandwidth: controls.ingress_bandwidth,
        burst: controls.ingress_burst,
        peakrate: controls.ingress_peakrate,
        minburst: controls.ingress_minburst,
        packet_rate: controls.ingress_packet_rate,
        packet_burst: controls.ingress_packet_burst,
        connections: controls.ingress_max_connections,
    };
    let egress = Direction {
        bandwidth: controls.egress_bandwidth,
        burst: controls.egress_burst,
        peakrate: controls.egress_peakrate,
        minburst: controls.egress_minburst,
        packet_rate: controls.egress_packet_rate,
        packet_burst: controls.egress_packet_burst,
        connections: controls.egress_max_connections,
    };
    Qos {
        ingress: ingress.limits(),
        egress: egress.limits(),
        dscp: controls.dscp.as_ref().and_then(|dscp| dscp.value()),
    }
}

impl Direction {
    fn limits(&self) -> Limits {
        Limits {
            bandwidth: positive(self.bandwidth).map(|bits_per_second| Bandwidth {
                bits_per_second,
                burst_bits: positive(self.burst).unwrap_or(BURST_BITS),
                // One that does not exceed the rate would never let it be reached.
                peak: positive(self.peakrate).filter(|peak| *peak > bits_per_second).map(|bits_per_second| {
                    PeakRate { bits_per_second, burst_bytes: positive(self.minburst).map(narrow) }
                }),
            }),
            packets: positive(self.packet_rate).map(|rate| PacketRate {
                per_second: narrow(rate),
                burst: positive(self.packet_burst).map_or(PACKET_BURST, narrow),
            }),
            connections: positive(self.connections).map(narrow),
        }
    }
}

/// Zero, and what is less, is no limit.
fn positive(number: i64) -> Option<u64> {
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
    fn what_is_not_said_has_the_usual_value_and_what_makes_no_sense_is_left_out() {
        assert_eq!(read(None), Qos::default());
        let qos = read(Some(&QoSControls {
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
        let bandwidth = Bandwidth { bits_per_second: 1_000_000, burst_bits: BURST_BITS, peak: None };
        assert_eq!(
            qos.ingress,
            Limits { bandwidth: Some(bandwidth), packets: None, connections: Some(u32::MAX) }
        );
        let peak = Some(PeakRate { bits_per_second: 2_000_000, burst_bytes: Some(3000) });
        let bandwidth = Bandwidth { burst_bits: 80_000, peak, ..bandwidth };
        let packets = Some(PacketRate { per_second: 10, burst: 5 });
        assert_eq!(qos.egress, Limits { bandwidth: Some(bandwidth), packets, connections: None });
        assert_eq!(qos.dscp, Some(18));
    }
}
