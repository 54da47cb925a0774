//! A CNI plugin to measure: its program, host namespace and configuration.

use crate::measure::Latencies;
use crate::namespace::{BenchResult, check, enter};
use crate::node::BenchNode;
use crate::process::time_of_the_ended;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub struct PluginCandidate<'a> {
    pub program: PathBuf,
    /// Network namespace of the host.
    pub host: PathBuf,
    pub config: String,
    /// Interface name in pods. Existing pods have one interface per candidate.
    pub ifname: &'static str,
    /// Node whose processes work for the plugin; their CPU time is counted.
    pub node: Option<&'a BenchNode>,
}

/// Results of many calls: each latency, the elapsed time and the CPU time.
#[derive(Clone, Debug, Default)]
pub struct CallPhase {
    pub each: Latencies,
    time: Duration,
    processor: Duration,
}

impl CallPhase {
    pub fn add(&mut self, other: CallPhase) {
        self.each.extend(other.each);
        self.time += other.time;
        self.processor += other.processor;
    }

    pub fn per_second(&self) -> f64 {
        self.each.0.len() as f64 / self.time.as_secs_f64()
    }

    /// Returns the CPU seconds per call.
    pub fn processor(&self) -> f64 {
        self.processor.as_secs_f64() / self.each.0.len() as f64
    }
}

impl PluginCandidate<'_> {
    /// Calls the plugin with the command for all pods, `at_once` of them concurrently.
    pub fn call_all(&self, command: &str, pods: &[PathBuf], at_once: usize) -> BenchResult<CallPhase> {
        let processor = self.processor_time()?;
        let start = Instant::now();
        let latencies = std::thread::scope(|scope| {
            let caller = |number: usize| {
                move || {
                    enter(&self.host)?;
                    let mine = pods.iter().skip(number).step_by(at_once);
                    mine.map(|pod| self.call(command, Some(pod))).collect::<BenchResult<Vec<Duration>>>()
                }
            };
            let running: Vec<_> = (0..at_once).map(|number| scope.spawn(caller(number))).collect();
            let ended = running
                .into_iter()
                .map(|caller| caller.join().unwrap_or_else(|_| Err("a caller died".into())));
            ended.collect::<BenchResult<Vec<_>>>()
        })?;
        let time = start.elapsed();
        let each = Latencies(latencies.into_iter().flatten().collect());
        Ok(CallPhase { each, time, processor: self.processor_time()?.saturating_sub(processor) })
    }

    /// Calls the plugin repeatedly without a pod.
    pub fn call_often(&self, command: &str, times: usize) -> BenchResult<Latencies> {
        let caller = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                enter(&self.host)?;
                (0..times).map(|_| self.call(command, None)).collect::<BenchResult<Vec<Duration>>>()
            });
            running.join().unwrap_or_else(|_| Err("a caller died".into()))
        });
        caller.map(Latencies)
    }

    /// Calls the plugin and returns the time from its start to its exit.
    fn call(&self, command: &str, pod: Option<&PathBuf>) -> BenchResult<Duration> {
        check()?;
        let container = pod.map_or_else(String::new, |pod| container_id(pod));
        let start = Instant::now();
        let mut child = Command::new(&self.program)
            .env_clear()
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &container)
            .env("CNI_NETNS", pod.map(PathBuf::as_path).unwrap_or(Path::new("")))
            .env("CNI_IFNAME", self.ifname)
            .env("CNI_PATH", self.program.with_file_name(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // VERSION does not read its configuration. Any other failure shows in the exit code.
            let _ = input.write_all(self.config.as_bytes());
        }
        let output = child.wait_with_output()?;
        let took = start.elapsed();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stdout);
            return Err(format!("{} {command} {container:?}: {said}", self.program.display()).into());
        }
        Ok(took)
    }

    fn processor_time(&self) -> BenchResult<Duration> {
        Ok(time_of_the_ended()? + self.node.map_or(Ok(Duration::ZERO), BenchNode::processor_time)?)
    }
}

/// Returns a container id. Ids of different pods differ in their first characters, like those of runtimes.
fn container_id(pod: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    pod.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
