//! Measures the start of a node on a real Kubernetes API server with many pods: the time until it is in sync, the bytes
//! it receives, its memory, and its requests while idle.

mod add;

pub use add::run as add;

use crate::measure::{growth, table, time};
use crate::namespace::{BenchResult, NamespaceGroup, check};
use crate::process::{BenchProcess, tortie};
use crate::{SuiteResult, plain};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tortie_testkit::{ApiServer, CalicoGroup};

const POD_COUNTS: [usize; 3] = [1_000, 10_000, 50_000];
/// Environment variable that overrides the numbers of pods, comma-separated.
const PODS_VARIABLE: &str = "TORTIE_BENCH_PODS";
/// One of this many pods is on the measured node.
const PODS_PER_LOCAL_POD: usize = 100;
const NAMESPACE_COUNT: usize = 1_000;
const POLICY_COUNT: usize = 1_000;
const NODE_NAME: &str = "bench";
/// Number of pods in one large namespace, whose addresses have a unique prefix.
const LARGE_NAMESPACE_PODS: usize = 1_000;
const LARGE_NAMESPACE_PREFIX: &str = "10.200.";
/// Time for which an idle node is observed.
const IDLE_PERIOD: Duration = Duration::from_secs(60);

pub fn run() -> SuiteResult {
    measure().map_err(plain)
}

fn measure() -> BenchResult<()> {
    let host = NamespaceGroup::host()?;
    let server = ApiServer::start_in(host.name(0), "127.0.0.1");
    server.install(CalicoGroup::V3);
    server.add_node(NODE_NAME);
    server.create_all(&namespaces());
    server.create_all(&policies());
    let mut rows = Vec::new();
    let (mut first, mut made, mut others) = (None, 0, BTreeMap::new());
    for pods in sizes()? {
        check()?;
        server.create_all(&self::pods(made..pods));
        made = made.max(pods);
        let started = StartedNode::start(&host, &server)?;
        let (bytes, memory) = (started.bytes(&host)?, started.daemon.memory()?);
        let asked = server.requests_of_node().len();
        std::thread::sleep(IDLE_PERIOD);
        let idle = server.requests_of_node().split_off(asked);
        let other = idle.iter().filter(|(verb, _)| verb != "watch");
        let mut asked_for: BTreeMap<String, usize> = BTreeMap::new();
        for (verb, path) in other {
            let path = path.split('?').next().unwrap_or_default();
            *asked_for.entry(format!("{verb} {path}")).or_default() += 1;
        }
        let other: usize = asked_for.values().sum();
        others = asked_for;
        let first = *first.get_or_insert(started.took);
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        rows.push(vec![
            pods.to_string(),
            time(started.took.as_nanos() as f64),
            growth(started.took.as_secs_f64(), first.as_secs_f64()),
            mib(bytes),
            mib(memory.peak << 10),
            mib(memory.resident << 10),
            format!("{} ({other} no watches)", idle.len()),
        ]);
    }
    let header = [
        "pods",
        "in sync after",
        "growth",
        "received",
        "peak memory",
        "memory",
        "requests in an idle minute",
    ];
    let title = format!(
        "Start of a node on a Kubernetes API server with {NAMESPACE_COUNT} namespaces and {POLICY_COUNT} policies"
    );
    table(&title, &header, &rows);
    let rows: Vec<Vec<String>> =
        others.into_iter().map(|(request, count)| vec![request, count.to_string()]).collect();
    table("What the idle minute's requests were that are no watches", &["request", "count"], &rows);
    let (set, taken) = crowd(&host, &server)?;
    let rows = [("set", set), ("taken away", taken)]
        .map(|(what, took)| vec![what.to_owned(), time(took.as_nanos() as f64)]);
    let title = format!(
        "A label of a namespace with {LARGE_NAMESPACE_PODS} pods, from the request (by curl) until the kernel has it"
    );
    table(&title, &["label", "took"], &rows);
    Ok(())
}

/// Measures how long it takes to set and to remove a label on a namespace with many pods, which a policy selects by
/// that label.
fn crowd(host: &NamespaceGroup, server: &ApiServer) -> BenchResult<(Duration, Duration)> {
    let pod = |number: usize| {
        let address = format!("{LARGE_NAMESPACE_PREFIX}{}.{}", number / 200, number % 200 + 1);
        let spec =
            json!({"nodeName": "node-1", "containers": [{"name": "c", "image": "registry.example/app:1"}]});
        let metadata = json!({"name": format!("pod-{number}"),
            "annotations": {"cni.projectcalico.org/podIPs": format!("{address}/32")}});
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        ("/api/v1/namespaces/crowd/pods".to_owned(), object)
    };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "crowd"}});
    server.create("/api/v1/namespaces", &namespace);
    server.create_all(&(0..LARGE_NAMESPACE_PODS).map(pod).collect::<Vec<_>>());
    // The very first pod is local and in the first namespace.
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "crowd"},
        "spec": {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"crowd": "yes"}}}]}]}});
    let path = format!("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", namespace_name(0));
    server.create(&path, &policy);
    let _started = StartedNode::start(host, server)?;
    let change = |label: Json, members: usize| -> BenchResult<Duration> {
        let begun = Instant::now();
        server.merge("/api/v1/namespaces/crowd", &json!({"metadata": {"labels": {"crowd": label}}}));
        while nft_output(host, &["list", "table", "inet", "tortie"])?.matches(LARGE_NAMESPACE_PREFIX).count()
            != members
        {
            check()?;
            if begun.elapsed() > IDLE_PERIOD {
                return Err(format!("the kernel does not get the {members} pods of the namespace").into());
            }
        }
        Ok(begun.elapsed())
    };
    Ok((change("yes".into(), LARGE_NAMESPACE_PODS)?, change(Json::Null, 0)?))
}

