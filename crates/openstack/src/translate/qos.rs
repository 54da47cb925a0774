//! QoS rules and the driver's limits as the QoS controls of an endpoint.

use crate::neutron::{QosRule, QosSettings};
use tortie_model::kinds::{DirectionLimits, QoSControls};

const BANDWIDTH_LIMIT: &str = "bandwidth_limit";
const PACKET_RATE_LIMIT: &str = "packet_rate_limit";
const BANDWIDTH_RANGE: (i64, i64) = (1_000, 1_000_000_000_000_000);
const PEAKRATE_RANGE: (i64, i64) = (1_010, 1_010_000_000_000_000);
const PACKET_RATE_RANGE: (i64, i64) = (1, 10_000);
const BURST_RANGE: (i64, i64) = (1_000, 34_359_738_360);
const MINBURST_RANGE: (i64, i64) = (1_000, 100_000_000);
const PACKET_BURST_RANGE: (i64, i64) = (1, 10_000);
const CONNECTIONS_RANGE: (i64, i64) = (1, 4_294_967_295);
/// Burst in bits if the setting is 0.
const DEFAULT_BURST_BITS: i64 = 4_294_967_296;
/// Burst in packets if the setting is 0.
const DEFAULT_BURST_PACKETS: i64 = 5;

/// The settings of one direction.
struct DirectionSettings {
    burst_bits: i64,
    minburst_bytes: i64,
    burst_packets: i64,
    max_connections: i64,
}

/// Returns the limits of an endpoint; `None` without limits.
pub fn translate_qos(rules: &[QosRule], settings: &QosSettings) -> Option<QoSControls> {
    let ingress = DirectionSettings {
        burst_bits: settings.ingress_burst_bits,
        minburst_bytes: settings.ingress_minburst_bytes,
        burst_packets: settings.ingress_burst_packets,
        max_connections: settings.max_ingress_connections_per_port,
    };
    let egress = DirectionSettings {
        burst_bits: settings.egress_burst_bits,
        minburst_bytes: settings.egress_minburst_bytes,
        burst_packets: settings.egress_burst_packets,
        max_connections: settings.max_egress_connections_per_port,
    };
    let controls = QoSControls::new(
        translate_direction(rules, "ingress", &ingress),
        translate_direction(rules, "egress", &egress),
        None,
    );
    (controls != QoSControls::default()).then_some(controls)
}

fn translate_direction(rules: &[QosRule], direction: &str, settings: &DirectionSettings) -> DirectionLimits {
    let mut limits = DirectionLimits::default();
    for rule in rules.iter().filter(|rule| rule.direction.as_deref().unwrap_or("egress") == direction) {
        match rule.rule_type.as_str() {
            BANDWIDTH_LIMIT => {
                set_scaled(&mut limits.bandwidth, rule.max_kbps, BANDWIDTH_RANGE);
                set_scaled(&mut limits.peakrate, rule.max_burst_kbps, PEAKRATE_RANGE);
            }
            PACKET_RATE_LIMIT => set_scaled(&mut limits.packet_rate, rule.max_kpps, PACKET_RATE_RANGE),
            _ => {}
        }
    }
    if limits.bandwidth != 0 {
        limits.burst = clamp(or_default(settings.burst_bits, DEFAULT_BURST_BITS), BURST_RANGE);
        if limits.peakrate != 0 && settings.minburst_bytes != 0 {
            limits.minburst = clamp(settings.minburst_bytes, MINBURST_RANGE);
        }
    }
    if limits.packet_rate != 0 {
        limits.packet_burst =
            clamp(or_default(settings.burst_packets, DEFAULT_BURST_PACKETS), PACKET_BURST_RANGE);
    }
    if settings.max_connections != 0 {
        limits.max_connections = clamp(settings.max_connections, CONNECTIONS_RANGE);
    }
    limits
}

/// Sets a limit from a value in thousands; 0 means no limit.
fn set_scaled(limit: &mut i64, thousands: i64, range: (i64, i64)) {
    if thousands != 0 {
        *limit = clamp(thousands.saturating_mul(1000), range);
    }
}

fn or_default(value: i64, default: i64) -> i64 {
    if value == 0 { default } else { value }
}

fn clamp(value: i64, (min, max): (i64, i64)) -> i64 {
    value.clamp(min, max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn translate(rules: Value, settings: Value) -> Value {
        let rules: Vec<QosRule> = serde_json::from_value(rules).unwrap();
        let settings: QosSettings = serde_json::from_value(settings).unwrap();
        serde_json::to_value(translate_qos(&rules, &settings)).unwrap()
    }

    #[test]
    fn rules_become_limits() {
        let rules = json!([
            {"type": "bandwidth_limit", "max_kbps": 1000, "max_burst_kbps": 2000, "direction": "ingress"},
            {"type": "packet_rate_limit", "max_kpps": 5, "max_burst_kpps": 0},
            {"type": "dscp_marking", "dscp_mark": 26},
        ]);
        assert_eq!(
            translate(rules.clone(), json!({})),
            json!({
                "ingressBandwidth": 1_000_000, "ingressPeakrate": 2_000_000, "ingressBurst": 4_294_967_296_i64,
                "egressPacketRate": 5000, "egressPacketBurst": 5,
            })
        );
        let settings = json!({"ingress_burst_bits": 0, "ingress_minburst_bytes": 10, "egress_burst_packets": 20000,
            "max_ingress_connections_per_port": 7, "max_egress_connections_per_port": 5_000_000_000_i64});
        let limits = translate(rules, settings);
        assert_eq!(limits["ingressBurst"], 4_294_967_296_i64);
        assert_eq!(limits["ingressMinburst"], 1000);
        assert_eq!(limits["egressPacketBurst"], 10_000);
        assert_eq!(limits["ingressMaxConnections"], 7);
        assert_eq!(limits["egressMaxConnections"], 4_294_967_295_i64);
    }

    #[test]
    fn limits_are_clamped_and_zero_is_none() {
        let rule = |kbps: i64, burst: i64, kpps: i64| {
            json!([{"type": "bandwidth_limit", "max_kbps": kbps, "max_burst_kbps": burst},
                   {"type": "packet_rate_limit", "max_kpps": kpps}])
        };
        assert_eq!(translate(rule(0, 0, 0), json!({})), json!(null));
        let large = translate(rule(i64::MAX, i64::MAX, i64::MAX), json!({"egress_burst_bits": i64::MAX}));
        assert_eq!(large["egressBandwidth"], 1_000_000_000_000_000_i64);
        assert_eq!(large["egressPeakrate"], 1_010_000_000_000_000_i64);
        assert_eq!(large["egressPacketRate"], 10_000);
        assert_eq!(large["egressBurst"], 34_359_738_360_i64);
        assert_eq!(translate(rule(0, 1, 0), json!({}))["egressPeakrate"], 1010);
    }
}
