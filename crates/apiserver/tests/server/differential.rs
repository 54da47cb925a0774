//! Differential test: the same requests to our server and to a plain CRD with the same schema in the same
//! kube-apiserver yield the same objects, managed fields, conflicts and status codes. TORTIE_HISTORIES sets the
//! number of histories, whose seeds are consecutive. TORTIE_SEED sets the first seed, to continue after another run
//! or to repeat one.

use crate::world::{ApiServerWorld, TestStorage};
use http::{Request, header};
use kube::Client;
use kube::client::Body;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tortie_model::{Kind, schema};
use tortie_testkit::eventually;

const OUR_GROUP: &str = "projectcalico.org";
const PLAIN_GROUP: &str = "plain.example.org";
const KINDS: [Kind; 3] = [Kind::GlobalNetworkSet, Kind::HostEndpoint, Kind::Tier];
const DEFAULT_HISTORY_COUNT: u64 = 100;
const STEPS_PER_HISTORY: usize = 8;
/// Number of concurrent histories, each with a separate object: most of the time is spent waiting for disks.
const CONCURRENT_HISTORIES: u64 = 8;

#[derive(Clone, Debug)]
struct RequestStep {
    method: &'static str,
    /// Whether the request goes to the collection instead of the object.
    of_collection: bool,
    /// Suffix of the path of either.
    path: String,
    form: &'static str,
    body: Value,
    /// Whether the current resourceVersion is set in the body.
    current: bool,
}

impl RequestStep {
    /// Creates a step on the object without a resourceVersion.
    fn new(method: &'static str, path: String, form: &'static str, body: Value) -> RequestStep {
        RequestStep { method, of_collection: false, path, form, body, current: false }
    }

    fn delete() -> RequestStep {
        RequestStep::new("DELETE", String::new(), "application/json", Value::Null)
    }
}

fn install(world: &ApiServerWorld) {
    for kind in KINDS {
        let mut crd =
            schema::crds().into_iter().find(|crd| crd["spec"]["names"]["kind"] == kind.name()).unwrap();
        crd["metadata"]["name"] = format!("{}.{PLAIN_GROUP}", kind.plural()).into();
        crd["spec"]["group"] = PLAIN_GROUP.into();
        world.server.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd);
        let path = format!("/apis/{PLAIN_GROUP}/v3/{}", kind.plural());
        eventually(&path, || world.server.send("GET", &path, None).is_ok());
    }
}

/// Sends histories of one object, one after the other.
struct HistoryWorker {
    client: Client,
    /// Name of the object.
    name: String,
}

impl HistoryWorker {
    async fn new(world: &ApiServerWorld, number: u64) -> HistoryWorker {
        let file = Kubeconfig::read_from(world.server.kubeconfig()).unwrap();
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
        HistoryWorker { client: Client::try_from(config).unwrap(), name: format!("x{number}") }
    }

    /// Sends a step and returns the status code and body of the response.
    async fn send(&self, group: &str, kind: Kind, step: &RequestStep) -> (u16, Value) {
        let collection = format!("/apis/{group}/v3/{}", kind.plural());
        let object = format!("{collection}/{}", self.name);
        let mut body = step.body.clone();
        if body.is_object() {
            body["apiVersion"] = format!("{group}/v3").into();
            if body["metadata"]["name"].is_string() {
                body["metadata"]["name"] = self.name.clone().into();
            }
        }
        if step.current {
            let (_, live) = self.request("GET", &object, step.form, String::new()).await;
            body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        }
        let target = if step.of_collection { collection } else { object };
        let text = if body.is_null() { String::new() } else { body.to_string() };
        self.request(step.method, &format!("{target}{}", step.path), step.form, text).await
    }

    async fn request(&self, method: &str, path: &str, form: &str, body: String) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, form)
            .header(header::USER_AGENT, "tests/1")
            .body(Body::from(body.into_bytes()))
            .unwrap();
        let response = self.client.send(request).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect_bytes().await.unwrap();
        (code, serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Sends one history to both servers and compares the responses.
    async fn history(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let kind = *KINDS.choose(&mut random).unwrap();
        let mut steps = Vec::new();
        for _ in 0..STEPS_PER_HISTORY {
            let step = step(kind, &mut random);
            let (our_code, ours) = self.send(OUR_GROUP, kind, &step).await;
            let (plain_code, plain) = self.send(PLAIN_GROUP, kind, &step).await;
            steps.push(format!(
                "{} {} {} {}\n  -> {our_code}, {plain_code}",
                step.method, step.path, step.form, step.body
            ));
            let (a, b) = (comparable(our_code, &ours), comparable(plain_code, &plain));
            assert!(
                our_code == plain_code && a == b,
                "TORTIE_SEED={seed} {kind}\n{}\nours:  {a}\nplain: {b}\nours:  {ours}\nplain: {plain}",
                steps.join("\n")
            );
        }
        for group in [OUR_GROUP, PLAIN_GROUP] {
            self.send(group, kind, &RequestStep::delete()).await;
        }
    }
}

