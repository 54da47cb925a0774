//! Servers that are down, silent or not etcd, and connections with TLS or a password.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{FreezableProxy, client, etcd, hasty, within};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tortie_model::ipam::AddressHandle;
use tortie_model::{KeyRange, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreConfig, StoreError};
use tortie_testkit::{Etcd, EtcdOptions, EtcdTls, free_port};

fn handle(id: &str) -> StoreKey {
    StoreKey::Handle { id: id.into() }
}

async fn works(client: &StoreClient) {
    let value = StoreValue::Handle(AddressHandle::default());
    within("apply", client.apply(&handle("h"), &value, None)).await.unwrap();
    assert_eq!(within("get", client.get(&handle("h"))).await.unwrap().value, value);
}

async fn failure(client: &StoreClient) -> String {
    let error = within("get", client.get(&handle("h"))).await.unwrap_err();
    assert!(matches!(error, StoreError::Datastore(_) | StoreError::Unauthorized(_)), "{error:?}");
    error.to_string()
}

/// A fake server with a fixed response; stopped on drop.
struct FakeServer {
    endpoint: String,
    task: JoinHandle<()>,
}

impl FakeServer {
    /// Starts a server that sends `answer` to every client, or nothing if it is empty.
    async fn start(answer: &'static [u8]) -> FakeServer {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = [0; 1024];
                let _ = stream.read(&mut buffer).await;
                let _ = stream.write_all(answer).await;
                if answer.is_empty() {
                    open.push(stream);
                }
            }
        });
        FakeServer { endpoint, task }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn an_endpoint_that_is_down() {
    let endpoint = format!("http://127.0.0.1:{}", free_port().unwrap());
    let text = failure(&hasty(&StoreConfig::at(&endpoint)).await).await;
    assert!(text.starts_with(&format!("cannot connect to {endpoint}: Connection refused")), "{text}");
    assert!(text.contains("ETCD_ENDPOINTS"), "{text}");
}

#[tokio::test]
async fn a_socket_that_is_not_there() {
    let text = failure(&hasty(&StoreConfig::at("unix:///nonexistent/socket")).await).await;
    assert!(text.starts_with("cannot connect to unix:///nonexistent/socket: No such file"), "{text}");
}

#[tokio::test]
async fn an_endpoint_that_never_answers() {
    let impostor = FakeServer::start(b"").await;
    let text = failure(&hasty(&StoreConfig::at(&impostor.endpoint)).await).await;
    assert!(text.starts_with(&format!("no answer from {} within", impostor.endpoint)), "{text}");
}

#[tokio::test]
async fn an_endpoint_that_answers_garbage() {
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
        b"SSH-2.0-OpenSSH_9.2\r\n",
        &[0xff; 200],
        // An HTTP/2 server with an invalid response: SETTINGS, then headers that cannot be decoded.
        b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x04\x01\x04\x00\x00\x00\x01\xff\xff\xff\xff",
    ] {
        let impostor = FakeServer::start(answer).await;
        let text = failure(&hasty(&StoreConfig::at(&impostor.endpoint)).await).await;
        assert!(text.contains(&impostor.endpoint), "{text}");
        assert!(text.contains("check that"), "{answer:?}: {text}");
    }
}

#[tokio::test]
async fn a_grpc_server_that_is_not_a_datastore() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
    let serving =
        tokio::spawn(server.serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)));
    let text = failure(&hasty(&StoreConfig::at(&endpoint)).await).await;
    serving.abort();
    assert!(text.starts_with(&format!("{endpoint} does not answer in the etcd v3 protocol")), "{text}");
}

#[tokio::test]
async fn a_frozen_connection_costs_one_call() {
    let etcd = etcd();
    let proxy = FreezableProxy::start(&etcd.endpoint()).await;
    let client = hasty(&StoreConfig::at(&proxy.endpoint)).await;
    works(&client).await;
    proxy.freeze();
    let text = failure(&client).await;
    assert!(text.starts_with("no answer from"), "{text}");
    works(&client).await;
}

#[tokio::test]
async fn a_write_of_unknown_outcome_says_so() {
    let impostor = FakeServer::start(b"").await;
    let client = hasty(&StoreConfig::at(&impostor.endpoint)).await;
    let error = within("create", client.create(&handle("h"), &StoreValue::Handle(AddressHandle::default())))
        .await
        .unwrap_err();
    assert!(error.to_string().ends_with("The write may have been carried out or not"), "{error}");
}

#[tokio::test]
async fn one_of_three_endpoints_is_down() {
    let etcd = etcd();
    let dead = format!("http://127.0.0.1:{}", free_port().unwrap());
    let silent = FakeServer::start(b"").await;
    // A write skips an endpoint that refuses the connection; a read also skips one that does not respond.
    works(&hasty(&StoreConfig::at(format!("{dead},{},{}", etcd.endpoint(), silent.endpoint))).await).await;
    let client = hasty(&StoreConfig::at(format!("{},{dead},{}", silent.endpoint, etcd.endpoint()))).await;
    within("list", client.list(&KeyRange::Handles)).await.unwrap();
    works(&client).await;
}

