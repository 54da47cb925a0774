//! Measures pods started by a real kubelet: the time until they run, the time of their sandboxes, and the share of the
//! CNI plugin.

use crate::measure::{Latencies, table, time};
use crate::namespace::{BenchResult, check};
use crate::process::tortie;
use crate::{SuiteResult, plain};
use serde_json::{Value as Json, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const POD_COUNT: usize = 20;
/// Environment variable that overrides the number of pods.
const PODS_VARIABLE: &str = "TORTIE_BENCH_KUBELET_PODS";
const POD_START_TIMEOUT: Duration = Duration::from_secs(300);
/// Metrics of kubelet and the runtime, in seconds. Kubelet's own sandbox metric does not include the creation of the
/// sandbox.
const SANDBOX_METRIC: HistogramMetric = HistogramMetric {
    name: "kubelet_runtime_operations_duration_seconds",
    label: r#"operation_type="run_podsandbox""#,
};
const NETWORK_METRIC: HistogramMetric =
    HistogramMetric { name: "containerd_cri_sandbox_create_network_seconds", label: "" };

#[derive(Clone, Copy)]
struct HistogramMetric {
    name: &'static str,
    /// Label of the lines to count; empty for all.
    label: &'static str,
}

/// A lab with one node, removed when dropped.
struct BenchLab {
    tortie: PathBuf,
    dir: TempDir,
    name: String,
}

pub fn run() -> SuiteResult {
    measure().map_err(plain)
}

fn measure() -> BenchResult<()> {
    let count = match std::env::var(PODS_VARIABLE) {
        Ok(given) => given.parse().map_err(|error| format!("{PODS_VARIABLE}={given}: {error}"))?,
        Err(_) => POD_COUNT,
    };
    let lab = BenchLab::up()?;
    let mut latencies = Latencies::default();
    let (sandboxes, networks) = (lab.kubelet(SANDBOX_METRIC)?, lab.runtime(NETWORK_METRIC)?);
    for number in 0..count {
        check()?;
        latencies.0.push(lab.start_pod(number)?);
    }
    let sandbox = lab.kubelet(SANDBOX_METRIC)?.since(sandboxes);
    let network = lab.runtime(NETWORK_METRIC)?.since(networks);
    let whole = latencies.quantile(0.5).as_secs_f64();
    let rows = [
        ("a pod, from its creation until it runs (median)", whole),
        ("kubelet: its sandbox (mean)", sandbox),
        ("the runtime: the plugins' ADD, ours and portmap (mean)", network),
    ];
    let rows = rows.map(|(what, seconds)| {
        vec![what.to_owned(), time(seconds * 1e9), format!("{:.0} %", 100.0 * seconds / whole)]
    });
    let title = format!("{count} pods through kubelet, one after the other");
    table(&title, &["what", "took", "of the whole"], &rows);
    Ok(())
}

/// Sum and count of a histogram.
#[derive(Clone, Copy, Default)]
struct HistogramTotal {
    seconds: f64,
    count: f64,
}

impl HistogramTotal {
    fn read(text: &str, HistogramMetric { name, label }: HistogramMetric) -> HistogramTotal {
        let sum = |suffix: &str| -> f64 {
            let start = format!("{name}{suffix}");
            let lines = text.lines().filter(|line| line.starts_with(&start) && line.contains(label));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        HistogramTotal { seconds: sum("_sum"), count: sum("_count") }
    }

    /// Returns the mean of the observations since `before`.
    fn since(self, before: HistogramTotal) -> f64 {
        (self.seconds - before.seconds) / (self.count - before.count).max(1.0)
    }
}

impl BenchLab {
    fn up() -> BenchResult<BenchLab> {
        let dir = tempfile::Builder::new().prefix("tortie-bench-").tempdir()?;
        let lab = BenchLab { tortie: tortie()?, dir, name: format!("bench{}", std::process::id()) };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kube/build");
        let programs =
            String::from_utf8_lossy(&Command::new(script).arg("dir").output()?.stdout).trim().to_owned();
        lab.run(&["up", "--kubernetes", "--nodes", "1", "--no-dns", "--kube", &programs])?;
        Ok(lab)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.tortie);
        command.args(["lab", "--name", &self.name, "--dir"]).arg(self.dir.path().join("lab")).args(words);
        command.stdin(Stdio::null()).env_remove("KUBECONFIG");
        command
    }

    fn run(&self, words: &[&str]) -> BenchResult<String> {
        let output = self.command(words).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("lab {words:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
        }
    }

    fn kubelet(&self, metric: HistogramMetric) -> BenchResult<HistogramTotal> {
        let page = self.run(&["kubectl", "get", "--raw", "/api/v1/nodes/node1/proxy/metrics"])?;
        Ok(HistogramTotal::read(&page, metric))
    }

    fn runtime(&self, metric: HistogramMetric) -> BenchResult<HistogramTotal> {
        let page = self.run(&["exec", "node1", "--", "curl", "-s", "http://127.0.0.1:1338/v1/metrics"])?;
        Ok(HistogramTotal::read(&page, metric))
    }

    /// Creates a pod and returns the time until it is running.
    fn start_pod(&self, number: usize) -> BenchResult<Duration> {
        let container = json!({"name": "c", "image": "docker.io/library/busybox:latest", "imagePullPolicy": "Never",
            "command": ["sleep", "86400"]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{number}")},
            "spec": {"nodeName": "node1", "terminationGracePeriodSeconds": 0, "containers": [container]}});
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(pod.to_string().as_bytes())?;
        self.run(&["kubectl", "create", "--filename", &file.path().display().to_string()])?;
        let began = Instant::now();
        loop {
            let said = self.run(&["kubectl", "get", "pod", &format!("p{number}"), "-o", "json"])?;
            let pod: Json = serde_json::from_str(&said)?;
            // The timestamps in the API have a resolution of one second, so the time is measured here.
            if pod["status"]["phase"] == "Running" {
                return Ok(began.elapsed());
            }
            check()?;
            if began.elapsed() > POD_START_TIMEOUT {
                return Err(format!("p{number} does not run: {}", pod["status"]).into());
            }
        }
    }
}

impl Drop for BenchLab {
    fn drop(&mut self) {
        let _ = self.run(&["down"]);
    }
}
