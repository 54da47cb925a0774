//! Metrics over TLS with client certificates.

use crate::world::{NodeFixture, eventually};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::net::Ipv4Addr;
use std::path::Path;

/// Writes a certificate authority and certificates signed by it to a directory.
fn certificates(dir: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::new(vec!["ca".to_owned()]).unwrap();
    parameters.distinguished_name.push(DnType::CommonName, "ca");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(dir.join("ca.pem"), parameters.self_signed(&key).unwrap().pem()).unwrap();
    let ca = Issuer::new(parameters, key);
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let names = vec![name.to_owned(), Ipv4Addr::LOCALHOST.to_string()];
        let mut parameters = CertificateParams::new(names).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, name);
        let certificate = parameters.signed_by(&key, &ca).unwrap();
        std::fs::write(dir.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

#[test]
fn metrics_over_tls_require_a_client_certificate() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let dir = world.path("tls");
    std::fs::create_dir(&dir).unwrap();
    certificates(&dir);
    let file = |name: &str| dir.join(name).display().to_string();
    world.start(&[
        ("FELIX_PROMETHEUSMETRICSENABLED", "true"),
        ("FELIX_PROMETHEUSMETRICSCERTFILE", &file("server.pem")),
        ("FELIX_PROMETHEUSMETRICSKEYFILE", &file("server.key")),
        ("FELIX_PROMETHEUSMETRICSCAFILE", &file("ca.pem")),
    ]);
    let get = |scheme: &str, more: &[&str]| {
        let url = format!("{scheme}://127.0.0.1:9091/metrics");
        let ca = file("ca.pem");
        let output = world.host.try_exec(&[&["curl", "-s", "--cacert", &ca, &url], more].concat());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let (certificate, key) = (file("client.pem"), file("client.key"));
    let client = ["--cert", certificate.as_str(), "--key", key.as_str()];
    eventually("who has a certificate gets an answer", || get("https", &client).contains("felix_host"));
    let text = get("https", &client);
    for part in [
        "# TYPE felix_int_dataplane_apply_time_seconds summary\n",
        "felix_int_dataplane_apply_time_seconds{quantile=\"0.99\"} ",
        "# TYPE felix_nft_calls counter\n",
        "felix_resyncs_started 1\n",
        "process_resident_memory_bytes ",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert_eq!(get("https", &[]), "", "who has none gets nothing");
    assert_eq!(get("http", &client), "", "there is nothing without TLS");
    world.felix("prometheusMetricsClientAuth: NoClientCert, prometheusProcessMetricsEnabled: false");
    eventually("clients need none any more", || get("https", &[]).contains("felix_host"));
    assert!(!get("https", &[]).contains("process_"));
}
