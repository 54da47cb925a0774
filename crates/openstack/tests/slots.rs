//! Slots and resyncs with a real etcd, through the daemon's socket.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use tempfile::TempDir;
use tortie_openstack::{OpenStackOptions, run};
use tortie_store::StoreConfig;
use tortie_testkit::{Etcd, TestProcess, eventually};

const POLICIES: &str = "/calico/resources/v3/projectcalico.org/networkpolicies/openstack/ossg.default.";

struct Daemon {
    runtime: Option<tokio::runtime::Runtime>,
    etcd: Etcd,
    dir: TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Daemon {
    fn start() -> Daemon {
        Daemon::start_in(make_directory())
    }

    fn start_in(dir: TempDir) -> Daemon {
        let etcd = Etcd::start().unwrap();
        let options = OpenStackOptions {
            socket: dir.path().join("d.sock"),
            region: String::new(),
            elector_name: "ctl-1".to_owned(),
            store: StoreConfig { etcd_endpoints: etcd.endpoint(), ..StoreConfig::default() },
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        runtime.spawn(run(options, move || sender.send(()).unwrap()));
        receiver.recv().unwrap();
        Daemon { runtime: Some(runtime), etcd, dir }
    }

    fn request(&self, verb: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut stream = UnixStream::connect(self.dir.path().join("d.sock")).unwrap();
        let text = body.to_string();
        let length = text.len();
        let head = format!(
            "{verb} {path} HTTP/1.1\r\nhost: d\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        // One write: the server may respond and close the connection before it has read a body that it does not need.
        stream.write_all(format!("{head}{text}").as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_else(|_| json!(body)))
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let (status, response) = self.request("POST", path, body);
        assert_eq!(status, 200, "{path} {body}: {response}");
        response
    }

    fn observe(&self, group: &str) -> Value {
        self.post("/v1/observe", &json!({"slots": [slot(group)]}))["seen"][0].clone()
    }

    /// Writes a group with one rule and returns the outcome.
    fn write(&self, group: &str, seen: &Value, protocol: &str) -> Value {
        let object = json!({"security_group": security_group(group, protocol)});
        let body = json!({"writes": [{"slot": slot(group), "seen": seen}], "object": object});
        self.post("/v1/write", &body)["reports"][0]["outcome"].clone()
    }

    fn selectors(&self) -> usize {
        self.etcd.ctl(&["get", POLICIES, "--prefix", "--keys-only"]).unwrap().split_whitespace().count()
    }

    /// Runs the policy phase of a full resync with these groups and returns the report.
    fn resync(&self, groups: &[Value], force: bool) -> Value {
        let id = &self.post("/v1/resync", &json!({"scope": {"full": true}}))["id"];
        self.post(&format!("/v1/resync/{id}/begin"), &json!({"phase": "policy"}));
        self.post(&format!("/v1/resync/{id}/objects"), &json!({"objects": groups}));
        self.post(&format!("/v1/resync/{id}/end"), &json!({"neutron_read_ms": 7, "force": force}));
        self.post(&format!("/v1/resync/{id}/finish"), &json!({}))
    }
}

/// Makes a directory with a short path, because that of a Unix socket is limited.
fn make_directory() -> TempDir {
    tempfile::Builder::new().prefix("tortie-os-").tempdir_in("/tmp").unwrap()
}

fn slot(group: &str) -> Value {
    json!({"kind": "policy", "security_group_id": group})
}

fn security_group(id: &str, protocol: &str) -> Value {
    let rule = json!({"id": "r1", "direction": "ingress", "ethertype": "IPv4", "protocol": protocol});
    json!({"id": id, "name": "web", "security_group_rules": [rule]})
}

#[test]
fn outdated_observations_change_nothing() {
    let daemon = Daemon::start();
    let first = daemon.observe("sg1");
    assert_eq!(first, "absent");
    assert_eq!(daemon.write("sg1", &first, "tcp"), "created");
    assert_eq!(daemon.write("sg1", &first, "udp"), "conflict", "another worker was faster");
    let second = daemon.observe("sg1");
    assert_eq!(daemon.write("sg1", &second, "tcp"), "correct");
    assert_eq!(daemon.write("sg1", &second, "udp"), "updated");
    assert_eq!(daemon.write("sg1", &second, "tcp"), "conflict");
    // Half-written entries are replaced.
    daemon.etcd.ctl(&["put", &format!("{POLICIES}sg1"), "{\"spec\":["]).unwrap();
    let unreadable = daemon.observe("sg1");
    assert_eq!(unreadable, "unreadable");
    assert_eq!(daemon.write("sg1", &unreadable, "tcp"), "updated");
    // An object without required fields keeps the entry.
    let seen = daemon.observe("sg1");
    let body =
        json!({"writes": [{"slot": slot("sg1"), "seen": seen}], "object": {"security_group": {"name": "x"}}});
    let outcome = daemon.post("/v1/write", &body)["reports"][0]["outcome"].clone();
    assert!(outcome["invalid"].as_str().unwrap().contains("id"), "{outcome}");
    let body = json!({"writes": [{"slot": slot("sg1"), "seen": daemon.observe("sg1")}], "object": {}});
    assert_eq!(daemon.post("/v1/write", &body)["reports"][0]["outcome"], "deleted");
    assert_eq!(daemon.selectors(), 0);

    let (status, response) = daemon.request("POST", "/v1/observe", &json!({"slots": [{"kind": "x"}]}));
    assert_eq!(status, 400, "{response}");
    let many = vec![slot("sg1"); 1001];
    let (status, response) = daemon.request("POST", "/v1/observe", &json!({"slots": many}));
    assert_eq!(status, 400);
    assert!(response["error"].as_str().unwrap().contains("at most 1000"), "{response}");
    let (_, page) = daemon.request("GET", "/metrics", &Value::Null);
    assert!(page.as_str().unwrap().contains("tortie_openstack_conflicts_total 2"), "{page}");
}

#[test]
fn resyncs_write_only_differences() {
    let daemon = Daemon::start();
    let group = |number: usize| json!({"security_group": security_group(&format!("sg{number}"), "tcp")});
    let groups: Vec<Value> = (0..30).map(group).collect();
    let report = daemon.resync(&groups, false);
    assert_eq!(
        (&report["ok"], &report["phases"]["policy"]["created"]),
        (&json!(true), &json!(30)),
        "{report}"
    );
    assert_eq!(report["phases"]["felix_config"]["updated"], 2, "{report}");

    // One changed, one superfluous, one that cannot be read.
    let mut changed = groups.clone();
    changed[0] = json!({"security_group": security_group("sg0", "udp")});
    changed[1] = json!({"security_group": {"id": "sg1", "security_group_rules": 5}});
    changed.pop();
    let report = daemon.resync(&changed, false);
    let phase = &report["phases"]["policy"];
    for (field, count) in [
        ("correct", 27),
        ("updated", 1),
        ("deleted", 1),
        ("invalid", 1),
        ("etcd_items", 30),
        ("neutron_read_ms", 7),
    ] {
        assert_eq!(phase[field], count, "{field}: {report}");
    }
    assert!(report["problems"][0].as_str().unwrap().starts_with("sg1: "), "{report}");
    assert_eq!(daemon.selectors(), 29, "the entry of the invalid group is kept");

    // An empty Neutron is more likely a wrong database than a real change.
    let report = daemon.resync(&[], false);
    assert_eq!(report["ok"], false, "{report}");
    assert!(report["error"].as_str().unwrap().contains("29 of 29"), "{report}");
    assert_eq!(daemon.selectors(), 29);
    let report = daemon.resync(&[], true);
    assert_eq!(
        (&report["ok"], &report["phases"]["policy"]["deleted"]),
        (&json!(true), &json!(29)),
        "{report}"
    );
    let (status, _) = daemon.request("POST", "/v1/resync/99/begin", &json!({"phase": "policy"}));
    assert_eq!(status, 404);
}

#[test]
fn created_slots_are_verified_after_deletions() {
    let daemon = Daemon::start();
    let id = &daemon.post("/v1/resync", &json!({"scope": {"full": true}}))["id"];
    daemon.post(&format!("/v1/resync/{id}/begin"), &json!({"phase": "policy"}));
    let groups = json!([{"security_group": security_group("sg1", "tcp")}]);
    daemon.post(&format!("/v1/resync/{id}/objects"), &json!({"objects": groups}));
    let ended = daemon.post(&format!("/v1/resync/{id}/end"), &json!({}));
    assert_eq!(ended, json!({"verify": [], "created": [slot("sg1")]}));
    // The group was deleted before its policy was written, so that the hook found no policy.
    let seen = daemon.post("/v1/observe", &json!({"slots": ended["created"]}))["seen"][0].clone();
    let body = json!({"writes": [{"slot": ended["created"][0], "seen": seen}], "object": {}});
    assert_eq!(daemon.post("/v1/write", &body)["reports"][0]["outcome"], "deleted");
    assert_eq!(daemon.selectors(), 0);
}

/// Program of a process of Neutron that could not send two changes.
const MISS_TWO_CHANGES: &str = "
import sys, time
from tortie_neutron.link import DaemonLink
from tortie_neutron.missed import MissedChanges
missed = MissedChanges(DaemonLink(sys.argv[1], 20))
missed.record()
missed.record()
print('missed', flush=True)
while missed.count:
    time.sleep(0.05)
";

#[test]
fn missed_changes_are_reported_without_others() {
    let dir = make_directory();
    let mut python = Command::new("python3");
    python.args(["-c", MISS_TWO_CHANGES]).arg(dir.path().join("d.sock"));
    python.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/../../openstack"));
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    let (mut driver, line) = TestProcess::until_first_line(&mut python);
    assert_eq!(line.trim(), "missed");
    let daemon = Daemon::start_in(dir);
    eventually("the driver reports", || driver.ended());
    let (status, response) = daemon.request("GET", "/v1/commands/0", &Value::Null);
    assert_eq!((status, &response["commands"][0]["op"]), (200, &json!("resync")), "{response}");
}
