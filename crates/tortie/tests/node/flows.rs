//! Flow records of a node with real packets: allowed, denied by a rule, by the end of a tier and for want of a workload, to a
//! service, with staged policies; read from the node and from a collector that receives them.

use crate::world::{NodeFixture, TORTIE, TestNamespace, eventually, run_inside};
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tortie_testkit::{CertificateFiles, CertificateMaker, TestProcess, eventually_showing};

const OPEN_PORT: u16 = 80;
const DENIED_PORT: u16 = 81;
const OTHER_PORT: u16 = 82;
/// Only the service leads to it.
const BACKEND_PORT: u16 = 83;
const SERVICE: &str = "10.96.0.10";
const SERVICE_PORT: u16 = 8080;
const COLLECTOR_PORT: u16 = 7443;

const POLICIES: &str =
    "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: server},
    spec: {selector: guarded == 'yes', types: [Ingress], ingress: [
        {action: Deny, protocol: TCP, destination: {ports: [81]}},
        {action: Allow, protocol: TCP, destination: {ports: [80, 83]}}]}}";

const STAGED_POLICY: &str =
    "{apiVersion: projectcalico.org/v3, kind: StagedGlobalNetworkPolicy, metadata: {name: next},
    spec: {selector: guarded == 'yes', order: 1, types: [Ingress], ingress: [{action: Deny}]}}";

/// Answers connections until the process ends.
fn listen(namespace: &TestNamespace, port: u16) {
    let listener = run_inside(namespace, || TcpListener::bind(("0.0.0.0", port)).unwrap());
    std::thread::spawn(move || listener.incoming().for_each(drop));
}

fn connects(from: &TestNamespace, to: &str, port: u16) -> bool {
    let address = SocketAddr::new(to.parse().unwrap(), port);
    run_inside(from, || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok())
}

/// Starts a collector in the node's namespace.
fn start_collector(world: &NodeFixture, maker: &CertificateMaker) -> TestProcess {
    let server = maker.issue("server", &["localhost"]);
    let mut command = world.host.command(TORTIE);
    command.args(["flows", "serve", "--host", "127.0.0.1", "--port", &COLLECTOR_PORT.to_string()]);
    command.args(["--health-enabled", "false"]);
    command.arg("--cert").arg(server.certificate).arg("--key").arg(server.key);
    command.arg("--ca").arg(maker.authority_file());
    TestProcess::until_first_line(&mut command).0
}

