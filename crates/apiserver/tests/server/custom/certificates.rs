//! Certificates that the webhooks issue and renew while kube-apiserver keeps calling them.

use super::{API, CustomResourceCluster, LONG_LIFETIMES, object};
use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tortie_apiserver::CertificateLifetimes;
use tortie_testkit::eventually_showing;

fn field(custom: &CustomResourceCluster, path: &str, pointer: &str) -> String {
    let object = custom.cluster.server.must("GET", path, None);
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

const SECRET: &str = "/api/v1/namespaces/kube-system/secrets/calico-webhooks-tls";
const CONFIGURATION: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/calico-webhooks";

#[test]
fn certificates_are_renewed_while_kubernetes_asks() {
    let mut custom = CustomResourceCluster::new();
    // Renewal starts with a third of the lifetime left: enough time for a busy machine.
    custom.start_webhooks(CertificateLifetimes {
        authority: Duration::from_secs(60),
        certificate: Duration::from_secs(30),
    });
    let (mut certificates, mut bundles, mut count) = (BTreeSet::new(), BTreeSet::new(), 0);
    let path = format!("{API}/globalnetworkpolicies");
    eventually_showing(
        "certificates and authorities are renewed, and Kubernetes asks on",
        || {
            certificates.insert(field(&custom, SECRET, "/data/tls.crt"));
            bundles.insert(field(&custom, CONFIGURATION, "/webhooks/0/clientConfig/caBundle"));
            count += 1;
            let policy = object("GlobalNetworkPolicy", &format!("written-{count}"), json!({}));
            let written = custom.cluster.server.send("POST", &path, Some(&policy));
            written.is_ok() && certificates.len() > 2 && bundles.len() > 1
        },
        String::new,
    );
    // Both webhooks have the same CA bundle.
    assert_eq!(
        field(&custom, CONFIGURATION, "/webhooks/1/clientConfig/caBundle"),
        field(&custom, CONFIGURATION, "/webhooks/0/clientConfig/caBundle")
    );
    unfinished_reviews_hold_up_nobody(&custom);
    // Without the webhooks, policies cannot be written but can be read.
    custom.stop_webhooks();
    let refusal =
        custom.cluster.server.send("POST", &path, Some(&object("GlobalNetworkPolicy", "late", json!({}))));
    assert!(refusal.unwrap_err().contains("failed calling webhook"));
    let table = custom.cluster.must(&["get", "gnp"], "");
    let header: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["NAME", "TIER", "AGE"]);
    // Another instance takes over the certificates, and requires a client certificate of kube-apiserver.
    let authority = custom.cluster.server.path("proxy-ca.pem");
    custom.start_webhooks_for(LONG_LIFETIMES, Some(authority));
    custom.cluster.server.create(&path, &object("GlobalNetworkPolicy", "late", json!({})));
    strange_questions(&custom);
}

/// Sends requests from clients other than kube-apiserver.
fn strange_questions(custom: &CustomResourceCluster) {
    let ask = |words: &[&str], path: &str| {
        let mut command = Command::new("curl");
        command.args(["-sk", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}"]).args(words);
        let output = command.arg(format!("https://localhost:{}{path}", custom.port)).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // Without a client certificate of kube-apiserver, only the kubelet's probe is answered.
    assert_eq!(ask(&[], "/readyz"), "200");
    for path in ["/metrics", "/rbac", "/cluster-info", "/elsewhere"] {
        assert_eq!(ask(&[], path), "401", "{path}");
    }
    let path = |name: &str| custom.cluster.server.path(name).display().to_string();
    let stranger = rcgen::generate_simple_self_signed(vec!["front-proxy".to_owned()]).unwrap();
    std::fs::write(path("stranger.pem"), stranger.cert.pem()).unwrap();
    std::fs::write(path("stranger.key"), stranger.signing_key.serialize_pem()).unwrap();
    assert_eq!(ask(&["--cert", &path("stranger.pem"), "--key", &path("stranger.key")], "/metrics"), "000");
    let (certificate, key) = (path("proxy.pem"), path("proxy.key"));
    let known = |words: &[&str], path: &str| {
        ask(&[&["--cert", certificate.as_str(), "--key", key.as_str()], words].concat(), path)
    };
    std::fs::write(path("large"), vec![b' '; 4 << 20]).unwrap();
    let large = format!("@{}", path("large"));
    assert_eq!(known(&[], "/readyz"), "200");
    assert_eq!(known(&[], "/metrics"), "200");
    assert_eq!(known(&[], "/rbac"), "405");
    assert_eq!(known(&[], "/elsewhere"), "404");
    assert_eq!(known(&["-d", "no question"], "/rbac"), "400");
    assert_eq!(known(&["-d", "{}"], "/cluster-info"), "400");
    assert_eq!(known(&["--http1.1", "--data-binary", &large], "/rbac"), "413");
}

/// Sends more reviews with unfinished bodies on one connection than are handled at a time.
fn unfinished_reviews_hold_up_nobody(custom: &CustomResourceCluster) {
    const UNFINISHED: usize = 450;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    runtime.block_on(async {
        let stream = TcpStream::connect(("127.0.0.1", custom.port)).await.unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(authorities(custom))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = "calico-webhooks.kube-system.svc".try_into().unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let (client, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..UNFINISHED {
            let (mut client, sent) = (client.clone(), sent.clone());
            let body = NeverEndingBody { first: Some(Bytes::from_static(b"{")), sent };
            let request = http::Request::post("https://calico-webhooks/rbac").body(body).unwrap();
            tokio::spawn(async move { client.send_request(request).await });
        }
    });
    eventually_showing(
        "as many are on their way as the server lets",
        || sent.load(Ordering::Relaxed) >= UNFINISHED.min(MAX_STREAMS),
        || format!("{sent:?}"),
    );
    // A server that accepted more of them would have received them within this time.
    std::thread::sleep(Duration::from_secs(1));
    let path = format!("{API}/globalnetworkpolicies?dryRun=All");
    let policy = object("GlobalNetworkPolicy", "in-time", json!({}));
    custom.cluster.server.must("POST", &path, Some(&policy));
    runtime.shutdown_background();
}

/// Number of streams that the server allows per connection.
const MAX_STREAMS: usize = 100;

/// Returns the CA bundle registered with Kubernetes.
fn authorities(custom: &CustomResourceCluster) -> RootCertStore {
    let bundle = field(custom, CONFIGURATION, "/webhooks/0/clientConfig/caBundle");
    let pem = data_encoding::BASE64.decode(bundle.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        roots.add(certificate.unwrap()).unwrap();
    }
    roots
}

/// A body whose first bytes are sent and that never ends.
struct NeverEndingBody {
    first: Option<Bytes>,
    sent: Arc<AtomicUsize>,
}

impl http_body::Body for NeverEndingBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        match self.first.take() {
            Some(first) => {
                self.sent.fetch_add(1, Ordering::Relaxed);
                Poll::Ready(Some(Ok(http_body::Frame::data(first))))
            }
            None => Poll::Pending,
        }
    }
}