/// Removes fields that each server sets independently.
fn comparable(code: u16, body: &Value) -> Value {
    if body["kind"] == "Status" {
        if code == 200 {
            return json!("deleted");
        }
        let mut fields: Vec<&Value> =
            body["details"]["causes"].as_array().into_iter().flatten().map(|cause| &cause["field"]).collect();
        // Unordered: Kubernetes keeps them in a map.
        fields.sort_by_key(|field| field.to_string());
        // The message of an apply conflict must be identical.
        let message =
            if code == 409 && body["details"]["causes"].is_array() { &body["message"] } else { &Value::Null };
        let message: Value =
            serde_json::from_str(&message.to_string().replace(PLAIN_GROUP, OUR_GROUP)).unwrap();
        let fields = if code == 409 { json!(fields) } else { Value::Null };
        return json!({"code": code, "reason": body["reason"], "fields": fields, "message": message});
    }
    let mut object: Value = serde_json::from_str(&body.to_string().replace(PLAIN_GROUP, OUR_GROUP)).unwrap();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["uid", "resourceVersion", "creationTimestamp", "selfLink"] {
            metadata.remove(field);
        }
        for entry in metadata.get_mut("managedFields").and_then(Value::as_array_mut).into_iter().flatten() {
            entry.as_object_mut().unwrap().remove("time");
        }
    }
    if object["status"] == json!({}) {
        object.as_object_mut().unwrap().remove("status");
    }
    let mut object = sorted(&object);
    // Entries are ordered by time, which differs by less than a second.
    if let Some(entries) = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut) {
        entries.sort_by_key(Value::to_string);
    }
    object
}

/// Sorts fields by name and normalises whole numbers.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            fields
                .into_iter()
                .map(|(name, value)| (name.clone(), sorted(value)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if float.fract() == 0.0 => json!(float as i64),
            _ => value.clone(),
        },
        other => other.clone(),
    }
}

fn spec(kind: Kind, random: &mut StdRng) -> Value {
    let some = |all: &[&str], random: &mut StdRng| -> Vec<String> {
        let count = random.random_range(1..=all.len());
        all.choose_multiple(random, count).map(|item| (*item).to_owned()).collect()
    };
    let mut spec = json!({});
    match kind {
        Kind::GlobalNetworkSet => {
            spec["nets"] = json!(some(&["10.0.0.0/8", "11.0.0.0/8", "12.0.0.0/8", "13.0.0.0/8"], random));
        }
        Kind::HostEndpoint => {
            spec["node"] = ["n1", "n2"].choose(random).copied().unwrap().into();
            if random.random_bool(0.7) {
                spec["interfaceName"] = ["eth0", "eth1", "*"].choose(random).copied().unwrap().into();
            }
            if random.random_bool(0.7) {
                spec["expectedIPs"] = json!(some(&["192.0.2.1", "192.0.2.2", "192.0.2.3"], random));
            }
            if random.random_bool(0.4) {
                spec["profiles"] = json!(some(&["p", "q"], random));
            }
            if random.random_bool(0.4) {
                spec["ports"] =
                    json!([{"name": "http", "port": random.random_range(80..83), "protocol": "TCP"}]);
            }
        }
        _ => {
            spec["order"] = random.random_range(1..5).into();
            spec["defaultAction"] = ["Deny", "Pass"].choose(random).copied().unwrap().into();
        }
    }
    spec
}

fn labels(random: &mut StdRng) -> Value {
    let mut labels = json!({});
    for name in ["a", "b", "c"] {
        if random.random_bool(0.4) {
            labels[name] = ["1", "2"].choose(random).copied().unwrap().into();
        }
    }
    labels
}

fn object(kind: Kind, random: &mut StdRng) -> Value {
    let mut object = json!({"kind": kind.name(), "metadata": {"name": "x"}, "spec": spec(kind, random)});
    let labels = labels(random);
    if labels != json!({}) {
        object["metadata"]["labels"] = labels;
    }
    object
}

