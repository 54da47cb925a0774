//! QoS limits of a pod, read from annotations with Kubernetes quantities.

use std::collections::BTreeMap;
use tortie_model::kinds::{DirectionLimits, QoSControls};

const QOS_ANNOTATION_PREFIX: &str = "qos.projectcalico.org/";
const KILO: i64 = 1_000;
const PETA: i64 = 1_000_000_000_000_000;
const DEFAULT_BURST_BITS: i64 = 4 << 30;
const DEFAULT_PACKET_BURST: i64 = 5;

/// Returns the limits in the annotations, if any. An invalid value is logged and ignored, so that the pod still gets
/// its network.
pub fn controls(annotations: &BTreeMap<String, String>) -> Option<QoSControls> {
    let ingress = limits(annotations, "ingress");
    let egress = limits(annotations, "egress");
    let dscp = annotations.get(&format!("{QOS_ANNOTATION_PREFIX}dscp")).and_then(|text| match text.parse() {
        Ok(dscp) => Some(dscp),
        Err(_) => {
            tracing::warn!(
                value = text,
                "annotation {QOS_ANNOTATION_PREFIX}dscp is not a DSCP; the pod's packets are not marked"
            );
            None
        }
    });
    let controls = QoSControls::new(ingress, egress, dscp);
    (controls != QoSControls::default()).then_some(controls)
}

fn limits(annotations: &BTreeMap<String, String>, direction: &str) -> DirectionLimits {
    let value = |name: &str, least: i64, most: i64| {
        let annotation = format!("{QOS_ANNOTATION_PREFIX}{direction}{name}");
        annotations.get(&annotation).and_then(|text| limit(&annotation, text, least, most))
    };
    let mut limits = DirectionLimits {
        packet_rate: value("PacketRate", 1, 10 * KILO).unwrap_or_default(),
        max_connections: value("MaxConnections", 1, i64::from(u32::MAX)).unwrap_or_default(),
        ..Default::default()
    };
    if limits.packet_rate > 0 {
        limits.packet_burst = value("PacketBurst", 1, 10 * KILO).unwrap_or(DEFAULT_PACKET_BURST);
    }
    let bandwidth = value("Bandwidth", KILO, PETA).or_else(|| {
        let legacy = format!("kubernetes.io/{direction}-bandwidth");
        annotations.get(&legacy).and_then(|text| limit(&legacy, text, KILO, PETA))
    });
    let Some(bandwidth) = bandwidth else { return limits };
    limits.bandwidth = bandwidth;
    limits.burst = value("Burst", KILO, 34_359_738_360).unwrap_or(DEFAULT_BURST_BITS);
    if let Some(peakrate) = value("Peakrate", 1_010, PETA / 100 * 101).filter(|peak| *peak > bandwidth) {
        limits.peakrate = peakrate;
        limits.minburst = value("Minburst", KILO, 100_000 * KILO).unwrap_or_default();
    }
    limits
}

/// Parses a quantity and clamps it to the bounds.
fn limit(annotation: &str, text: &str, least: i64, most: i64) -> Option<i64> {
    let Some(value) = parse(text) else {
        tracing::warn!(annotation, value = text, "not a quantity; this limit is not applied");
        return None;
    };
    let within = value.clamp(least, most);
    if within != value {
        tracing::warn!(
            annotation,
            value = text,
            applied = within,
            "out of bounds; the nearest limit is applied"
        );
    }
    Some(within)
}

/// Parses a quantity: `10M`, `1.5Gi`, `250k`, `1000`. Fractions are rounded up.
fn parse(text: &str) -> Option<i64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..)? {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1_024_f64,
        "Mi" => 1_048_576_f64,
        "Gi" => 1_073_741_824_f64,
        "Ti" => 1_099_511_627_776_f64,
        "Pi" => 1_125_899_906_842_624_f64,
        "m" => 1e-3,
        _ => return None,
    };
    let number: f64 = digits.parse().ok().filter(|number: &f64| number.is_finite())?;
    // Casting a float to an integer saturates.
    Some((number * factor).ceil() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        for (text, value) in [
            ("1000", Some(1_000)),
            ("10M", Some(10_000_000)),
            ("1.5Gi", Some(1_610_612_736)),
            ("250k", Some(250_000)),
            ("1500m", Some(2)),
            ("-1", Some(-1)),
            ("9999999999E", Some(i64::MAX)),
            ("", None),
            ("fast", None),
            ("10Q", None),
        ] {
            assert_eq!(parse(text), value, "{text}");
        }
    }

    fn of(pairs: &[(&str, &str)]) -> Option<QoSControls> {
        controls(&pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn limits_have_bounds_defaults_and_conditions() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("qos.projectcalico.org/ingressBurst", "10k")]), None, "a burst needs a bandwidth");
        let limited = of(&[
            ("kubernetes.io/ingress-bandwidth", "5M"),
            ("qos.projectcalico.org/ingressBandwidth", "1M"),
            ("qos.projectcalico.org/ingressPeakrate", "2M"),
            ("qos.projectcalico.org/ingressMinburst", "1"),
            ("kubernetes.io/egress-bandwidth", "10"),
            ("qos.projectcalico.org/egressPeakrate", "900"),
            ("qos.projectcalico.org/egressPacketRate", "1M"),
            ("qos.projectcalico.org/egressMaxConnections", "none"),
            ("qos.projectcalico.org/dscp", "EF"),
        ]);
        let expected = QoSControls {
            ingress_bandwidth: 1_000_000,
            ingress_burst: DEFAULT_BURST_BITS,
            ingress_peakrate: 2_000_000,
            ingress_minburst: 1_000,
            egress_bandwidth: 1_000,
            egress_burst: DEFAULT_BURST_BITS,
            // The minimum peak rate is above the bandwidth.
            egress_peakrate: 1_010,
            egress_packet_rate: 10_000,
            egress_packet_burst: DEFAULT_PACKET_BURST,
            dscp: "EF".parse().ok(),
            ..Default::default()
        };
        assert_eq!(limited, Some(expected));
    }
}
