//! Watch clients that do not read while more events happen than the server may buffer.

use crate::world::{ApiserverFixture, DatastoreKind};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use tortie_testkit::eventually;

const NETWORK_SETS_PATH: &str = "/apis/projectcalico.org/v3/globalnetworksets";
const WATCHER_COUNT: usize = 10;
/// Number of changes that each watcher misses; with `CHANGE_BYTES` bytes each, 250 MB for all watchers together.
const CHANGE_COUNT: usize = 100;
const CHANGE_BYTES: usize = 240 << 10;
const MAX_MEMORY_GROWTH: usize = 100 << 20;

/// A curl process whose output is not read.
struct UnreadWatch(Child);

impl UnreadWatch {
    fn watch(url: &str) -> UnreadWatch {
        let mut command = Command::new("curl");
        command.args(["-skN", "-H", "Authorization: Bearer secret"]).arg(url).stdout(Stdio::piped());
        UnreadWatch(command.spawn().unwrap())
    }

    /// Reads all buffered events until the connection ends; `None` is a truncated event.
    fn events(&mut self) -> Vec<Option<Value>> {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        lines.map_while(Result::ok).map(|line| serde_json::from_str(&line).ok()).collect()
    }
}

impl Drop for UnreadWatch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the peak resident memory of a process in bytes.
fn peak(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn a_backlog_that_is_not_read_is_bounded() {
    let world = ApiserverFixture::new(DatastoreKind::Kubernetes);
    let set = json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet", "metadata": {"name": "large"},
        "spec": {"nets": ["192.0.2.0/24"]}});
    world.server.create(NETWORK_SETS_PATH, &set);
    // Take the version from a list of the watch cache: changes before the server's first snapshot are not in it, so
    // that a watch from the object's own version could be too old.
    let listed = world.server.must("GET", &format!("{NETWORK_SETS_PATH}?resourceVersion=0"), None);
    let version = listed["metadata"]["resourceVersion"].as_str().unwrap();
    let query = format!("{NETWORK_SETS_PATH}?watch=1&resourceVersion={version}");
    let url = format!("https://localhost:{}{query}", world.port);
    let mut stuck: Vec<UnreadWatch> = (0..WATCHER_COUNT).map(|_| UnreadWatch::watch(&url)).collect();
    let metrics = || {
        let mut command = Command::new("curl");
        command.args(["-sk", "-H", "Authorization: Bearer secret"]);
        let output = command.arg(format!("https://localhost:{}/metrics", world.port)).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let watches = |text: &str| {
        let lines = text.lines().filter(|line| {
            line.starts_with("apiserver_longrunning_requests{") && line.contains("globalnetworksets")
        });
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok()).sum::<usize>()
    };
    eventually("all watches are open", || watches(&metrics()) >= WATCHER_COUNT);
    let before = peak(world.ours.id());
    let path = format!("{NETWORK_SETS_PATH}/large");
    for number in 0..CHANGE_COUNT {
        let text = char::from(b'a' + (number % 26) as u8).to_string().repeat(CHANGE_BYTES);
        world.server.merge(&path, &json!({"metadata": {"annotations": {"large": text}}}));
    }
    let grown = peak(world.ours.id()) - before;
    assert!(grown < MAX_MEMORY_GROWTH, "{grown} bytes more for {WATCHER_COUNT} watchers that do not read");
    // A watcher that reads again receives 410 Gone, unless the server has already closed its idle connection.
    for watcher in &mut stuck {
        let events = watcher.events();
        assert!(events.len() < CHANGE_COUNT, "{} events were kept", events.len());
        if let Some(Some(last)) =
            events.last().filter(|last| last.as_ref().is_some_and(|last| last["type"] == "ERROR"))
        {
            assert_eq!(last["object"]["code"], 410, "{last}");
        }
    }
}
