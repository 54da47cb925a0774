//! The policy-sync server of a node, with a gRPC client in the place of an HTTP proxy.

use crate::world::{NodeFixture, TestNamespace, eventually, run_inside};
use bytes::Bytes;
use serde_json::{Value, json};
use std::fs;
use std::future::poll_fn;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tortie_plan::{HttpMatch, NodePlan, PlannedRule, PolicyId, SetMember, WorkloadId};
use tortie_policysync::proto::policy_sync_client::PolicySyncClient;
use tortie_policysync::proto::to_dataplane::Payload;
use tortie_policysync::proto::{DataplaneStats, SyncRequest, ToDataplane};
use tortie_policysync::{SyncEvent, decode_message};
use tortie_testkit::StalledRequestBody;

const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Smallest window of a client: a client that does not read blocks the server after so many bytes.
const SMALL_WINDOW_BYTES: u32 = 65_535;
const PORT: u16 = 8080;
const HOSTILE_STREAMS: usize = 10_000;
/// More streams than the clients of a workload may begin in the time that this takes.
const STREAM_STORM: usize = 200;
/// More connections than the socket admits.
const SILENT_CONNECTIONS: usize = 24;

/// A client that applies each message to a replica and checks that nothing in it refers to missing objects.
struct ProxyClient {
    runtime: Runtime,
    client: PolicySyncClient<Channel>,
    stream: Streaming<ToDataplane>,
    replica: NodePlan,
    in_sync: bool,
}

impl ProxyClient {
    /// Opens a stream as soon as the server accepts connections.
    fn open(socket: &Path) -> ProxyClient {
        eventually("the server accepts connections", || UnixStream::connect(socket).is_ok());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let endpoint = endpoint.initial_stream_window_size(SMALL_WINDOW_BYTES);
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        let mut client = PolicySyncClient::new(channel);
        let mut begun = None;
        // Streams of earlier connections may not have ended yet.
        eventually("the server accepts a stream", || {
            begun = runtime.block_on(client.sync(SyncRequest {})).ok();
            begun.is_some()
        });
        let stream = begun.unwrap().into_inner();
        ProxyClient { runtime, client, stream, replica: NodePlan::default(), in_sync: false }
    }

    /// Opens a stream and reads the first burst.
    fn synced(socket: &Path) -> ProxyClient {
        let mut client = ProxyClient::open(socket);
        while !client.in_sync {
            client.read().unwrap();
        }
        client
    }

    /// Reads one message and returns its kind, or the status with which the stream ended.
    fn read(&mut self) -> Result<&'static str, tonic::Status> {
        let next = async { tokio::time::timeout(MESSAGE_TIMEOUT, self.stream.message()).await };
        let message = self.runtime.block_on(next).expect("a message in time")?;
        let message = message.expect("the server does not end streams without a status");
        let kind = match message.payload.as_ref().unwrap() {
            Payload::IpsetUpdate(_) | Payload::IpsetDeltaUpdate(_) => "set",
            Payload::ActivePolicyUpdate(_) => "policy",
            Payload::ActiveProfileUpdate(_) => "profile",
            Payload::WorkloadEndpointUpdate(_) => "endpoint",
            Payload::ServiceAccountUpdate(_) => "account",
            Payload::NamespaceUpdate(_) => "namespace",
            Payload::InSync(_) => "in sync",
            _ => "removal",
        };
        let decoded = decode_message(message).unwrap();
        assert_eq!(decoded.problems, []);
        match decoded.event {
            SyncEvent::InSync => self.in_sync = true,
            SyncEvent::Updates(updates) => updates.into_iter().for_each(|update| self.replica.apply(update)),
            SyncEvent::Other => panic!("an unknown message"),
        }
        self.check_references();
        Ok(kind)
    }

    fn check_references(&self) {
        for (id, policy) in &self.replica.policies {
            for set in policy.ingress.iter().chain(&policy.egress).flat_map(PlannedRule::sets) {
                assert!(self.replica.sets.contains_key(set), "{id} refers to the unknown set {set}");
            }
        }
        for endpoint in self.replica.workload_policies.values() {
            for id in endpoint.tiers.iter().flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter())) {
                assert!(
                    self.replica.policies.contains_key(id),
                    "the endpoint refers to the unknown policy {id}"
                );
            }
        }
    }

    /// Reads until the replica satisfies the condition.
    fn read_until(&mut self, condition: impl Fn(&NodePlan) -> bool) {
        while !condition(&self.replica) {
            self.read().unwrap();
        }
    }

    /// Reads until the server closes the stream.
    fn read_to_end(&mut self) -> tonic::Status {
        loop {
            if let Err(status) = self.read() {
                return status;
            }
        }
    }

    /// Begins streams in a loop until the server has refused some, then waits until it accepts one.
    fn begin_too_many_streams(&mut self) {
        let storm = (0..STREAM_STORM).map(|_| self.runtime.block_on(self.client.sync(SyncRequest {})));
        let refused: Vec<Code> = storm.filter_map(|begun| begun.err().map(|status| status.code())).collect();
        assert!(
            !refused.is_empty() && refused.iter().all(|code| *code == Code::ResourceExhausted),
            "{refused:?}"
        );
        eventually("a stream may begin again", || {
            match self.runtime.block_on(self.client.sync(SyncRequest {})) {
                Ok(response) => self.stream = response.into_inner(),
                Err(_) => return false,
            }
            true
        });
        self.replica = NodePlan::default();
        self.in_sync = false;
        while !self.in_sync {
            self.read().unwrap();
        }
    }

    fn http_match(&self) -> Option<HttpMatch> {
        let id: PolicyId = "gnp/http".parse().unwrap();
        self.replica.policies.get(&id)?.ingress.first()?.http.as_deref().cloned()
    }
}

