//! The connection to the node: first sync, changes, reconnects, limits, and the life of the server.

use crate::fixture::{ServerFixture, connect, encode_plan, in_sync, options, workload};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;
use tortie_l7::proto::{v2, v2alpha};
use tortie_l7::{HealthProbe, L7Server, ReplicaAccess, ServeError, TestRequest, UnsyncedVerdict, ask_health};
use tortie_plan::{
    AddressSet, EndpointTier, NodePlan, PlannedPolicy, PlannedRule, PolicyId, RuleAction, SetId, SetKind,
    SetMember, TierDefaultAction, WorkloadPolicy,
};
use tortie_policysync::{
    MAX_MEMBERS_PER_MESSAGE, encode_members, encode_namespace, encode_policy, encode_set,
};
use tortie_testkit::{eventually_async, free_port};

const ALLOWED: i32 = 0;
const DENIED: i32 = 7;
const NOT_SYNCED: i32 = 13;

fn policy_id() -> PolicyId {
    "np/shop/web".parse().unwrap()
}

fn member(address: &str) -> SetMember {
    SetMember::Net(address.parse().unwrap())
}

/// Returns a plan whose only policy allows the members of a set.
fn plan_for(members: &[&str]) -> NodePlan {
    let set = SetId::new("s:friends");
    let mut rule = PlannedRule::new(RuleAction::Allow);
    rule.source.sets = vec![set.clone()];
    let policy = PlannedPolicy { tier: "default".into(), ingress: vec![rule], ..PlannedPolicy::default() };
    let tier = EndpointTier {
        name: "default".into(),
        end: TierDefaultAction::Deny,
        ingress: [policy_id()].into(),
        egress: [].into(),
    };
    let endpoint = WorkloadPolicy {
        interface: "cali1".into(),
        up: true,
        tiers: vec![tier],
        ..WorkloadPolicy::default()
    };
    let members = members.iter().map(|address| member(address)).collect();
    let mut plan = NodePlan::default();
    plan.sets.insert(set, AddressSet { kind: SetKind::Nets, members });
    plan.policies.insert(policy_id(), Arc::new(policy));
    plan.workload_policies.insert(workload(), endpoint);
    plan
}

fn request_from(source: &str) -> TestRequest {
    TestRequest {
        principal: String::new(),
        source: format!("{source}:40000").parse().unwrap(),
        destination: "10.65.0.1:80".parse().unwrap(),
        http: Some(("GET".to_owned(), "/".to_owned())),
    }
}

