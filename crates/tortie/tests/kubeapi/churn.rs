//! kube-apiserver on `tortie datastore` and on the etcd version that it ships with, under the same load: pods, leases
//! and namespaces are created and deleted, datastores and API servers are killed, revisions are compacted. Both must
//! end with the same objects, and neither kube-apiserver may find its watch cache inconsistent with its datastore.
//!
//! `TORTIE_CHURN_SECONDS` sets a longer duration.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};
use tortie_testkit::{
    ApiRequest, ApiResponse, ApiServer, ApiServerBackend, ApiServerOptions, eventually_showing, resident, run,
};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
/// Compaction interval; a revision is compacted after two of them.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(20);
const CONSISTENCY_CHECK_INTERVAL: Duration = Duration::from_secs(5);
const MIN_DURATION: Duration = Duration::from_secs(50);
/// Rounds per cycle. Each round is a batch of requests; the event during a batch depends on its place in the cycle.
const ROUNDS_PER_CYCLE: usize = 6;
const REQUESTS_PER_BATCH: usize = 150;
const MAX_PARALLEL_REQUESTS: usize = 8;
const MAX_PODS: usize = 400;
const NODE_COUNT: usize = 20;
const LEASES_PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const ENABLED_CONTROLLERS: &str = "namespace-controller,serviceaccount-controller";
/// Messages of consistency checks that could not run because the datastore or the cache was unavailable.
const UNAVAILABLE_MESSAGES: [&str; 7] = [
    "cache is not ready",
    "connection refused",
    "connection reset",
    "closing",
    "EOF",
    "deadline exceeded",
    "context canceled",
];

/// The label of each pod, by namespace and name.
type PodLabels = BTreeMap<(String, String), String>;

/// The expected objects.
#[derive(Default)]
struct ExpectedObjects {
    made: usize,
    /// The label of each pod, by namespace.
    namespaces: BTreeMap<String, BTreeMap<String, usize>>,
    /// How often each node has renewed its lease.
    leases: BTreeMap<String, usize>,
}

impl ExpectedObjects {
    fn namespace(&mut self) -> ApiRequest {
        self.made += 1;
        let name = format!("churn-{}", self.made);
        self.namespaces.insert(name.clone(), BTreeMap::new());
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        ApiRequest::create("/api/v1/namespaces", &object)
    }

    fn pod(&mut self, namespace: &str) -> Option<ApiRequest> {
        self.made += 1;
        let name = format!("pod-{}", self.made);
        self.namespaces.get_mut(namespace)?.insert(name.clone(), 0);
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"churn": "0"}},
            "spec": {"containers": [{"name": "c", "image": "none", "env": [{"name": "LONG", "value": "x".repeat(500)}]}]},
        });
        Some(ApiRequest::create(&format!("/api/v1/namespaces/{namespace}/pods"), &object))
    }

    /// Returns requests that do not depend on each other.
    fn batch(&mut self, random: &mut StdRng) -> Vec<ApiRequest> {
        let names: Vec<String> = self.namespaces.keys().cloned().collect();
        let all = self.namespaces.iter().flat_map(|(namespace, pods)| {
            pods.keys().map(|pod| (namespace.clone(), pod.clone())).collect::<Vec<_>>()
        });
        let mut pods: Vec<(String, String)> = all.collect();
        let mut calls = vec![self.namespace()];
        if names.len() > 6 {
            let gone = names.choose(random).unwrap().clone();
            self.namespaces.remove(&gone);
            pods.retain(|(namespace, _)| *namespace != gone);
            calls.push(ApiRequest::delete(&format!("/api/v1/namespaces/{gone}")));
        }
        let homes: Vec<String> =
            names.into_iter().filter(|name| self.namespaces.contains_key(name)).collect();
        for node in 0..NODE_COUNT {
            calls.push(self.renew(&format!("node-{node}")));
        }
        while calls.len() < REQUESTS_PER_BATCH {
            let some = match pods.len() {
                0 => None,
                count => Some(pods.swap_remove(random.random_range(0..count))),
            };
            let crowded = self.namespaces.values().map(BTreeMap::len).sum::<usize>() >= MAX_PODS;
            match (random.random_range(0..100), some) {
                (0..40, _) if !crowded => calls.extend(homes.choose(random).and_then(|home| self.pod(home))),
                (0..65, Some((namespace, pod))) => {
                    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
                    let label =
                        self.namespaces.get_mut(&namespace).and_then(|pods| pods.get_mut(&pod)).unwrap();
                    *label += 1;
                    let patch = json!({"metadata": {"labels": {"churn": label.to_string()}}});
                    calls.push(ApiRequest::merge(&path, patch));
                }
                (65..85, Some((namespace, pod))) => {
                    self.namespaces.get_mut(&namespace).map(|pods| pods.remove(&pod));
                    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}?gracePeriodSeconds=0");
                    calls.push(ApiRequest::delete(&path));
                }
                (85..90, _) => calls.push(ApiRequest::get("/api/v1/pods")),
                (90..95, _) => calls.push(ApiRequest::get("/api/v1/pods?limit=50")),
                _ => calls.push(ApiRequest::get("/api/v1/namespaces?resourceVersion=0")),
            }
        }
        calls
    }

    /// Renews the lease of a node, or creates it.
    fn renew(&mut self, node: &str) -> ApiRequest {
        let count = self.leases.entry(node.to_owned()).or_default();
        *count += 1;
        let spec = json!({"holderIdentity": node, "leaseTransitions": *count});
        match *count {
            1 => {
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": node}, "spec": spec});
                ApiRequest::create(LEASES_PATH, &lease)
            }
            _ => ApiRequest::merge(&format!("{LEASES_PATH}/{node}"), json!({ "spec": spec })),
        }
    }
}

