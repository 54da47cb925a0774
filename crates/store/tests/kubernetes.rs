//! The Kubernetes backend against a real API server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{next, object, within};
use http::{Method, Request};
use serde_json::{Value as Json, json};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tortie_model::ipam::Handle;
use tortie_model::key::AffinityType;
use tortie_model::{Key, KeyRange, Kind, Value, schema};
use tortie_store::{Client, Config, Error, Event, Page, Resources};
use tortie_testkit::{Etcd, Process, free_port};

/// An API server on an etcd of its own. Gone, with its data, on drop.
struct Server {
    _process: Process,
    _etcd: Etcd,
    dir: tempfile::TempDir,
    port: u16,
}

/// Where the programs are; built from Go modules if they are not there yet.
fn programs() -> PathBuf {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kube/build");
    let output = Command::new(script).stderr(Stdio::inherit()).output().expect("scripts/kube/build");
    assert!(output.status.success(), "scripts/kube/build failed");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

impl Server {
    async fn start() -> Server {
        let dir = tempfile::tempdir().unwrap();
        let etcd = Etcd::start().expect("etcd");
        let port = free_port().unwrap();
        let place = |name: &str| dir.path().join(name).display().to_string();
        let key = rcgen::KeyPair::generate().unwrap();
        std::fs::write(dir.path().join("sa.key"), key.serialize_pem()).unwrap();
        std::fs::write(dir.path().join("sa.pub"), key.public_key_pem()).unwrap();
        std::fs::write(dir.path().join("tokens"), "secret,admin,admin,system:masters\n").unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new(programs().join("kube-apiserver"));
        command
            .arg(format!("--etcd-servers={}", etcd.endpoint()))
            .arg(format!("--secure-port={port}"))
            .arg(format!("--cert-dir={}", place("certs")))
            .arg(format!("--token-auth-file={}", place("tokens")))
            .arg(format!("--service-account-key-file={}", place("sa.pub")))
            .arg(format!("--service-account-signing-key-file={}", place("sa.key")))
            .args(["--bind-address=127.0.0.1", "--service-cluster-ip-range=10.96.0.0/16"])
            .args([
                "--service-account-issuer=https://kubernetes.default.svc",
                "--authorization-mode=AlwaysAllow",
            ])
            .args(["--disable-admission-plugins=ServiceAccount", "--etcd-compaction-interval=0"])
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let server = Server { _process: Process::start(&mut command), _etcd: etcd, dir, port };
        let ready = async {
            while server.try_send(Method::GET, "/readyz", None).await.is_err() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(300), ready).await.is_err() {
            panic!(
                "the API server does not get ready: {}",
                std::fs::read_to_string(place_of(&server, "log")).unwrap()
            );
        }
        server.install().await;
        server
    }

    /// The definitions of our kinds, until they are served.
    async fn install(&self) {
        let crds = schema::crds();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        for crd in &crds {
            self.send(Method::POST, path, Some(crd.clone())).await;
        }
        for crd in &crds {
            let plural = crd["spec"]["names"]["plural"].as_str().unwrap();
            within(plural, async {
                let path = format!("/apis/projectcalico.org/v3/{plural}?limit=1");
                while self.try_send(Method::GET, &path, None).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            })
            .await;
        }
    }

    fn config(&self) -> Config {
        Config {
            datastore_type: "kubernetes".into(),
            k8s_api_endpoint: format!("https://127.0.0.1:{}", self.port),
            k8s_api_token: "secret".into(),
            k8s_insecure_skip_tls_verify: true,
            ..Config::default()
        }
    }

    async fn client(&self) -> Client {
        Client::connect(&self.config()).await.unwrap()
    }

    /// A request as another program would send it.
    async fn try_send(&self, method: Method, path: &str, body: Option<Json>) -> Result<String, kube::Error> {
        let mut config = kube::Config::new(format!("https://127.0.0.1:{}", self.port).parse().unwrap());
        config.accept_invalid_certs = true;
        config.auth_info.token = Some("secret".to_owned().into());
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        kube::Client::try_from(config)?.request_text(request.body(body).unwrap()).await
    }

    async fn send(&self, method: Method, path: &str, body: Option<Json>) -> Json {
        let answer =
            self.try_send(method, path, body).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        serde_json::from_str(&answer).unwrap()
    }
}

fn place_of(server: &Server, name: &str) -> PathBuf {
    server.dir.path().join(name)
}

fn handle(id: &str) -> Key {
    Key::Handle { id: id.into() }
}

fn counting(count: i64) -> Value {
    Value::Handle(Handle { block: [("10.0.0.0/26".to_owned(), count)].into(), ..Default::default() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_serves_everything() {
    let server = Server::start().await;
    records_live_and_die(&server).await;
    resources_live_and_die(&server).await;
    lists_come_in_pages(&server).await;
    watches_report_a_snapshot_then_every_change(&server).await;
    kubernetes_objects_are_derived(&server).await;
}

async fn records_live_and_die(server: &Server) {
    let client = server.client().await;
    assert!(client.transactions().is_none());
    let key = handle("Net.H");
    assert!(matches!(client.get(&key).await, Err(Error::DoesNotExist { .. })));
    let created = client.create(&key, &counting(1)).await.unwrap();
    assert_eq!(client.get(&key).await.unwrap(), created);
    assert!(matches!(client.create(&key, &counting(1)).await, Err(Error::AlreadyExists { .. })));
    let updated = client.update(&key, &counting(3), &created.revision).await.unwrap();
    assert!(matches!(
        client.update(&key, &counting(4), &created.revision).await,
        Err(Error::Conflict { .. })
    ));
    assert!(matches!(client.delete(&key, Some(&created.revision)).await, Err(Error::Conflict { .. })));
    assert_eq!(client.delete(&key, Some(&updated.revision)).await.unwrap().value, counting(3));
    assert!(matches!(client.get(&key).await, Err(Error::DoesNotExist { .. })));
    let cidr = "10.65.3.0/26".parse().unwrap();
    let claim = |owner: &str| Key::BlockAffinity { affinity: AffinityType::Host, owner: owner.into(), cidr };
    for owner in ["n1", "n2"] {
        client.create(&claim(owner), &Value::BlockAffinity(Default::default())).await.unwrap();
    }
    let of_n1 = KeyRange::BlockAffinities {
        affinity: AffinityType::Host,
        owner: Some("n1".into()),
        ip_version: Some(4),
    };
    assert_eq!(client.list_keys(&of_n1).await.unwrap(), [claim("n1")]);
}

async fn resources_live_and_die(server: &Server) {
    let resources = Resources::new(server.client().await);
    let set = object(Kind::GlobalNetworkSet, "", "dns", json!({"nets": ["10.0.0.0/8"]}));
    let created = resources.create(set.clone()).await.unwrap();
    assert_eq!(resources.get(Kind::GlobalNetworkSet, "", "dns").await.unwrap(), created);
    assert!(matches!(resources.create(set).await, Err(Error::AlreadyExists { current: Some(_), .. })));
    let mut changed = created.clone();
    changed.metadata_mut().labels.insert("a".into(), "b".into());
    let updated = resources.update(changed.clone()).await.unwrap();
    assert_eq!(updated.metadata().labels["a"], "b");
    assert!(matches!(resources.update(changed).await, Err(Error::Conflict { .. })));
    resources.delete(Kind::GlobalNetworkSet, "", "dns", None).await.unwrap();
    assert!(matches!(
        resources.get(Kind::GlobalNetworkSet, "", "dns").await,
        Err(Error::DoesNotExist { .. })
    ));
}

async fn lists_come_in_pages(server: &Server) {
    let client = server.client().await;
    for n in 0..5 {
        client.create(&handle(&format!("page-{n}")), &counting(n)).await.unwrap();
    }
    let mut page = Page::first(NonZeroUsize::new(2).unwrap());
    let mut seen = Vec::new();
    for _ in 0..3 {
        let listing = client.list_page(&KeyRange::Handles, &page).await.unwrap();
        seen.extend(listing.entries);
        page.after = listing.next;
    }
    assert_eq!(page.after, None);
    assert_eq!(seen, client.list(&KeyRange::Handles).await.unwrap().entries);
    assert_eq!(seen.len(), 5);
}

async fn watches_report_a_snapshot_then_every_change(server: &Server) {
    let client = server.client().await;
    let mut watch = client.watch(KeyRange::Handles, None);
    for _ in 0..5 {
        assert!(matches!(next(&mut watch).await, Event::Put(_)));
    }
    assert!(matches!(next(&mut watch).await, Event::InSync(_)));
    client.create(&handle("new"), &counting(1)).await.unwrap();
    client.delete(&handle("page-0"), None).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Put(entry) if entry.key == handle("new")));
    assert!(matches!(next(&mut watch).await, Event::Delete { key, .. } if key == handle("page-0")));
}

async fn kubernetes_objects_are_derived(server: &Server) {
    server.send(Method::POST, "/api/v1/namespaces", Some(json!({"metadata": {"name": "prod"}}))).await;
    server.send(Method::POST, "/api/v1/nodes", Some(json!({"metadata": {"name": "n1"}}))).await;
    let pod = json!({"metadata": {"name": "web"}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}});
    server.send(Method::POST, "/api/v1/namespaces/prod/pods", Some(pod)).await;
    let client = server.client().await;
    let key = Key::resource(Kind::WorkloadEndpoint, "prod", "n1-k8s-web-eth0");
    let Value::Resource(mut endpoint) = client.get(&key).await.unwrap().value else { panic!("no resource") };
    if let tortie_model::Resource::WorkloadEndpoint(endpoint) = &mut endpoint {
        endpoint.spec.ip_networks = vec!["10.65.3.9/32".into()];
        endpoint.spec.container_id = "c1".into();
    }
    let written = client.create(&key, &Value::Resource(endpoint)).await.unwrap().value;
    let Value::Resource(tortie_model::Resource::WorkloadEndpoint(written)) = written else {
        panic!("{written:?}")
    };
    assert_eq!(
        (written.spec.ip_networks.as_slice(), written.spec.container_id.as_str()),
        (&["10.65.3.9/32".to_owned()][..], "c1")
    );
    assert!(client.get(&Key::resource(Kind::Profile, "", "kns.prod")).await.is_ok());
    let node = Key::resource(Kind::Node, "", "n1");
    let entry = client.get(&node).await.unwrap();
    let Value::Resource(mut resource) = entry.value else { panic!("no resource") };
    resource.metadata_mut().labels.insert("rack".into(), "7".into());
    let updated = client.update(&node, &Value::Resource(resource.clone()), &entry.revision).await.unwrap();
    let Value::Resource(shown) = updated.value else { panic!("no resource") };
    assert_eq!(shown.metadata().labels["rack"], "7");
    let late = client.update(&node, &Value::Resource(resource), &entry.revision).await;
    assert!(matches!(late, Err(Error::Conflict { .. })), "{late:?}");
}
