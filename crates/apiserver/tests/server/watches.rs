//! Watches across restarts and failures of servers: clients receive every change once.

use crate::world::{ApiServerWorld, TestStorage};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use tortie_testkit::{Etcd, eventually_showing};

const SETS: &str = "/apis/projectcalico.org/v3/globalnetworksets";

fn set(name: &str, number: usize) -> Value {
    json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet", "metadata": {"name": name},
        "spec": {"nets": [format!("10.{number}.0.0/16")]}})
}

/// A client that lists and watches, and resumes at its last version or lists again if that has expired, as Kubernetes
/// clients do.
struct ApiWatchClient {
    url: String,
    objects: BTreeMap<String, String>,
    version: String,
    /// Number of events that repeated a known state.
    repeated: usize,
    watch: Option<(Child, std::sync::mpsc::Receiver<String>)>,
}

impl ApiWatchClient {
    fn new(world: &ApiServerWorld) -> ApiWatchClient {
        ApiWatchClient {
            url: world.server.url(),
            objects: BTreeMap::new(),
            version: String::new(),
            repeated: 0,
            watch: None,
        }
    }

    fn curl(&self, path: &str) -> Command {
        let mut command = Command::new("curl");
        command.args(["-skN", "-H", "Authorization: Bearer secret"]).arg(format!("{}{path}", self.url));
        command
    }

    /// Lists the objects and returns whether that succeeded.
    fn list(&mut self) -> bool {
        let output = self.curl(&format!("{SETS}?resourceVersion=0")).output().unwrap();
        let Ok(list) = serde_json::from_slice::<Value>(&output.stdout) else { return false };
        if list["kind"] != "GlobalNetworkSetList" {
            return false;
        }
        self.version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let text = |object: &Value, pointer: &str| {
            object.pointer(pointer).and_then(Value::as_str).unwrap().to_owned()
        };
        let items = list["items"].as_array().unwrap().iter();
        self.objects = items
            .map(|item| (text(item, "/metadata/name"), text(item, "/metadata/resourceVersion")))
            .collect();
        true
    }

    fn open(&mut self) {
        let path = format!("{SETS}?watch=1&allowWatchBookmarks=true&resourceVersion={}", self.version);
        let mut child = self.curl(&path).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        self.watch = Some((child, receiver));
    }

    /// Processes all events received so far.
    fn listen(&mut self) {
        if self.version.is_empty() && !self.list() {
            return;
        }
        if self.watch.is_none() {
            self.open();
        }
        let Some((child, lines)) = &mut self.watch else { return };
        loop {
            match lines.try_recv() {
                Ok(line) => {
                    let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
                    let object = &event["object"];
                    let version = object
                        .pointer("/metadata/resourceVersion")
                        .and_then(Value::as_str)
                        .unwrap_or_default();
                    let name = object
                        .pointer("/metadata/name")
                        .and_then(Value::as_str)
                        .unwrap_or_default()
                        .to_owned();
                    match event["type"].as_str().unwrap_or_default() {
                        "ADDED" | "MODIFIED" => {
                            let before = self.objects.insert(name, version.to_owned());
                            self.repeated += usize::from(before.as_deref() == Some(version));
                        }
                        "DELETED" => self.repeated += usize::from(self.objects.remove(&name).is_none()),
                        "BOOKMARK" => {}
                        // The version has expired or the request failed: list again.
                        _ => {
                            self.version.clear();
                            continue;
                        }
                    }
                    if !version.is_empty() && !self.version.is_empty() {
                        self.version = version.to_owned();
                    }
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => return,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                    let _ = child.wait();
                    self.watch = None;
                    return;
                }
            }
        }
    }
}

impl Drop for ApiWatchClient {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.watch {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn watchers_miss_nothing_in_kubernetes() {
    watchers_miss_nothing(ApiServerWorld::new(TestStorage::Kubernetes));
}

#[test]
fn watchers_miss_nothing_in_etcd() {
    watchers_miss_nothing(ApiServerWorld::new(TestStorage::Etcd(Etcd::start().unwrap())));
}

/// Returns the number of watchers, set by TORTIE_WATCHERS.
fn watchers() -> usize {
    std::env::var("TORTIE_WATCHERS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

fn watchers_miss_nothing(mut world: ApiServerWorld) {
    let mut clients: Vec<ApiWatchClient> = (0..watchers()).map(|_| ApiWatchClient::new(&world)).collect();
    let mut expected: BTreeMap<String, String> = BTreeMap::new();
    let mut number = 0;
    for happening in ["nothing", "ours is stopped", "ours is killed", "kube-apiserver is killed", "nothing"] {
        match happening {
            "ours is stopped" => {
                world.stop();
                world.start();
            }
            "ours is killed" => {
                world.kill();
                world.start();
            }
            "kube-apiserver is killed" => {
                world.server.stop();
                world.server.resume();
            }
            _ => {}
        }
        world.wait_until_served();
        for _ in 0..5 {
            number += 1;
            let name = format!("s{}", number % 7);
            let path = format!("{SETS}/{name}");
            let object = match expected.contains_key(&name) {
                true if number % 3 == 0 => {
                    world.server.must("DELETE", &path, None);
                    expected.remove(&name);
                    continue;
                }
                true => {
                    let mut object = world.server.must("GET", &path, None);
                    object["spec"] = set(&name, number)["spec"].clone();
                    world.server.must("PUT", &path, Some(&object))
                }
                false => world.server.create(SETS, &set(&name, number)),
            };
            expected.insert(name, object["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
        }
        for client in &mut clients {
            let picture = std::cell::RefCell::new(String::new());
            eventually_showing(
                &format!("all is heard of after {happening}"),
                || {
                    client.listen();
                    *picture.borrow_mut() = format!("{:?}\n{expected:?}", client.objects);
                    client.objects == expected
                },
                || picture.borrow().clone(),
            );
        }
    }
    assert_eq!(clients.iter().map(|client| client.repeated).sum::<usize>(), 0);
}
