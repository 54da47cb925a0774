//! Mutual TLS: which peers accept each other, by certificate.

use crate::world::{HubTestStore, RunningHub, TestNode};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, SanType};
use std::path::Path;
use std::sync::Arc;
use tortie_hub::client::{self, HubLocations};
use tortie_hub::server::HubServerOptions;
use tortie_hub::tls::{ClientTls, HubTlsIdentity, ServerTls};
use tortie_testkit::eventually_async;

struct TestCertificateAuthority {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl TestCertificateAuthority {
    fn new() -> TestCertificateAuthority {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(dir.path().join("ca"), parameters.self_signed(&key).unwrap().pem()).unwrap();
        TestCertificateAuthority { dir, issuer: Issuer::new(parameters, key) }
    }

    fn sign(&self, name: &str, uri: &str) {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.dir.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
        std::fs::write(self.dir.path().join(format!("{name}.cert")), certificate.pem()).unwrap();
    }

    /// Returns the identity of `name` that expects a peer with this common name or URI.
    fn identity(&self, name: &str, common_name: &str, uri: &str) -> HubTlsIdentity {
        self.trusting(self.dir.path(), name, common_name, uri)
    }

    /// Same as `identity`, with the CA of the given directory.
    fn trusting(&self, ca: &Path, name: &str, common_name: &str, uri: &str) -> HubTlsIdentity {
        let path = |dir: &Path, file: &str| dir.join(file).display().to_string();
        let (key, certificate) =
            (path(self.dir.path(), &format!("{name}.key")), path(self.dir.path(), &format!("{name}.cert")));
        HubTlsIdentity::new(&key, &certificate, &path(ca, "ca"), common_name, uri).unwrap().unwrap()
    }
}

fn node(hub: &RunningHub, identity: Option<HubTlsIdentity>) -> TestNode {
    let mut options =
        client::HubClientOptions::new("n1", HubLocations::parse(&hub.address.to_string()).unwrap());
    options.tls = identity.map(|identity| Arc::new(ClientTls::new(identity).unwrap()));
    TestNode::with(options)
}

async fn is_refused(node: &TestNode) {
    eventually_async("the node says that there is no hub for it", async || {
        node.received().words.iter().any(|word| word == "lost")
    })
    .await;
    assert!(node.received().content.is_empty(), "it was told something");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_check_authority_and_name() {
    let store = HubTestStore::embedded().await;
    store.put("a").await;
    let (ours, theirs) = (TestCertificateAuthority::new(), TestCertificateAuthority::new());
    for authority in [&ours, &theirs] {
        authority.sign("hub", "spiffe://cluster/hub");
        authority.sign("node", "spiffe://cluster/node");
        authority.sign("other", "spiffe://cluster/other");
    }
    let server = ServerTls::new(ours.identity("hub", "node", "spiffe://cluster/node")).unwrap();
    let hub = RunningHub::with(&store, "127.0.0.1:0", HubServerOptions::default(), Some(server)).await;
    for (name, uri) in [("hub", ""), ("", "spiffe://cluster/hub"), ("wrong", "spiffe://cluster/hub")] {
        let node = node(&hub, Some(ours.identity("node", name, uri)));
        node.knows(&store).await;
    }
    let refused = [
        ("a hub of another name", Some(ours.identity("node", "other", ""))),
        ("a node of another name", Some(ours.identity("other", "hub", ""))),
        ("a hub of another authority", Some(theirs.identity("node", "hub", ""))),
        ("a node of another authority", Some(theirs.trusting(ours.dir.path(), "node", "hub", ""))),
        ("no certificate at all", None),
    ];
    for (why, identity) in refused {
        let node = node(&hub, identity);
        println!("{why}");
        is_refused(&node).await;
    }
    assert!(hub.hub.metrics().text().contains("tortie_hub_refused_total{reason=\"certificate\"}"));
    assert_eq!(hub.hub.clients(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_certificates_are_used_without_a_restart() {
    let store = HubTestStore::embedded().await;
    store.put("a").await;
    let authority = TestCertificateAuthority::new();
    authority.sign("hub", "spiffe://old");
    authority.sign("node", "spiffe://node");
    let server = ServerTls::new(authority.identity("hub", "node", "")).unwrap();
    let hub = RunningHub::with(&store, "127.0.0.1:0", HubServerOptions::default(), Some(server)).await;
    let wants_new = || authority.identity("node", "", "spiffe://new");
    let early = node(&hub, Some(wants_new()));
    is_refused(&early).await;
    let steady = node(&hub, Some(authority.identity("node", "hub", "")));
    steady.knows(&store).await;
    authority.sign("hub", "spiffe://new");
    // The node was rejected, keeps retrying and finds the new certificate.
    early.knows(&store).await;
    // Existing connections are not affected.
    store.put("b").await;
    steady.knows(&store).await;
    assert_eq!(steady.news(), ["+a", "+b", "in sync"]);
}