/// Event during a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchEvent {
    Nothing,
    StoreKilled,
    ServerKilled,
}

/// A kube-apiserver and its measurements.
struct ChurnServer {
    name: &'static str,
    server: ApiServer,
    calls: usize,
    busy: Duration,
    latencies: Vec<Duration>,
    memory: u64,
    restarts: usize,
}

impl ChurnServer {
    fn new(name: &'static str, backing: ApiServerBackend) -> ChurnServer {
        let upkeep = ApiServerOptions {
            backing,
            compaction: COMPACTION_INTERVAL,
            consistency_checks: Some(CONSISTENCY_CHECK_INTERVAL),
        };
        let mut server = ApiServer::start_with(upkeep);
        server.start_controllers(ENABLED_CONTROLLERS);
        ChurnServer {
            name,
            server,
            calls: 0,
            busy: Duration::ZERO,
            latencies: Vec::new(),
            memory: 0,
            restarts: 0,
        }
    }

    /// Sends the requests, with the event during them, and retries until each has been answered.
    fn carry_out(&mut self, calls: &[ApiRequest], event: BatchEvent) {
        let (began, caller) = (Instant::now(), self.server.caller());
        let answers = std::thread::scope(|scope| {
            let answers = scope.spawn(|| caller.call_all(calls, MAX_PARALLEL_REQUESTS));
            if event != BatchEvent::Nothing {
                // Some requests have been answered at this point.
                std::thread::sleep(Duration::from_millis(300));
                match event {
                    BatchEvent::StoreKilled => self.server.stop_store(),
                    _ => self.server.stop(),
                }
                self.server.resume();
                self.restarts += 1;
            }
            answers.join().unwrap()
        });
        if event == BatchEvent::Nothing {
            self.busy += began.elapsed();
            self.calls += calls.len();
            self.latencies.extend(answers.iter().map(|answer| answer.took));
        }
        let mut left: Vec<ApiRequest> = unanswered(calls, &answers);
        eventually_showing(
            &format!("{}: everything is answered", self.name),
            || {
                if !left.is_empty() {
                    left = unanswered(&left, &self.server.call_all(&left, MAX_PARALLEL_REQUESTS));
                }
                left.is_empty()
            },
            || self.server.server_log(),
        );
        self.memory = self.memory.max(resident(self.server.store_id()));
    }

