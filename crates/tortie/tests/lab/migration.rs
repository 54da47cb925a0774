//! Migrates the datastore from the embedded store to etcd and back while pods exchange traffic.

use crate::pinger::ContinuousPing;
use crate::{TestLab, family};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A datastore process, killed on drop.
struct MigrationStore {
    child: Child,
    endpoint: String,
}

impl MigrationStore {
    fn start(dir: &Path, mut command: Command, endpoint: String, socket: &Path) -> MigrationStore {
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let child = command.current_dir(dir).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let store = MigrationStore { child, endpoint };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !socket.exists() {
            let log = std::fs::read_to_string(dir.join("log")).unwrap();
            assert!(Instant::now() < deadline, "{} does not serve: {log}", store.endpoint);
            std::thread::sleep(Duration::from_millis(50));
        }
        store
    }

    fn etcd(dir: &Path) -> MigrationStore {
        std::fs::create_dir_all(dir).unwrap();
        // etcd creates its sockets in its working directory and names them like addresses.
        let clients = "unix://etcd.sock:0";
        let peers = &format!("http://127.0.0.1:{}", tortie_testkit::free_port().unwrap());
        let mut command = Command::new("etcd");
        command
            .args(["--name", "moved", "--data-dir", "data"])
            .args(["--listen-client-urls", clients, "--advertise-client-urls", clients])
            .args(["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers])
            .args(["--initial-cluster", &format!("moved={peers}")]);
        let socket = dir.join("etcd.sock:0");
        MigrationStore::start(dir, command, format!("unix://{}", socket.display()), &socket)
    }

    fn embedded(dir: &Path) -> MigrationStore {
        std::fs::create_dir_all(dir).unwrap();
        let socket = dir.join("store.sock");
        let endpoint = format!("unix://{}", socket.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.args(["datastore", "--data-dir", "data", "--listen", &endpoint]);
        MigrationStore::start(dir, command, endpoint, &socket)
    }
}

impl Drop for MigrationStore {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns every file of the lab that may contain the datastore's endpoint.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().filter_map(Result::ok) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && !entry.path().ends_with("data") {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}

fn point_to(lab: &TestLab, from: &str, to: &str) {
    for file in files(&lab.dir()) {
        if let Ok(text) = std::fs::read_to_string(&file)
            && text.contains(from)
            && !file.ends_with("log")
        {
            std::fs::write(&file, text.replace(from, to)).unwrap();
        }
    }
}

fn state_dirs(lab: &TestLab) -> Vec<String> {
    let node = |name: &str| lab.dir().join("nodes").join(name).join("state").display().to_string();
    ["node1", "node2"].iter().flat_map(|name| ["--state-dir".to_owned(), node(name)]).collect()
}

#[test]
fn pod_traffic_survives_a_migration_to_etcd() {
    let lab = TestLab::up(&["--nodes", "2"]);
    let one = lab.add("one", "node1", &[]);
    let two = lab.add("two", "node2", &[]);
    let talks = [("one", &two, false), ("one", &two, true), ("two", &one, false), ("two", &one, true)];
    let pingers: Vec<ContinuousPing> =
        talks.iter().map(|(from, to, v6)| ContinuousPing::start(&lab, from, family(to, *v6))).collect();
    pingers.iter().for_each(|pinger| pinger.wait_for_more(20));

    let mut endpoint = lab.status()["store"]["endpoint"].as_str().unwrap().to_owned();
    let mut serving: Option<MigrationStore> = None;
    for (number, start) in [MigrationStore::etcd as fn(&Path) -> MigrationStore, MigrationStore::embedded]
        .into_iter()
        .enumerate()
    {
        lab.run(&["ctl", "datastore", "migrate", "lock"]);
        let exported = lab.run(&["ctl", "datastore", "migrate", "export"]);
        let file = lab.dir().join(format!("exported-{number}"));
        std::fs::write(&file, exported).unwrap();
        for node in ["node1", "node2"] {
            lab.run(&["node", "stop", node]);
        }
        match serving.take() {
            Some(store) => drop(store),
            None => {
                let pid = lab.status()["store"]["pid"].to_string();
                let killed = Command::new("kill").arg(&pid).stdin(Stdio::null()).status().unwrap();
                assert!(killed.success(), "kill {pid}");
            }
        }
        let store = start(&lab.dir().join(format!("moved-{number}")));
        point_to(&lab, &endpoint, &store.endpoint);
        endpoint = store.endpoint.clone();
        serving = Some(store);
        lab.run(&["ctl", "datastore", "migrate", "import", "-f", &file.display().to_string()]);
        // With the nodes stopped, their journals still show which attachments are live.
        let dirs = state_dirs(&lab);
        let dirs: Vec<&str> = dirs.iter().map(String::as_str).collect();
        let check = lab.run(&[&["ctl", "ipam", "check"], &dirs[..]].concat());
        assert!(check.contains("Found 2 live attachments on this host."), "{check}");
        assert!(!check.contains("cannot be seen"), "{check}");
        assert!(check.contains("found 0 problems"), "{check}");
        lab.run(&["ctl", "datastore", "migrate", "unlock"]);
        for node in ["node1", "node2"] {
            lab.run(&["node", "start", node]);
        }
        pingers.iter().for_each(|pinger| pinger.wait_for_more(20));
        let endpoints = lab.run(&["ctl", "get", "workloadendpoints", "-A", "-o", "json"]);
        assert_eq!(endpoints.matches("\"interfaceName\"").count(), 2, "{endpoints}");
    }
    pingers.iter().for_each(ContinuousPing::none_lost);
    let three = lab.add("three", "node1", &[]);
    assert!(three.iter().all(|address| !one.contains(address) && !two.contains(address)), "{three:?}");
    lab.ping("three", family(&two, false));
    drop(pingers);
    let _ = lab.run(&["pod", "del", "three"]);
}