#[tokio::test]
async fn all_of_three_endpoints_are_down() {
    let ports = [free_port().unwrap(), free_port().unwrap(), free_port().unwrap()];
    let endpoints = ports.map(|port| format!("http://127.0.0.1:{port}"));
    let text = failure(&hasty(&StoreConfig::at(endpoints.join(","))).await).await;
    assert!(text.starts_with("none of the 3 endpoints answers:"), "{text}");
    assert!(endpoints.iter().all(|endpoint| text.contains(endpoint)), "{text}");
}

#[tokio::test]
async fn a_server_comes_back() {
    let mut etcd = etcd();
    let client = hasty(&StoreConfig::at(etcd.endpoint())).await;
    works(&client).await;
    etcd.kill();
    failure(&client).await;
    etcd.restart().unwrap();
    works(&client).await;
}

struct TestCertificates {
    dir: tempfile::TempDir,
}

impl TestCertificates {
    /// Creates a CA, and a certificate for 127.0.0.1 for both server and client.
    fn new() -> TestCertificates {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
        let dir = tempfile::tempdir().unwrap();
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_cert = ca.self_signed(&ca_key).unwrap();
        let issuer = Issuer::new(ca, ca_key);
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let certificates = TestCertificates { dir };
        for (name, text) in [("ca", ca_cert.pem()), ("cert", cert.pem()), ("key", key.serialize_pem())] {
            std::fs::File::create(certificates.path(name)).unwrap().write_all(text.as_bytes()).unwrap();
        }
        certificates
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn etcd(&self, client_cert_auth: bool) -> Etcd {
        let tls = EtcdTls {
            ca_file: self.path("ca"),
            cert_file: self.path("cert"),
            key_file: self.path("key"),
            client_cert_auth,
        };
        Etcd::start_with(EtcdOptions { tls: Some(tls), ..Default::default() }).unwrap()
    }
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

#[tokio::test]
async fn tls_with_client_certificates() {
    let certificates = TestCertificates::new();
    let etcd = certificates.etcd(true);
    let files = StoreConfig {
        etcd_ca_cert_file: name(&certificates.path("ca")),
        etcd_cert_file: name(&certificates.path("cert")),
        etcd_key_file: name(&certificates.path("key")),
        ..StoreConfig::at(etcd.endpoint())
    };
    works(&hasty(&files).await).await;
    let inline = StoreConfig {
        etcd_ca_cert: certificates.text("ca"),
        etcd_cert: certificates.text("cert"),
        etcd_key: certificates.text("key"),
        ..StoreConfig::at(etcd.endpoint())
    };
    works(&hasty(&inline).await).await;

    let anonymous = StoreConfig { etcd_ca_cert: certificates.text("ca"), ..StoreConfig::at(etcd.endpoint()) };
    let text = failure(&hasty(&anonymous).await).await;
    assert!(text.contains("etcdCertFile"), "{text}");
    let stranger =
        StoreConfig { etcd_ca_cert: TestCertificates::new().text("ca"), ..StoreConfig::at(etcd.endpoint()) };
    let text = failure(&hasty(&stranger).await).await;
    assert!(text.contains("certificate is not trusted") && text.contains("etcdCACertFile"), "{text}");
}

#[tokio::test]
async fn the_wrong_scheme_is_explained() {
    let certificates = TestCertificates::new();
    let secure = certificates.etcd(false);
    let plain = etcd();
    let text = failure(&hasty(&StoreConfig::at(secure.endpoint().replace("https", "http"))).await).await;
    assert!(text.contains("https"), "{text}");
    let config = StoreConfig {
        etcd_ca_cert: certificates.text("ca"),
        ..StoreConfig::at(plain.endpoint().replace("http", "https"))
    };
    let text = failure(&hasty(&config).await).await;
    assert!(text.contains("does not use TLS"), "{text}");
}

#[tokio::test]
async fn users_and_passwords() {
    let mut etcd = etcd();
    let with = |user: &str, password: &str| StoreConfig {
        etcd_username: user.into(),
        etcd_password: password.into(),
        ..StoreConfig::at(etcd.endpoint())
    };
    let (good, wrong) = (with("root", "secret"), with("root", "guess"));

    // Credentials are accepted while authentication is disabled.
    let early = hasty(&good).await;
    works(&early).await;

    etcd.ctl(&["user", "add", "root:secret"]).unwrap();
    etcd.ctl(&["user", "grant-role", "root", "root"]).unwrap();
    etcd.ctl(&["auth", "enable"]).unwrap();

    let client_with_user = hasty(&good).await;
    works(&client_with_user).await;
    works(&early).await;
    let text = failure(&hasty(&wrong).await).await;
    assert!(text.starts_with("connection is unauthorized") && text.contains("ETCD_PASSWORD"), "{text}");
    assert!(!text.contains("guess"), "{text}");
    let text = failure(&client(&etcd.endpoint()).await).await;
    assert!(text.starts_with("connection is unauthorized") && text.contains("ETCD_USERNAME"), "{text}");

    // A restarted server has lost its tokens.
    etcd.restart().unwrap();
    works(&client_with_user).await;
    let mut watch = client_with_user.watch(KeyRange::Handles, None);
    assert!(matches!(common::next(&mut watch).await, tortie_store::StoreEvent::Put(_)));
}
