//! Traffic metrics of the WireGuard devices of the node, with the names that Calico uses.

use std::fmt::Write;
use std::time::{Duration, SystemTime};
use tortie_compute::NodeParameters;
use tortie_dataplane::{Netns, PeerTraffic, WireguardTraffic};

/// Renders the metrics of the existing devices. Returns an empty string if the kernel does not respond within
/// `timeout`.
pub async fn render_devices(host: &str, parameters: &NodeParameters, timeout: Duration) -> String {
    let wanted = [
        (parameters.wireguard_enabled, &parameters.wireguard_interface_name),
        (parameters.wireguard_enabled_v6, &parameters.wireguard_interface_name_v6),
    ];
    let read = async {
        let mut devices = Vec::new();
        for (_, name) in wanted.into_iter().filter(|(enabled, _)| *enabled) {
            let Ok(netns) = Netns::current() else { continue };
            devices.extend(WireguardTraffic::read(&netns, name).await.ok());
        }
        devices
    };
    let devices = tokio::time::timeout(timeout, read).await.unwrap_or_default();
    render_metrics(host, &devices)
}

/// A metric of peers: its name, type, help text and value.
type PeerMetric = (&'static str, &'static str, &'static str, fn(&PeerTraffic) -> u64);

pub fn render_metrics(host: &str, devices: &[WireguardTraffic]) -> String {
    let mut text = String::new();
    if devices.is_empty() {
        return text;
    }
    write_head(
        &mut text,
        "wireguard_meta",
        "gauge",
        "Always 1, with the name and the public key of the WireGuard device",
    );
    for WireguardTraffic { device, public_key, port, .. } in devices {
        let labels = format!(
            "hostname=\"{host}\",public_key=\"{public_key}\",iface=\"{device}\",listen_port=\"{port}\""
        );
        let _ = writeln!(text, "wireguard_meta{{{labels}}} 1");
    }
    let metrics: [PeerMetric; 3] = [
        (
            "wireguard_latest_handshake_seconds",
            "gauge",
            "Latest handshake with a WireGuard peer, in seconds since 1970",
            |peer| peer.handshake.map_or(0, convert_to_seconds),
        ),
        ("wireguard_bytes_sent", "counter", "Bytes sent to a WireGuard peer", |peer| peer.sent),
        ("wireguard_bytes_rcvd", "counter", "Bytes received from a WireGuard peer", |peer| peer.received),
    ];
    for (name, kind, help, value) in metrics {
        write_head(&mut text, name, kind, help);
        for device in devices {
            for peer in &device.peers {
                let endpoint = peer.endpoint.map(|endpoint| endpoint.to_string()).unwrap_or_default();
                let labels = format!(
                    "hostname=\"{host}\",public_key=\"{}\",peer_key=\"{}\",peer_endpoint=\"{endpoint}\"",
                    device.public_key, peer.public_key
                );
                let _ = writeln!(text, "{name}{{{labels}}} {}", value(peer));
            }
        }
    }
    text
}

fn write_head(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
}

fn convert_to_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns a device with one peer.
#[cfg(test)]
pub fn sample() -> WireguardTraffic {
    let peer = PeerTraffic {
        public_key: "b+c=".to_owned(),
        endpoint: Some(([10, 0, 0, 2], 51820).into()),
        handshake: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
        sent: 148,
        received: 92,
    };
    WireguardTraffic {
        device: "wireguard.cali".to_owned(),
        public_key: "a/b=".to_owned(),
        port: 51820,
        peers: vec![peer],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_devices_and_peers_match_calico() {
        let mut without_handshake = sample();
        without_handshake.device = "wg-v6.cali".to_owned();
        without_handshake.peers[0].handshake = None;
        without_handshake.peers[0].endpoint = None;
        let text = render_metrics("n1", &[sample(), without_handshake]);
        let peer = "hostname=\"n1\",public_key=\"a/b=\",peer_key=\"b+c=\",peer_endpoint=\"10.0.0.2:51820\"";
        for line in [
            "wireguard_meta{hostname=\"n1\",public_key=\"a/b=\",iface=\"wireguard.cali\",listen_port=\"51820\"} 1",
            &format!("wireguard_latest_handshake_seconds{{{peer}}} 1700000000"),
            &format!("wireguard_bytes_sent{{{peer}}} 148"),
            &format!("wireguard_bytes_rcvd{{{peer}}} 92"),
            "# TYPE wireguard_bytes_rcvd counter",
            "wireguard_latest_handshake_seconds{hostname=\"n1\",public_key=\"a/b=\",peer_key=\"b+c=\",peer_endpoint=\"\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert_eq!(render_metrics("n1", &[]), "");
    }
}