async fn wait_for_code(fixture: &ServerFixture, request: &TestRequest, code: i32) {
    eventually_async("the verdict changes", async || fixture.check(request).await == code).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_denied_until_in_sync() {
    let fixture = ServerFixture::start(|_| {}).await;
    let request = request_from("10.65.0.2");
    assert_eq!(fixture.check(&request).await, NOT_SYNCED);
    assert!(!ask_health(&fixture.socket, HealthProbe::Readiness).await.unwrap());
    assert!(ask_health(&fixture.socket, HealthProbe::Liveness).await.unwrap());
    fixture.node.set_plan(&plan_for(&["10.65.0.2/32"]));
    fixture.node.disconnect();
    fixture.wait_for_sync().await;
    assert_eq!(fixture.check(&request).await, ALLOWED);
    assert_eq!(fixture.check(&request_from("10.65.0.3")).await, DENIED);
    assert!(ask_health(&fixture.socket, HealthProbe::Readiness).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_apply_to_the_next_request() {
    let fixture = ServerFixture::with_plan(&plan_for(&["10.65.0.2/32"])).await;
    let added = [member("10.65.0.3/32")];
    for payload in encode_members(&SetId::new("s:friends"), &added, &[member("10.65.0.2/32")]) {
        fixture.node.send(&payload);
    }
    wait_for_code(&fixture, &request_from("10.65.0.3"), ALLOWED).await;
    assert_eq!(fixture.check(&request_from("10.65.0.2")).await, DENIED);
    let deny =
        PlannedPolicy { ingress: vec![PlannedRule::new(RuleAction::Deny)], ..PlannedPolicy::default() };
    fixture.node.send(&encode_policy(&policy_id(), Some(&deny)));
    wait_for_code(&fixture, &request_from("10.65.0.3"), DENIED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_sets_are_replaced_as_a_whole() {
    let addresses = (0..u32::try_from(MAX_MEMBERS_PER_MESSAGE).unwrap())
        .map(|number| Ipv4Addr::from(0x0a00_0000 + number));
    let last = Ipv4Addr::new(10, 65, 0, 2);
    let members = addresses.chain([last]).map(|address| SetMember::Net(IpAddr::V4(address).into()));
    let set = AddressSet { kind: SetKind::Nets, members: members.collect() };
    let mut plan = plan_for(&[]);
    let id = SetId::new("s:friends");
    plan.sets.insert(id.clone(), set.clone());
    let fixture = ServerFixture::with_plan(&plan).await;
    let request = request_from(&last.to_string());
    assert_eq!(fixture.check(&request).await, ALLOWED);
    let messages = fixture.metrics.sync_messages.get();
    // The member is in the second message of the set.
    let payloads: Vec<_> = encode_set(&id, &set).collect();
    assert_eq!(payloads.len(), 2);
    payloads.iter().for_each(|payload| fixture.node.send(payload));
    eventually_async("both are received", async || {
        assert_eq!(fixture.check(&request).await, ALLOWED);
        fixture.metrics.sync_messages.get() >= messages + 2
    })
    .await;
    assert_eq!(fixture.check(&request).await, ALLOWED);
    // A set of exactly this size may be followed by another part. Any other message shows that none comes.
    let whole = AddressSet {
        kind: SetKind::Nets,
        members: set.members.iter().take(MAX_MEMBERS_PER_MESSAGE).copied().collect(),
    };
    encode_set(&id, &whole).for_each(|payload| fixture.node.send(&payload));
    fixture.node.send(&encode_namespace("shop", None));
    wait_for_code(&fixture, &request, DENIED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_deleted_while_disconnected_vanish() {
    let mut plan = plan_for(&["10.65.0.2/32"]);
    let stale = AddressSet { kind: SetKind::Nets, members: [member("10.0.0.0/8")].into() };
    plan.sets.insert(SetId::new("s:stale"), stale);
    let mut fixture = ServerFixture::with_plan(&plan).await;
    let request = request_from("10.65.0.2");
    fixture.stop_node().await;
    eventually_async("the loss is noticed", async || !fixture.state.is_connected()).await;
    assert_eq!(fixture.check(&request).await, ALLOWED, "the last state is used");
    // The new connection is not in sync yet: the old state still decides.
    let burst = encode_plan(&plan_for(&["10.65.0.3/32"]));
    let expected = fixture.metrics.sync_messages.get() + burst.len() as u64;
    fixture.node.set_burst(burst);
    fixture.start_node();
    let arrived = async || fixture.metrics.sync_messages.get() >= expected;
    eventually_async("the burst arrives", arrived).await;
    assert_eq!(fixture.check(&request).await, ALLOWED, "the old replica decides");
    fixture.node.send(&in_sync());
    wait_for_code(&fixture, &request, DENIED).await;
    assert_eq!(fixture.check(&request_from("10.65.0.3")).await, ALLOWED);
    let counts = fixture.state.with_replica(|access| match access {
        ReplicaAccess::InSync(replica) => replica.counts(),
        ReplicaAccess::NotSynced | ReplicaAccess::Stale => [0; 3],
    });
    assert_eq!(counts, [1, 0, 1], "policies, profiles and sets");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_policy_fails_as_configured() {
    let mut fixture = ServerFixture::start(|options| {
        options.stale_after = Some(Duration::from_millis(1));
        options.check.not_synced = UnsyncedVerdict::Allow;
    })
    .await;
    let stranger = request_from("10.65.0.9");
    assert_eq!(fixture.check(&stranger).await, ALLOWED, "not synced");
    fixture.node.set_plan(&plan_for(&["10.65.0.2/32"]));
    fixture.node.disconnect();
    wait_for_code(&fixture, &stranger, DENIED).await;
    fixture.stop_node().await;
    wait_for_code(&fixture, &stranger, ALLOWED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversized_policy_is_not_used() {
    let fixture = ServerFixture::start(|options| options.max_policy_bytes = 1 << 20).await;
    let addresses: Vec<String> =
        (0..40_000u32).map(|bits| format!("{}/32", std::net::Ipv4Addr::from(0x0a00_0000 | bits))).collect();
    let members: Vec<&str> = addresses.iter().map(String::as_str).collect();
    fixture.node.set_plan(&plan_for(&members));
    fixture.node.disconnect();
    let refused = async || fixture.metrics.oversized_syncs.get() > 1;
    eventually_async("the policy is refused", refused).await;
    assert_eq!(fixture.check(&request_from("10.0.0.1")).await, NOT_SYNCED);
    fixture.node.set_plan(&plan_for(&["10.0.0.1/32"]));
    wait_for_code(&fixture, &request_from("10.0.0.1"), ALLOWED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_versions_are_answered() {
    let fixture = ServerFixture::with_plan(&plan_for(&["10.65.0.2/32"])).await;
    for (source, expected) in [("10.65.0.2", ALLOWED), ("10.65.0.3", DENIED)] {
        let request = request_from(source).encode();
        let channel = connect(&fixture.socket).await;
        let mut v2 = v2::authorization_client::AuthorizationClient::new(channel.clone());
        let response = v2.check(request.clone()).await.unwrap().into_inner();
        assert_eq!(response.status.unwrap().code, expected);
        let mut v2alpha = v2alpha::authorization_client::AuthorizationClient::new(channel);
        let response = v2alpha.check(request).await.unwrap().into_inner();
        assert_eq!(response.status.unwrap().code, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_socket_is_replaced_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = options(dir.path());
    first.listen_mode = 0o700;
    let socket = first.listen.clone();
    // A crash leaves a socket behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let server = L7Server::bind(first.clone()).await.unwrap();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o700);
    let second = L7Server::bind(first.clone()).await;
    assert!(matches!(second, Err(ServeError::Listen { .. })), "another server listens");
    server.serve(async {}).await.unwrap();
    eventually_async("the socket is removed", async || !socket.exists()).await;
    std::fs::write(&socket, "a file").unwrap();
    assert!(matches!(L7Server::bind(first).await, Err(ServeError::Listen { .. })), "no socket");
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "a file");
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: l7\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_and_termination_are_served() {
    let [metrics, terminate] = [free_port().unwrap(), free_port().unwrap()];
    let fixture = ServerFixture::start(|options| {
        options.metrics = Some(([127, 0, 0, 1], metrics).into());
        options.terminate = Some(("127.0.0.1".to_owned(), terminate));
    })
    .await;
    fixture.node.set_plan(&plan_for(&["10.65.0.2/32"]));
    fixture.node.disconnect();
    fixture.wait_for_sync().await;
    assert_eq!(fixture.check(&request_from("10.65.0.2")).await, ALLOWED);
    assert_eq!(fixture.check(&request_from("10.65.0.3")).await, DENIED);
    let page = tokio::task::spawn_blocking(move || get(metrics, "/metrics")).await.unwrap();
    for line in [
        "tortie_l7_checks_total{result=\"ok\"} 1",
        "tortie_l7_checks_total{result=\"permission-denied\"} 1",
        "tortie_l7_in_sync 1",
        "tortie_l7_policy_sync_connected 1",
        "tortie_l7_policies 1",
        "tortie_l7_rule_checks_total{owner=\"np/shop/web\",direction=\"ingress\",rule=\"1\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "no {line} in\n{page}");
    }
    assert!(page.contains("process_resident_memory_bytes ") && page.contains("tortie_l7_check_duration"));
    let response = tokio::task::spawn_blocking(move || get(terminate, "/terminate")).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let socket = fixture.socket.clone();
    eventually_async("the server ends", async || !socket.exists()).await;
    assert!(fixture.stop().await.is_ok());
}