fn sizes() -> BenchResult<Vec<usize>> {
    let Ok(given) = std::env::var(PODS_VARIABLE) else { return Ok(POD_COUNTS.to_vec()) };
    let parsed: std::result::Result<Vec<usize>, _> =
        given.split(',').map(|size| size.trim().parse()).collect();
    let mut sizes = parsed.map_err(|error| format!("{PODS_VARIABLE}={given}: {error}"))?;
    sizes.sort_unstable();
    Ok(sizes)
}

/// A node daemon that is in sync.
struct StartedNode {
    daemon: BenchProcess,
    took: Duration,
    _dir: tempfile::TempDir,
}

impl StartedNode {
    fn start(host: &NamespaceGroup, server: &ApiServer) -> BenchResult<StartedNode> {
        nft(
            host,
            "add table inet bench\ndelete table inet bench\nadd table inet bench\nadd chain inet bench input { type filter hook input priority 0; }\nadd rule inet bench input tcp sport 6443 counter\n",
        )?;
        let dir = tempfile::Builder::new().prefix("tortie-bench-").tempdir()?;
        let mut command = BenchProcess::command("ip");
        command.args(["netns", "exec", host.name(0)]).arg(tortie()?).arg("node");
        command.arg("--state-dir").arg(dir.path().join("state")).arg("--run-dir").arg(dir.path().join("run"));
        command
            .envs(server.environment(CalicoGroup::V3))
            .env("KUBECONFIG", server.node_kubeconfig())
            .env("NODENAME", NODE_NAME)
            .env("CALICO_NETWORKING_BACKEND", "vxlan")
            .env("CALICO_IPV4POOL_CIDR", "10.64.0.0/12")
            .env("IP6", "none");
        let began = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let daemon = BenchProcess(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        if !line.starts_with("ready: ") {
            return Err(format!("the node does not get ready: {line:?}").into());
        }
        Ok(StartedNode { daemon, took: began.elapsed(), _dir: dir })
    }

    /// Returns the bytes that the API server has sent since the start.
    fn bytes(&self, host: &NamespaceGroup) -> BenchResult<u64> {
        let listed = nft_output(host, &["-j", "list", "table", "inet", "bench"])?;
        let listed: Json = serde_json::from_str(&listed)?;
        let objects = listed["nftables"].as_array().into_iter().flatten();
        let counters = objects.flat_map(|object| object["rule"]["expr"].as_array().into_iter().flatten());
        Ok(counters.filter_map(|expression| expression["counter"]["bytes"].as_u64()).sum())
    }
}

fn nft(host: &NamespaceGroup, commands: &str) -> BenchResult<()> {
    nft_output(host, &[commands]).map(drop)
}

fn nft_output(host: &NamespaceGroup, words: &[&str]) -> BenchResult<String> {
    let output = Command::new("ip").args(["netns", "exec", host.name(0), "nft"]).args(words).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

fn namespace_name(number: usize) -> String {
    format!("ns-{}", number % NAMESPACE_COUNT)
}

fn namespaces() -> Vec<(String, Json)> {
    let object = |number: usize| {
        let metadata =
            json!({"name": namespace_name(number), "labels": {"team": format!("t{}", number % 20)}});
        (
            "/api/v1/namespaces".to_owned(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}),
        )
    };
    (0..NAMESPACE_COUNT).map(object).collect()
}

fn policies() -> Vec<(String, Json)> {
    let object = |number: usize| {
        let peer = json!({"namespaceSelector": {"matchLabels": {"team": format!("t{}", number % 20)}},
            "podSelector": {"matchLabels": {"app": format!("a{}", number % 50)}}});
        let spec = json!({"podSelector": {"matchLabels": {"app": format!("a{}", (number + 1) % 50)}},
            "ingress": [{"from": [peer], "ports": [{"port": 80}, {"port": 443}]}]});
        let path =
            format!("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", namespace_name(number));
        let metadata = json!({"name": format!("p{number}")});
        (
            path,
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}),
        )
    };
    (0..POLICY_COUNT).map(object).collect()
}

/// Builds pods as controllers create them, with addresses, nearly all of them on other nodes.
fn pods(numbers: std::ops::Range<usize>) -> Vec<(String, Json)> {
    let object = |number: usize| {
        let address = format!("10.{}.{}.{}", 64 + number / 65536, number / 256 % 256, number % 256);
        let node = if number.is_multiple_of(PODS_PER_LOCAL_POD) {
            NODE_NAME.to_owned()
        } else {
            format!("node-{}", number % PODS_PER_LOCAL_POD)
        };
        let environment: Vec<Json> =
            (0..10).map(|n| json!({"name": format!("SETTING_{n}"), "value": "x".repeat(40)})).collect();
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("pod-{number}"),
                "labels": {"app": format!("a{}", number % 50), "pod-template-hash": "7d9f8c6b5", "tier": "x"},
                "annotations": {"cni.projectcalico.org/podIPs": format!("{address}/32")},
            },
            "spec": {"nodeName": node,
                "containers": [{"name": "c", "image": "registry.example/app:1", "env": environment,
                    "ports": [{"name": "http", "containerPort": 8080}]}]},
        });
        (format!("/api/v1/namespaces/{}/pods", namespace_name(number)), object)
    };
    numbers.map(object).collect()
}