    /// Asserts that the objects equal the model in every kind of list request.
    fn check(&self, model: &ExpectedObjects) {
        let expected: PodLabels = model
            .namespaces
            .iter()
            .flat_map(|(namespace, pods)| {
                pods.iter().map(|(pod, label)| ((namespace.clone(), pod.clone()), label.to_string()))
            })
            .collect();
        for path in ["/api/v1/pods?limit=37", "/api/v1/pods?", "/api/v1/pods?resourceVersion=0"] {
            eventually_showing(
                &format!("{}: {path} has the pods that there should be", self.name),
                || self.labels(path) == expected,
                || {
                    let found = self.labels(path);
                    format!(
                        "too much: {:?}\nmissing: {:?}",
                        only_in(&found, &expected),
                        only_in(&expected, &found)
                    )
                },
            );
        }
        let namespaces = || -> BTreeSet<String> {
            let names = self.items("/api/v1/namespaces?").into_iter();
            let names = names.filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned));
            names.filter(|name| name.starts_with("churn-")).collect()
        };
        let expected: BTreeSet<String> = model.namespaces.keys().cloned().collect();
        eventually_showing(
            &format!("{}: namespaces", self.name),
            || namespaces() == expected,
            || format!("{:?} instead of {expected:?}", namespaces()),
        );
        for item in self.items(&format!("{LEASES_PATH}?")) {
            let name = item["metadata"]["name"].as_str().unwrap_or_default();
            if let Some(count) = model.leases.get(name) {
                assert_eq!(item["spec"]["leaseTransitions"], *count, "{}: {name}", self.name);
            }
        }
    }

    /// Returns the labels of all pods.
    fn labels(&self, path: &str) -> PodLabels {
        let text = |item: &Value, pointer: &str| {
            item.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let pair = |item: &Value| {
            let name = (text(item, "/metadata/namespace"), text(item, "/metadata/name"));
            (name, text(item, "/metadata/labels/churn"))
        };
        self.items(path).iter().map(pair).collect()
    }

    /// Returns all items of a list, following continue tokens.
    fn items(&self, path: &str) -> Vec<Value> {
        let mut items = Vec::new();
        let mut token = String::new();
        loop {
            let page = match token.is_empty() {
                true => path.to_owned(),
                false => format!("{path}&continue={token}"),
            };
            // If the continue token was compacted, return nothing; the caller retries.
            let Ok(mut list) = self.server.send("GET", &page, None) else { return Vec::new() };
            items.extend(list["items"].as_array().cloned().unwrap_or_default());
            token = list["metadata"]["continue"].take().as_str().unwrap_or_default().to_owned();
            if token.is_empty() {
                return items;
            }
        }
    }

    /// Returns how many consistency checks have passed since the last restart, and all complaints in the log.
    fn consistency(&self) -> (u64, Vec<String>) {
        let metrics = self.server.send("GET", "/metrics", None).unwrap_or_default();
        let metrics = metrics.as_str().unwrap_or_default().to_owned();
        let counted = |status: &str| -> u64 {
            let lines = metrics.lines().filter(|line| {
                line.starts_with("apiserver_storage_consistency_checks_total") && line.contains(status)
            });
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
        };
        let log = self.server.server_log();
        let complaints = log.lines().filter(|line| {
            let complains = ["Cache consistency check error", "Cache consistency check failed"];
            complains.iter().any(|text| line.contains(text))
                && !UNAVAILABLE_MESSAGES.iter().any(|text| line.contains(text))
        });
        (counted("status=\"success\""), complaints.map(str::to_owned).collect())
    }

    fn figures(&mut self) -> String {
        self.latencies.sort_unstable();
        let at = |quantile: f64| {
            let place = (self.latencies.len() as f64 * quantile) as usize;
            self.latencies.get(place.min(self.latencies.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        let disk = run(Command::new("du").arg("-sk").arg(self.server.store_data()));
        let disk = disk.split_whitespace().next().unwrap_or_default().parse::<u64>().unwrap_or_default();
        format!(
            "{:<10} {} requests, {:.0} a second, p50 {:?}, p99 {:?}; store: {} MiB at most, {} MiB on disk; {} restarts",
            self.name,
            self.calls,
            self.calls as f64 / self.busy.as_secs_f64(),
            at(0.5),
            at(0.99),
            self.memory >> 20,
            disk >> 10,
            self.restarts,
        )
    }
}

fn only_in(one: &PodLabels, other: &PodLabels) -> Vec<String> {
    let differ = one.iter().filter(|(name, label)| other.get(*name) != Some(*label));
    differ.map(|pair| format!("{pair:?}")).collect()
}

/// Returns the requests that have not been carried out. A conflict or "not found" that shows that the change was
/// already made counts as success.
fn unanswered(calls: &[ApiRequest], answers: &[ApiResponse]) -> Vec<ApiRequest> {
    let is_done = |(call, answer): &(&ApiRequest, &ApiResponse)| {
        answer.is_success()
            || matches!((call.method, answer.status), ("POST", 409) | ("DELETE", 404 | 409) | ("GET", 410))
    };
    calls.iter().zip(answers).filter(|pair| !is_done(pair)).map(|(call, _)| call.clone()).collect()
}

#[test]
fn a_control_plane_runs_on_the_embedded_store() {
    let seconds = std::env::var("TORTIE_CHURN_SECONDS").ok().and_then(|text| text.parse().ok());
    let duration = seconds.map_or(MIN_DURATION, Duration::from_secs);
    let seed =
        std::env::var("TORTIE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("TORTIE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut sides = [
        ChurnServer::new("tortie", ApiServerBackend::Embedded(TORTIE.into())),
        ChurnServer::new("etcd 3.6.5", ApiServerBackend::EtcdOfKubernetes),
    ];
    let (began, mut model, mut round) = (Instant::now(), ExpectedObjects::default(), 0);
    while began.elapsed() < duration || round < ROUNDS_PER_CYCLE {
        let calls = model.batch(&mut random);
        let event = match round % ROUNDS_PER_CYCLE {
            2 => BatchEvent::StoreKilled,
            4 => BatchEvent::ServerKilled,
            _ => BatchEvent::Nothing,
        };
        // Alternate the order: the first one has a small advantage.
        let first = round % 2;
        for place in [first, 1 - first] {
            sides[place].carry_out(&calls, event);
        }
        if event != BatchEvent::Nothing {
            sides.iter().for_each(|side| side.check(&model));
        }
        round += 1;
    }
    for side in &mut sides {
        side.check(&model);
        println!("{}", side.figures());
    }
    for side in &sides {
        eventually_showing(
            &format!("{}: every kind of object has been compared", side.name),
            || side.consistency().0 > 0,
            || side.server.server_log(),
        );
        let (passed, complaints) = side.consistency();
        println!("{}: {passed} checks of caches passed since the last restart", side.name);
        assert_eq!(complaints, Vec::<String>::new(), "{}", side.name);
    }
    println!("{round} rounds in {:?}", began.elapsed());
}
