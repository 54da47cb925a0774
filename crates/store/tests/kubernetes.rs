//! The Kubernetes backend against a real API server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{next, object, within};
use http::{Method, Request};
use serde_json::{Value as Json, json};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tortie_model::ipam::{Block, Handle};
use tortie_model::key::AffinityType;
use tortie_model::{Key, KeyRange, Kind, Value, schema};
use tortie_store::{Client, Config, Error, Event, Page, Resources};
use tortie_testkit::{Etcd, Process, free_port};

/// An API server on an etcd of its own. Gone, with its data, on drop.
struct Server {
    _process: Process,
    etcd: Etcd,
    dir: tempfile::TempDir,
    port: u16,
}

/// The API server's program, which is not built by Cargo.
fn program() -> PathBuf {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kube/build");
    let output = Command::new(script).arg("where").output().expect("scripts/kube/build");
    let program = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    assert!(program.is_file(), "{} is missing: run `make kube` first", program.display());
    program
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
        let mut command = Command::new(program());
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
            // Continuations are read from etcd, where the test can make the past go away.
            .arg("--feature-gates=ListFromCacheSnapshot=false")
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let server = Server { _process: Process::start(&mut command), etcd, dir, port };
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

    /// The definitions of our kinds in both API groups, until they are served.
    async fn install(&self) {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let crds: Vec<Json> =
            schema::crds().into_iter().flat_map(|crd| [in_first_group(&crd), crd]).collect();
        let mut refused = Vec::new();
        for crd in &crds {
            if let Err(error) = self.try_send(Method::POST, path, Some(crd.clone())).await {
                refused.push(format!("{}: {error}", crd["metadata"]["name"]));
            }
        }
        assert!(refused.is_empty(), "refused CRDs:\n{}", refused.join("\n"));
        for crd in &crds {
            let text = |pointer: &str| crd.pointer(pointer).unwrap().as_str().unwrap();
            let (group, plural) = (text("/spec/group"), text("/spec/names/plural"));
            let path = format!("/apis/{group}/{}/{plural}?limit=1", text("/spec/versions/0/name"));
            within(&path, async {
                while self.try_send(Method::GET, &path, None).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            })
            .await;
        }
    }

    fn config(&self, group: &str) -> Config {
        Config {
            calico_api_group: group.into(),
            datastore_type: "kubernetes".into(),
            k8s_api_endpoint: format!("https://127.0.0.1:{}", self.port),
            k8s_api_token: "secret".into(),
            k8s_insecure_skip_tls_verify: true,
            ..Config::default()
        }
    }

    async fn client(&self, group: &str) -> Client {
        Client::connect(&self.config(group)).await.unwrap()
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

/// The definition of the same kind in the group of older installations, which has no schema to speak of.
fn in_first_group(crd: &Json) -> Json {
    let mut crd = crd.clone();
    if crd["spec"]["names"]["kind"] == "IPAMConfiguration" {
        crd["spec"]["names"] = json!({"kind": "IPAMConfig", "listKind": "IPAMConfigList",
            "plural": "ipamconfigs", "singular": "ipamconfig"});
    }
    let plural = crd["spec"]["names"]["plural"].as_str().unwrap().to_owned();
    crd["metadata"]["name"] = format!("{plural}.crd.projectcalico.org").into();
    crd["spec"]["group"] = "crd.projectcalico.org".into();
    crd["spec"]["versions"] = json!([{"name": "v1", "served": true, "storage": true, "schema":
        {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]);
    crd
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
    for group in ["projectcalico.org/v3", "crd.projectcalico.org/v1"] {
        let client = server.client(group).await;
        records_live_and_die(&client).await;
        blocks_keep_every_field(&client).await;
        resources_live_and_die(&client).await;
        policies_keep_their_names(&client).await;
        lists_come_in_pages(&client).await;
        watches_report_a_snapshot_then_every_change(&client).await;
        a_forgotten_moment_means_a_new_list(&server, &client).await;
        what_is_not_kept_is_refused(&client).await;
    }
    kubernetes_objects_are_derived(&server).await;
}

async fn records_live_and_die(client: &Client) {
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

async fn resources_live_and_die(client: &Client) {
    let resources = Resources::new(client.clone());
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

/// A block as IPAM writes it, every field of it in use.
async fn blocks_keep_every_field(client: &Client) {
    let block: Block = serde_json::from_value(json!({
        "cidr": "10.65.7.0/30", "affinity": "host:n1", "allocations": [0, null, 1, null], "unallocated": [1, 3],
        "attributes": [
            {"handle_id": "net.a", "secondary": {"node": "n1"}},
            {"handle_id": null, "secondary": {}},
        ],
        // More than a double holds.
        "sequenceNumber": 1_789_000_000_123_456_789_u64,
        "sequenceNumberForAllocation": {"0": 1_789_000_000_123_456_788_u64, "2": 5},
        "deleted": false,
    }))
    .unwrap();
    let key = Key::Block { cidr: block.cidr };
    let created = client.create(&key, &Value::Block(block.clone())).await.unwrap();
    assert_eq!(created.value, Value::Block(block.clone()));
    assert_eq!(client.get(&key).await.unwrap(), created);
    let freed = Block { allocations: vec![None, None, Some(1), None], unallocated: vec![1, 3, 0], ..block };
    let updated = client.update(&key, &Value::Block(freed.clone()), &created.revision).await.unwrap();
    assert_eq!(updated.value, Value::Block(freed));
    let all = client.list(&KeyRange::Blocks { ip_version: Some(4) }).await.unwrap();
    assert_eq!((all.entries, all.unreadable.len()), (vec![updated.clone()], 0));
    client.delete(&key, Some(&updated.revision)).await.unwrap();
    assert!(client.list(&KeyRange::Blocks { ip_version: Some(4) }).await.unwrap().entries.is_empty());
}

/// Policies of a tier, validated by the schema where there is one.
async fn policies_keep_their_names(client: &Client) {
    let resources = Resources::new(client.clone());
    let tier = object(Kind::Tier, "", "sec", json!({"order": 10.0, "defaultAction": "Deny"}));
    resources.create(tier).await.unwrap();
    let spec = json!({"tier": "sec", "selector": "app == 'web'", "types": ["Ingress"],
        "ingress": [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [80, "8000:8080"]}}]});
    let policy = object(Kind::GlobalNetworkPolicy, "", "sec.web", spec);
    let created = resources.create(policy).await.unwrap();
    assert_eq!(created.metadata().name, "sec.web");
    let listed = client.list(&KeyRange::all(Kind::GlobalNetworkPolicy)).await.unwrap();
    assert_eq!(listed.entries.len(), 1, "{listed:?}");
    assert_eq!(resources.get(Kind::GlobalNetworkPolicy, "", "sec.web").await.unwrap(), created);
    resources.delete(Kind::GlobalNetworkPolicy, "", "sec.web", None).await.unwrap();
    resources.delete(Kind::Tier, "", "sec", None).await.unwrap();
}

async fn lists_come_in_pages(client: &Client) {
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

async fn watches_report_a_snapshot_then_every_change(client: &Client) {
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

/// The server answers 410 to a watch and to a continuation from before what it remembers.
async fn a_forgotten_moment_means_a_new_list(server: &Server, client: &Client) {
    let before = client.list(&KeyRange::Handles).await.unwrap();
    let mut watch = client.watch(KeyRange::Handles, Some(1.into()));
    let mut seen = Vec::new();
    assert!(matches!(next(&mut watch).await, Event::Reset));
    loop {
        match next(&mut watch).await {
            Event::Put(entry) => seen.push(entry),
            Event::InSync(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, before.entries);
    let mut page = Page::first(NonZeroUsize::new(2).unwrap());
    page.after = client.list_page(&KeyRange::Handles, &page).await.unwrap().next;
    assert!(page.after.is_some());
    client.create(&handle("after"), &counting(1)).await.unwrap();
    let latest = client.list(&KeyRange::Handles).await.unwrap().revision.to_string();
    server.etcd.ctl(&["compact", &latest]).unwrap();
    let late = client.list_page(&KeyRange::Handles, &page).await;
    assert!(matches!(late, Err(Error::Expired(_))), "{late:?}");
    assert_eq!(client.list(&KeyRange::Handles).await.unwrap().entries.len(), before.entries.len() + 1);
}

/// Not a verb is done by half: an error names it.
async fn what_is_not_kept_is_refused(client: &Client) {
    let key = Key::FelixStatus { region: String::new(), host: "n1".into() };
    let refused = client.apply(&handle("short"), &counting(1), Some(Duration::from_secs(60))).await;
    assert!(matches!(refused, Err(Error::NotSupported { operation: "Apply", .. })), "{refused:?}");
    assert!(matches!(client.get(&key).await, Err(Error::DoesNotExist { .. })));
    let profile = Key::resource(Kind::Profile, "", "kns.default");
    let entry = client.get(&profile).await.unwrap();
    let refused = client.update(&profile, &entry.value, &entry.revision).await;
    assert!(matches!(refused, Err(Error::NotSupported { operation: "Update", .. })), "{refused:?}");
    let node = object(Kind::Node, "", "made", json!({}));
    let refused = client.create(&Key::resource(Kind::Node, "", "made"), &Value::Resource(node)).await;
    assert!(matches!(refused, Err(Error::NotSupported { operation: "Create", .. })), "{refused:?}");
}

async fn kubernetes_objects_are_derived(server: &Server) {
    server.send(Method::POST, "/api/v1/namespaces", Some(json!({"metadata": {"name": "prod"}}))).await;
    server.send(Method::POST, "/api/v1/nodes", Some(json!({"metadata": {"name": "n1"}}))).await;
    let pod = json!({"metadata": {"name": "web"}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}});
    server.send(Method::POST, "/api/v1/namespaces/prod/pods", Some(pod)).await;
    let client = server.client("projectcalico.org/v3").await;
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