fn start(world: &mut NodeFixture) {
    let prefix = world.path("sync").display().to_string();
    world.start(&[("FELIX_POLICYSYNCPATHPREFIX", &prefix), ("FELIX_PROMETHEUSMETRICSENABLED", "true")]);
}

fn metrics(world: &NodeFixture) -> String {
    let output = world.host.try_exec(&["curl", "-s", "http://localhost:9091/metrics"]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn write_credentials(world: &NodeFixture, uid: &str, container: &str) {
    let creds = world.path("sync/creds");
    fs::create_dir_all(&creds).unwrap();
    let text = json!({
        "UID": uid, "Workload": container, "Namespace": "default", "ServiceAccount": "default", "Orchestrator": "cni",
    });
    fs::write(creds.join(format!("{uid}.json")), text.to_string()).unwrap();
}

fn socket(world: &NodeFixture, uid: &str) -> PathBuf {
    let path = world.path(&format!("sync/mount/{uid}/socket"));
    eventually("the socket exists", || path.exists());
    path
}

/// Applies a policy that allows HTTP to containers with the label. HTTP conditions exist in ingress rules only.
fn apply_policy(world: &NodeFixture, method: &str, source: &str) {
    let http = json!({"methods": [method], "paths": [{"exact": "/healthz"}]});
    let policy = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "http"},
        "spec": {
            "selector": "guarded == 'yes'", "types": ["Ingress"],
            "ingress": [{"action": "Allow", "protocol": "TCP", "source": {"selector": source}, "http": http}],
        },
    });
    world.calicoctl(&["apply", "-f", "-"], &policy.to_string());
}

/// Attaches two containers: one without policy, one with the policy. Returns the IPv4 address of each.
fn attach_containers(world: &NodeFixture, open: &TestNamespace, guarded: &TestNamespace) -> [String; 2] {
    let labelled = |label: &str| {
        let mut config = world.config();
        config["tortie_labels"] = json!({label: "yes"});
        config
    };
    let address = |container: &str, netns: &TestNamespace, config: &Value| {
        world.must("ADD", container, &netns.path(), config).addresses()[0].clone()
    };
    [address("c1", open, &labelled("open")), address("c2", guarded, &labelled("guarded"))]
}

/// Accepts connections until the process ends.
fn listen_inside(namespace: &TestNamespace) {
    let listener = run_inside(namespace, || TcpListener::bind(("0.0.0.0", PORT)).unwrap());
    std::thread::spawn(move || listener.incoming().for_each(drop));
}

fn connects(from: &TestNamespace, to: &str) -> bool {
    let address = SocketAddr::new(to.parse().unwrap(), PORT);
    run_inside(from, || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok())
}

