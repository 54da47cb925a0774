//! A node on an etcd cluster of three members with TLS, all of them in its ETCD_ENDPOINTS: the leader is killed, and the
//! member that the node uses is cut off from the others.

use crate::world::{NodeFixture, eventually};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use tortie_testkit::{CertificateFiles, CertificateMaker, TestProcess};

/// User of the member that can be cut off: nft matches its packets by the user.
const SEPARATE_USER: &str = "65534";
const FIRST_CLIENT_PORT: u16 = 23790;
const FIRST_PEER_PORT: u16 = 23800;

/// Three members in the namespace of the host. Dropping it kills them.
struct EtcdMembers {
    processes: Vec<Option<TestProcess>>,
    certificates: CertificateFiles,
    authority: PathBuf,
    dir: PathBuf,
}

impl EtcdMembers {
    fn start(world: &NodeFixture) -> EtcdMembers {
        let dir = world.path("etcd");
        let maker = CertificateMaker::new(&dir);
        let certificates = maker.issue_for_loopback("etcd");
        for path in [&world.path(""), &dir] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
        }
        std::fs::set_permissions(&certificates.key, PermissionsExt::from_mode(0o644)).unwrap();
        let authority = maker.authority_file();
        let mut members = EtcdMembers { processes: vec![None, None, None], certificates, authority, dir };
        for number in 0..3 {
            members.start_member(world, number);
        }
        members
    }

    fn start_member(&mut self, world: &NodeFixture, number: usize) {
        let url = |scheme: &str, first: u16, number: usize| {
            format!("{scheme}://127.0.0.1:{}", first + number as u16)
        };
        let peers: Vec<String> =
            (0..3).map(|other| format!("m{other}={}", url("http", FIRST_PEER_PORT, other))).collect();
        let client = url("https", FIRST_CLIENT_PORT, number);
        let peer = url("http", FIRST_PEER_PORT, number);
        let user = if number == 0 { SEPARATE_USER } else { "0" };
        let mut command = world.host.command("setpriv");
        command
            .args(["--reuid", user, "--clear-groups", "etcd", "--log-level", "error"])
            .args(["--name", &format!("m{number}"), "--initial-cluster", &peers.join(",")])
            .arg("--data-dir")
            .arg(self.dir.join(format!("m{number}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .arg("--trusted-ca-file")
            .arg(&self.authority)
            .arg("--cert-file")
            .arg(&self.certificates.certificate)
            .arg("--key-file")
            .arg(&self.certificates.key)
            .arg("--client-cert-auth");
        self.processes[number] = Some(TestProcess::quiet(&mut command));
    }

    /// Returns the variables that make a client use all members, the member that can be cut off first.
    fn variables(&self) -> Vec<(&'static str, String)> {
        let endpoints: Vec<String> =
            (0..3).map(|number| format!("https://127.0.0.1:{}", FIRST_CLIENT_PORT + number)).collect();
        vec![
            ("ETCD_ENDPOINTS", endpoints.join(",")),
            ("ETCD_CA_CERT_FILE", self.authority.display().to_string()),
            ("ETCD_CERT_FILE", self.certificates.certificate.display().to_string()),
            ("ETCD_KEY_FILE", self.certificates.key.display().to_string()),
        ]
    }

    /// Returns the index of the leader, once there is one.
    fn leader(&self, world: &NodeFixture) -> Option<usize> {
        (0..3).find(|number| {
            let mut command = world.host.command("etcdctl");
            command
                .env("ETCDCTL_API", "3")
                .args(["--endpoints", &format!("https://127.0.0.1:{}", FIRST_CLIENT_PORT + *number as u16)])
                .arg("--cacert")
                .arg(&self.authority)
                .arg("--cert")
                .arg(&self.certificates.certificate)
                .arg("--key")
                .arg(&self.certificates.key)
                .args(["endpoint", "status", "-w", "json"]);
            let output = command.output().unwrap();
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let status = &status[0]["Status"];
            status["leader"].is_u64() && status["leader"] == status["header"]["member_id"]
        })
    }
}

/// Runs calicoctl with all members as endpoints.
fn calicoctl(world: &NodeFixture, members: &EtcdMembers, args: &[&str], input: &str) -> String {
    let mut command: Command = world.host.command(&world.path("bin/calicoctl").display().to_string());
    command.args(args).envs(members.variables());
    let output = tortie_testkit::output(&mut command, input);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn count_endpoints(world: &NodeFixture, members: &EtcdMembers) -> usize {
    let text = calicoctl(world, members, &["get", "workloadendpoints", "-a", "-o", "json"], "");
    let list: Value = serde_json::from_str(&text).unwrap();
    list["items"].as_array().unwrap().len()
}

/// Applies a policy and waits until the node enforces it.
fn policy_arrives(world: &NodeFixture, members: &EtcdMembers, name: &str) {
    let policy = format!(
        "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: {name}}}\nspec: {{selector: all(), \
         ingress: [{{action: Allow}}], egress: [{{action: Allow}}]}}\n"
    );
    calicoctl(world, members, &["apply", "-f", "-"], &policy);
    eventually(&format!("{name} is in force"), || {
        world.host.exec("nft list table inet tortie").contains(name)
    });
}

#[test]
fn a_node_survives_failures_of_etcd_members() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    world.host.ip("link set lo up");
    let mut members = EtcdMembers::start(&world);
    eventually("the members have a leader", || members.leader(&world).is_some());
    let variables = members.variables();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    world.start(&variables);
    let config = world.config();
    let pods: Vec<_> = (0..4).map(|_| world.container()).collect();
    world.must("ADD", "c0", &pods[0].path(), &config);
    policy_arrives(&world, &members, "before");

    let leader = members.leader(&world).unwrap();
    members.processes[leader] = None;
    world.must("ADD", "c1", &pods[1].path(), &config);
    policy_arrives(&world, &members, "without-leader");
    members.start_member(&world, leader);
    eventually("the members have a leader", || members.leader(&world).is_some());

    // The first member loses its peers; clients still reach it.
    world.host.nft(&format!(
        "table inet cut {{ chain output {{ type filter hook output priority -300;
            tcp dport {FIRST_PEER_PORT} drop;
            tcp dport {{ {}, {} }} meta skuid {SEPARATE_USER} drop; }}; }}",
        FIRST_PEER_PORT + 1,
        FIRST_PEER_PORT + 2
    ));
    world.must("ADD", "c2", &pods[2].path(), &config);
    policy_arrives(&world, &members, "with-partition");
    world.host.nft("delete table inet cut");
    world.must("ADD", "c3", &pods[3].path(), &config);
    policy_arrives(&world, &members, "after");
    let check = calicoctl(&world, &members, &["ipam", "check"], "");
    assert!(check.contains("found 0 problems"), "{check}");
    assert_eq!(count_endpoints(&world, &members), 4);
    for (number, pod) in pods.iter().enumerate() {
        world.must("DEL", &format!("c{number}"), &pod.path(), &config);
    }
    assert_eq!(count_endpoints(&world, &members), 0);
}