/// Runs `tortie flows ARGS` and returns one JSON object for each line.
fn read_flows(mut command: Command) -> Vec<Value> {
    let output = command.args(["--since", "10m", "-o", "json"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn node_flows(world: &NodeFixture) -> Vec<Value> {
    let mut command = Command::new(TORTIE);
    command.args(["flows", "list", "--run-dir"]).arg(world.dir.path().join("run"));
    command.env_remove("GOLDMANE_HOST");
    read_flows(command)
}

fn collector_flows(world: &NodeFixture, client: &CertificateFiles, authority: &Path) -> Vec<Value> {
    let mut command = world.host.command(TORTIE);
    command.args(["flows", "list", "--server", &format!("localhost:{COLLECTOR_PORT}")]);
    command.arg("--cert").arg(&client.certificate).arg("--key").arg(&client.key).arg("--ca").arg(authority);
    read_flows(command)
}

/// Returns the hits of a flow: name, action and rule.
fn hits(flow: &Value, trace: &str) -> Vec<String> {
    let hits = flow["policies"][trace].as_array().cloned().unwrap_or_default();
    hits.iter()
        .map(|hit| {
            let name = if hit["trigger"].is_null() { &hit["name"] } else { &hit["trigger"]["name"] };
            format!("{} {} {}", name.as_str().unwrap(), hit["action"].as_str().unwrap(), hit["rule_index"])
        })
        .collect()
}

/// Returns the flows from c1 to c2 with this port, reporter and verdict.
fn find<'a>(flows: &'a [Value], port: u16, reporter: &str, action: &str) -> Vec<&'a Value> {
    let matches = |flow: &&Value| {
        flow["source_name"] == "c1"
            && flow["dest_name"] == "c2"
            && flow["dest_port"] == port
            && flow["reporter"] == reporter
            && flow["action"] == action
    };
    flows.iter().filter(matches).collect()
}

/// Returns whether the flows contain both sides of the connections and denials of this test.
fn is_complete(flows: &[Value]) -> bool {
    let has = |port, reporter, action, hit: &str| {
        find(flows, port, reporter, action).iter().any(|flow| hits(flow, "enforced") == [hit])
    };
    // The source has a profile alone.
    let leaves = |port| {
        find(flows, port, "Src", "Allow")
            .iter()
            .any(|flow| matches!(&hits(flow, "enforced")[..], [hit] if hit.ends_with(" Allow 0")))
    };
    leaves(OPEN_PORT)
        && leaves(DENIED_PORT)
        && has(OPEN_PORT, "Dst", "Allow", "server Allow 1")
        && has(BACKEND_PORT, "Dst", "Allow", "server Allow 1")
        && has(DENIED_PORT, "Dst", "Deny", "server Deny 0")
        && has(OTHER_PORT, "Dst", "Deny", "server Deny -1")
}

#[test]
fn packets_become_records_of_both_sides() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let certificates = tempfile::tempdir().unwrap();
    let maker = CertificateMaker::new(certificates.path());
    let client = maker.issue("client", &[]);
    let _collector = start_collector(&world, &maker);
    let (certificate, key) = (client.certificate.display().to_string(), client.key.display().to_string());
    let authority = maker.authority_file();
    let server = format!("localhost:{COLLECTOR_PORT}");
    world.start(&[
        ("FELIX_FLOWLOGSGOLDMANESERVER", &server),
        ("FELIX_TYPHACERTFILE", &certificate),
        ("FELIX_TYPHAKEYFILE", &key),
        ("FELIX_TYPHACAFILE", &authority.display().to_string()),
    ]);
    let (one, two) = (world.container(), world.container());
    let config = world.config();
    let mut guarded = config.clone();
    guarded["tortie_labels"] = json!({"guarded": "yes"});
    world.must("ADD", "c1", &one.path(), &config);
    let address = world.must("ADD", "c2", &two.path(), &guarded).addresses()[0].clone();
    for port in [OPEN_PORT, DENIED_PORT, OTHER_PORT, BACKEND_PORT] {
        listen(&two, port);
    }
    world.calicoctl(&["apply", "-f", "-"], POLICIES);
    let dnat = format!("ip daddr {SERVICE} tcp dport {SERVICE_PORT} dnat to {address}:{BACKEND_PORT}");
    let chain = format!("type nat hook prerouting priority -100; {dnat};");
    world.host.nft(&format!("table ip service {{\nchain pre {{\n{chain}\n}}\n}}\n"));
    eventually("the policy is in force", || !connects(&one, &address, OTHER_PORT));
    eventually("an allowed connection opens", || connects(&one, &address, OPEN_PORT));
    assert!(!connects(&one, &address, DENIED_PORT));
    eventually("a connection to the service opens", || connects(&one, SERVICE, SERVICE_PORT));

    let picture = || format!("{:#?}\n{:#}\n{}", node_flows(&world), world.ask("flows"), world.log());
    eventually_showing("the node has all records", || is_complete(&node_flows(&world)), picture);
    let flows = node_flows(&world);
    let denied = find(&flows, DENIED_PORT, "Dst", "Deny");
    assert!(denied.iter().all(|flow| flow["packets_in"].as_i64() > Some(0)), "{flows:#?}");
    assert_eq!(find(&flows, DENIED_PORT, "Dst", "Allow"), Vec::<&Value>::new(), "{flows:#?}");
    assert_eq!(find(&flows, OPEN_PORT, "Dst", "Deny"), Vec::<&Value>::new(), "{flows:#?}");
    eventually("connections have bytes", || {
        let flows = node_flows(&world);
        let of_side = |side| {
            find(&flows, OPEN_PORT, side, "Allow").iter().any(|flow| flow["bytes_in"].as_i64() > Some(0))
        };
        of_side("Src") && of_side("Dst")
    });
    eventually("the service is named", || {
        let mut list = Command::new(TORTIE);
        list.args(["flows", "list", "-o", "csv", "--run-dir"]).arg(world.dir.path().join("run"));
        let output = list.env_remove("GOLDMANE_HOST").output().unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .any(|line| line.ends_with(&format!("\"{SERVICE}\"")))
    });

    // A staged policy changes the pending verdict alone.
    world.calicoctl(&["apply", "-f", "-"], STAGED_POLICY);
    eventually("the staged policy would deny", || {
        connects(&one, &address, OPEN_PORT);
        let flows = node_flows(&world);
        let allowed = find(&flows, OPEN_PORT, "Dst", "Allow");
        allowed.iter().any(|flow| {
            hits(flow, "pending") == ["next Deny 0"] && hits(flow, "enforced") == ["server Allow 1"]
        })
    });

    // A packet with the address of another workload.
    one.ip("addr add 10.77.9.9/32 dev eth0");
    let spoofed = ["ping", "-c", "1", "-W", "1", "-I", "10.77.9.9", &address];
    assert!(!one.try_exec(&spoofed[..]).status.success());
    eventually("the spoofed packet is recorded", || {
        let flows = node_flows(&world);
        flows
            .iter()
            .any(|flow| flow["protocol"] == "icmp" && hits(flow, "enforced") == ["spoofed source Deny -1"])
    });

    eventually("the collector has the records", || {
        is_complete(&collector_flows(&world, &client, &authority))
    });
    let status = world.ask("flows");
    assert_eq!(status["evaluation"]["disagreements"], 0, "{status:#}\n{}", world.log());
    assert!(status["evaluation"]["agreements"].as_u64() > Some(3), "{status:#}");
    assert_eq!(status["collector"]["connected"], true, "{status:#}");
}