#[test]
fn policy_reaches_the_proxy_of_a_workload() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    start(&mut world);
    let (open, guarded) = (world.container(), world.container());
    let [source, address] = attach_containers(&world, &open, &guarded);
    apply_policy(&world, "GET", "open == 'yes'");
    write_credentials(&world, "one", "c2");
    let socket = socket(&world, "one");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o777);

    let mut first = ProxyClient::open(&socket);
    let mut kinds = Vec::new();
    while !first.in_sync {
        kinds.push(first.read().unwrap());
    }
    kinds.dedup();
    let order = ["set", "policy", "profile", "endpoint", "account", "namespace", "in sync"];
    let mut expected = order.iter().filter(|kind| kinds.contains(kind));
    assert!(kinds.iter().all(|kind| expected.next() == Some(kind)), "{kinds:?}");
    first.read_until(|plan| plan.policies.keys().any(|id| id.name == "http"));
    let id =
        WorkloadId { orchestrator: "cni".into(), workload: "default/c2".into(), endpoint: "eth0".into() };
    let endpoint = &first.replica.workload_policies[&id];
    assert!(endpoint.up && endpoint.addresses.contains(&address.parse().unwrap()), "{endpoint:?}");
    assert_eq!(first.replica.workload_policies.len(), 1, "no other workloads");
    assert_eq!(first.http_match().unwrap().methods, ["GET"]);
    let member = SetMember::Net(ipnet::IpNet::from(source.parse::<std::net::IpAddr>().unwrap()));
    assert!(first.replica.sets.values().any(|set| set.members.contains(&member)));
    eventually("it is counted", || metrics(&world).contains("tortie_policy_sync_subscribers 1"));

    apply_policy(&world, "POST", "open == 'yes'");
    let methods = |plan: &NodePlan| {
        let policy = plan.policies.values().find(|policy| policy.ingress[0].http.is_some());
        policy.map(|policy| policy.ingress[0].http.as_ref().unwrap().methods.clone())
    };
    first.read_until(|plan| methods(plan) == Some(vec!["POST".to_owned()]));
    let reported = first.runtime.block_on(first.client.report(DataplaneStats::default())).unwrap();
    assert!(reported.into_inner().successful);

    let mut second = ProxyClient::synced(&socket);
    assert_eq!(first.read_to_end().code(), tonic::Code::Aborted, "one stream for each workload");
    assert_eq!(second.replica.policies, first.replica.policies);
    let output = metrics(&world);
    assert!(output.contains("tortie_policy_sync_subscribers 1"), "{output}");
    assert!(output.contains("tortie_policy_sync_refused_streams_total 0"), "{output}");
    second.begin_too_many_streams();
    assert_eq!(second.replica.policies, first.replica.policies);
    let output = metrics(&world);
    assert!(!output.contains("tortie_policy_sync_refused_streams_total 0"), "{output}");

    world.must("DEL", "c2", &guarded.path(), &world.config());
    second.read_until(|plan| plan.workload_policies.is_empty());
    second.read_until(|plan| plan.policies.is_empty() && plan.sets.is_empty());
    fs::remove_file(world.path("sync/creds/one.json")).unwrap();
    assert_eq!(second.read_to_end().code(), tonic::Code::Aborted);
    eventually("the socket is removed", || !socket.parent().unwrap().exists());
}

#[test]
fn hostile_credentials_are_ignored() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    start(&mut world);
    let creds = world.path("sync/creds");
    fs::create_dir_all(&creds).unwrap();
    let text = |uid: &str| json!({"UID": uid, "Workload": "c2", "Namespace": "default"}).to_string();
    // The node must not read a file that is being written: it would report it twice.
    let write = |name: &str, content: &str| {
        fs::write(world.path("written"), content).unwrap();
        fs::rename(world.path("written"), creds.join(name)).unwrap();
    };
    write("a.json", &text("../../evil"));
    write("b.json", &" ".repeat(1 << 20));
    fs::write(world.path("secret"), text("linked")).unwrap();
    symlink(world.path("secret"), creds.join("c.json")).unwrap();
    write("d.json", &text("late")[..10]);
    eventually("each is counted", || {
        metrics(&world).contains("tortie_policy_sync_refused_credentials_total 4")
    });
    write_credentials(&world, "good", "c2");
    socket(&world, "good");
    assert!(!world.path("evil").exists() && !world.path("sync/evil").exists());
    fs::write(creds.join("d.json"), text("late")).unwrap();
    socket(&world, "late");
    let mounted: Vec<_> = fs::read_dir(world.path("sync/mount")).unwrap().collect();
    assert_eq!(mounted.len(), 2, "{mounted:?}");
}