fn step(kind: Kind, random: &mut StdRng) -> RequestStep {
    let managers = ["m1", "m2", "m3"];
    let manager = managers.choose(random).copied().unwrap();
    let json = "application/json";
    let dry = if random.random_bool(0.1) { "&dryRun=All" } else { "" };
    let query = format!("?fieldManager={manager}{dry}");
    match random.random_range(0..12) {
        0..2 => {
            RequestStep { of_collection: true, ..RequestStep::new("POST", query, json, object(kind, random)) }
        }
        2..4 => {
            let current = random.random_bool(0.8);
            RequestStep { current, ..RequestStep::new("PUT", query, json, object(kind, random)) }
        }
        4..6 => {
            let mut body = json!({"spec": spec(kind, random)});
            if random.random_bool(0.3) {
                // A tier without an order gets a default from our server and none in a plain CRD.
                let fields: Vec<String> = body["spec"]
                    .as_object()
                    .unwrap()
                    .keys()
                    .filter(|name| *name != "order")
                    .cloned()
                    .collect();
                let field = fields.choose(random).unwrap();
                body["spec"][field] = Value::Null;
            }
            match random.random_range(0..6) {
                0..3 => body["metadata"] = json!({"labels": labels(random)}),
                3 => body["metadata"] = json!({"labels": {"a": null, "b": "3"}}),
                4 => body["metadata"] = json!({"labels": null}),
                _ => {}
            }
            body["kind"] = kind.name().into();
            RequestStep::new("PATCH", query, "application/merge-patch+json", body)
        }
        6 => {
            let operation = match random.random_range(0..7) {
                0 => json!({"op": "add", "path": "/metadata/labels", "value": {"json": "yes"}}),
                1 => json!({"op": "remove", "path": "/metadata/labels/a"}),
                2 => json!({"op": "remove", "path": "/metadata/labels"}),
                3 => json!({"op": "add", "path": "/metadata/annotations", "value": {"json": "yes"}}),
                4 => json!({"op": "copy", "from": "/metadata/name", "path": "/metadata/labels/a"}),
                5 => json!({"op": "replace", "path": "/spec", "value": spec(kind, random)}),
                _ => json!({"op": "test", "path": "/metadata/name", "value": "y"}),
            };
            RequestStep::new("PATCH", query, "application/json-patch+json", json!([operation]))
        }
        7..10 => {
            let force = if random.random_bool(0.4) { "&force=true" } else { "" };
            let path = format!("{query}{force}");
            RequestStep::new("PATCH", path, "application/apply-patch+yaml", object(kind, random))
        }
        10 if kind == Kind::Tier => {
            let holds = if random.random_bool(0.5) { "True" } else { "False" };
            let condition = json!({"type": "Ready", "status": holds, "reason": "R", "message": "m",
                "lastTransitionTime": "2026-03-01T10:20:30Z"});
            let mut body = json!({"kind": kind.name(), "status": {"conditions": [condition]}});
            let path = format!("/status{query}");
            match random.random_range(0..3) {
                0 => {
                    body["metadata"] = json!({"name": "x"});
                    RequestStep::new(
                        "PATCH",
                        format!("{path}&force=true"),
                        "application/apply-patch+yaml",
                        body,
                    )
                }
                1 => {
                    body["metadata"] = json!({"name": "x"});
                    body["spec"] = spec(kind, random);
                    RequestStep { current: true, ..RequestStep::new("PUT", path, json, body) }
                }
                _ => RequestStep::new("PATCH", path, "application/merge-patch+json", body),
            }
        }
        _ => RequestStep::delete(),
    }
}

#[test]
fn ours_answers_as_a_plain_crd_does() {
    let world = ApiServerWorld::new(TestStorage::Kubernetes);
    install(&world);
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (given, histories) = (number("TORTIE_SEED"), number("TORTIE_HISTORIES"));
    let first = given.unwrap_or_else(|| rand::random::<u32>().into());
    let histories = histories.unwrap_or(if given.is_some() { 1 } else { DEFAULT_HISTORY_COUNT });
    println!("TORTIE_SEED={first} TORTIE_HISTORIES={histories}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (next, agreed) = (Arc::new(AtomicU64::new(first)), Arc::new(AtomicU64::new(0)));
        let mut workers = tokio::task::JoinSet::new();
        for number in 0..CONCURRENT_HISTORIES {
            let worker = HistoryWorker::new(&world, number).await;
            let (next, agreed) = (next.clone(), agreed.clone());
            workers.spawn(async move {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + histories {
                        break;
                    }
                    worker.history(seed).await;
                    let agreed = agreed.fetch_add(1, Ordering::Relaxed) + 1;
                    if agreed.is_multiple_of(100) {
                        println!("{agreed} histories agree; the last was TORTIE_SEED={seed}");
                    }
                }
            });
        }
        while let Some(ended) = workers.join_next().await {
            ended.unwrap();
        }
        assert_eq!(agreed.load(Ordering::Relaxed), histories);
    });
}