#[test]
fn http_rules_need_a_live_proxy() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    start(&mut world);
    let (open, guarded) = (world.container(), world.container());
    let [source, address] = attach_containers(&world, &open, &guarded);
    listen_inside(&open);
    listen_inside(&guarded);
    assert!(connects(&open, &address) && connects(&guarded, &source), "{}", world.log());
    apply_policy(&world, "GET", "all()");
    // Only connections to the workload are governed, at all times.
    let closed = |reason: &str| {
        eventually(reason, || !connects(&open, &address));
        assert!(connects(&guarded, &source), "{reason}");
    };
    closed("without a proxy");
    write_credentials(&world, "one", "c2");
    let path = socket(&world, "one");
    assert!(!connects(&open, &address), "a socket without a client is not a proxy");

    let client = ProxyClient::synced(&path);
    let opened = || eventually("with a proxy", || connects(&open, &address) && connects(&guarded, &source));
    opened();
    drop(client);
    closed("the proxy is gone");

    // A restart of the daemon interrupts nothing: the proxy connects again within the grace period.
    let client = ProxyClient::synced(&path);
    opened();
    start(&mut world);
    assert!(connects(&open, &address) && connects(&guarded, &source), "{}", world.log());
    drop(client);
    let client = ProxyClient::synced(&socket(&world, "one"));
    assert!(connects(&open, &address) && connects(&guarded, &source), "{}", world.log());

    // A proxy that does not come back counts as gone.
    start(&mut world);
    drop(client);
    closed("the grace period is over");
}

#[test]
fn slow_clients_delay_nothing() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    start(&mut world);
    let (open, guarded, other) = (world.container(), world.container(), world.container());
    attach_containers(&world, &open, &guarded);
    let nets: Vec<String> =
        (0..20_000).map(|number| format!("10.{}.{}.0/24", number / 250, number % 250)).collect();
    let set = |nets: &[String]| {
        let set = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet",
            "metadata": {"name": "many", "labels": {"many": "yes"}}, "spec": {"nets": nets},
        });
        world.calicoctl(&["apply", "-f", "-"], &set.to_string());
    };
    set(&nets);
    apply_policy(&world, "GET", "many == 'yes'");
    write_credentials(&world, "one", "c2");
    let path = socket(&world, "one");
    let mut unread = ProxyClient::open(&path);
    let mut streams = Vec::new();
    eventually("unread streams are limited", || {
        match unread.runtime.block_on(unread.client.sync(SyncRequest {})) {
            Ok(response) => streams.push(response),
            Err(status) => return status.message().contains("does not read"),
        }
        false
    });
    drop((unread, streams));
    let mut client = ProxyClient::open(&path);
    // The first burst is larger than the client's window, and the client does not read.
    for count in [100, 200, 15_000] {
        set(&nets[..count]);
        apply_policy(&world, &format!("M{count}"), "many == 'yes'");
    }
    world.must("ADD", "c3", &other.path(), &world.config());
    let is_current = |plan: &NodePlan| {
        let policy = plan.policies.values().find(|policy| policy.ingress[0].http.is_some());
        policy.is_some_and(|policy| policy.ingress[0].http.as_ref().unwrap().methods == ["M15000"])
            && plan.sets.values().any(|set| set.members.len() == 15_000)
    };
    client.read_until(is_current);
    client.read_until(|plan| !plan.workload_policies.is_empty());
}

/// Sends a request with these bytes as its message, and these bytes of headers. Returns the code of the response.
async fn send_raw(mut channel: Channel, method: &str, message: &str, header_bytes: usize) -> Option<Code> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let body = [&[0][..], &length, message.as_bytes()].concat();
    let request = http::Request::post(format!("http://localhost/felix.PolicySync/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("x-large", "h".repeat(header_bytes))
        .body(Body::new(String::from_utf8(body).unwrap()))
        .unwrap();
    poll_fn(|context| channel.poll_ready(context)).await.ok()?;
    let response = channel.call(request).await.ok()?;
    Some(Status::from_header_map(response.headers())?.code())
}

/// Begins a report that is never completed, and waits for its end.
async fn stall(mut channel: Channel) {
    let body = StalledRequestBody::new(60 << 10, Bytes::from_static(b"\n"));
    let request = http::Request::post("http://localhost/felix.PolicySync/Report")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(body))
        .unwrap();
    if poll_fn(|context| channel.poll_ready(context)).await.is_ok() {
        let _ = channel.call(request).await;
    }
}

/// Opens connections that never send the whole connection preface of HTTP/2, and waits until the server has closed them.
async fn stay_silent(socket: &str) {
    let path = socket.strip_prefix("unix://").unwrap();
    let mut silent = JoinSet::new();
    for sent in [&b""[..], b"PRI * HTTP/2.0"].into_iter().cycle().take(SILENT_CONNECTIONS) {
        let mut stream = tokio::net::UnixStream::connect(path).await.unwrap();
        silent.spawn(async move {
            // An error means that the server has closed the connection already.
            if stream.write_all(sent).await.is_ok() {
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        });
    }
    tokio::time::timeout(MESSAGE_TIMEOUT, silent.join_all()).await.expect("silent connections are closed");
}

async fn attack(socket: String) {
    let endpoint = Endpoint::from_shared(socket.clone()).unwrap();
    let channel = endpoint.connect().await.unwrap();
    for garbage in ["x", "\u{1}\u{2}\u{3}", "\n\u{7f}", "\u{12}\u{12}\u{12}"] {
        for method in ["Sync", "Report"] {
            let code = send_raw(channel.clone(), method, garbage, 0).await;
            assert!(code.is_some_and(|code| code != Code::Ok), "{method} {garbage:?}: {code:?}");
        }
    }
    for size in [20 << 10, 200 << 10] {
        let channel = endpoint.connect().await.unwrap();
        let code = send_raw(channel, "Report", "", size).await;
        assert_ne!(code, Some(Code::Ok), "{size} bytes of headers");
    }
    let mut streams = JoinSet::new();
    for _ in 0..4 {
        let client = PolicySyncClient::new(endpoint.connect().await.unwrap());
        for _ in 0..HOSTILE_STREAMS / 4 {
            let mut client = client.clone();
            streams.spawn(async move { client.report(DataplaneStats::default()).await.is_ok() });
        }
    }
    // The server refuses streams above its limits.
    let reported = streams.join_all().await.into_iter().filter(|reported| *reported).count();
    assert!(reported > 0, "the server answers nothing");
    // More connections than the socket admits, with more streams than a connection admits.
    let mut stalled = JoinSet::new();
    for _ in 0..24 {
        if let Ok(channel) = endpoint.connect().await {
            (0..16).for_each(|_| drop(stalled.spawn(stall(channel.clone()))));
        }
    }
    tokio::time::timeout(MESSAGE_TIMEOUT, stalled.join_all()).await.expect("half-open streams end");
    stay_silent(&socket).await;
}

#[test]
fn hostile_clients_do_not_disturb_the_proxy() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    start(&mut world);
    let (open, guarded, late) = (world.container(), world.container(), world.container());
    let [_, address] = attach_containers(&world, &open, &guarded);
    listen_inside(&guarded);
    apply_policy(&world, "GET", "all()");
    write_credentials(&world, "one", "c2");
    let path = socket(&world, "one");
    let mut proxy = ProxyClient::synced(&path);
    eventually("with a proxy", || connects(&open, &address));

    let socket = format!("unix://{}", path.display());
    let runtime = Runtime::new().unwrap();
    let attack = runtime.spawn(attack(socket));
    // During the attack the node serves its other clients.
    world.must("ADD", "c3", &late.path(), &world.config());
    apply_policy(&world, "POST", "all()");
    proxy.read_until(|plan| {
        let mut policies = plan.policies.values();
        policies.any(|policy| policy.ingress[0].http.as_deref().is_some_and(|http| http.methods == ["POST"]))
    });
    assert!(connects(&open, &address), "{}", world.log());
    runtime.block_on(attack).unwrap();
    apply_policy(&world, "PUT", "all()");
    proxy.read_until(|plan| {
        let mut policies = plan.policies.values();
        policies.any(|policy| policy.ingress[0].http.as_deref().is_some_and(|http| http.methods == ["PUT"]))
    });
    assert!(connects(&open, &address), "{}", world.log());
    let output = metrics(&world);
    assert!(output.contains("tortie_policy_sync_subscribers 1"), "{output}");
}

#[test]
fn the_newest_credentials_of_a_workload_count() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    start(&mut world);
    let (open, guarded) = (world.container(), world.container());
    let [_, address] = attach_containers(&world, &open, &guarded);
    listen_inside(&guarded);
    apply_policy(&world, "GET", "all()");
    write_credentials(&world, "old", "c2");
    let mut old = ProxyClient::synced(&socket(&world, "old"));
    eventually("with a proxy", || connects(&open, &address));
    // A pod of the same name: the proxy of the old one does not count for it.
    write_credentials(&world, "new", "c2");
    assert_eq!(old.read_to_end().code(), tonic::Code::Aborted);
    eventually("the new proxy is not in sync", || !connects(&open, &address));
    let old_socket = world.path("sync/mount/old/socket");
    assert!(UnixStream::connect(&old_socket).is_err(), "the old proxy cannot come back");
    let new = ProxyClient::synced(&socket(&world, "new"));
    eventually("the new proxy is in sync", || connects(&open, &address));
    // The volume of the old pod is unmounted.
    fs::remove_file(world.path("sync/creds/old.json")).unwrap();
    eventually("its credentials are gone", || !world.path("sync/mount/old").exists());
    assert!(connects(&open, &address), "{}", world.log());
    drop(new);
    eventually("the proxy is gone", || !connects(&open, &address));
}
