//! Measures the computation from the datastore to a node's plan, with the workloads of Felix's calculation graph
//! benchmarks and the figures published for it, which were measured on a laptop (i9-8950HK).
//!
//! Both take decoded entries and produce plan updates, and both end with deleting the node's own endpoints. Felix's
//! entries are validated and their addresses parsed beforehand, Tortie's are not; therefore the time is given with and
//! without validation. Memory is the heap that `PlanCompute` holds when all entries are loaded, and the growth of the
//! resident size, which includes temporary allocations.

mod shapes;

use crate::measure::{Latencies, now, table, time, times};
use crate::{SuiteResult, heap};
use shapes::{WorkloadEntry, WorkloadShape};
use std::process::Command;
use std::time::Duration;
use tortie_compute::{ParameterEnvironment, PlanCompute};
use tortie_model::StoreValue;

const REPETITIONS: usize = 3;
/// Number of changes of each kind.
const CHANGE_COUNT: usize = 500;

/// Result of one run.
#[derive(Clone, Debug)]
struct ComputeRun {
    seconds: f64,
    checking: f64,
    live: f64,
    resident: f64,
    policies: usize,
    sets: usize,
    /// Median and 99th percentile of each kind of change, in nanoseconds.
    changes: Vec<[f64; 2]>,
}

pub fn run() -> SuiteResult {
    if let Some(shape) = std::env::var_os(SHAPE_ENV) {
        let shape = shape.into_string().unwrap_or_default();
        let shape = shapes::ALL_SHAPES.iter().find(|known| known.name == shape).ok_or("no such shape")?;
        println!("{}", measure(shape).print());
        return Ok(());
    }
    let (mut whole, mut changes) = (Vec::new(), Vec::new());
    let mut before: Option<(&str, usize, ComputeRun)> = None;
    for shape in &shapes::ALL_SHAPES {
        let mut runs = Vec::new();
        for _ in 0..REPETITIONS {
            runs.push(in_a_process_of_its_own(shape)?);
        }
        runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let run = runs.swap_remove(REPETITIONS / 2);
        let smaller = before.take().filter(|(family, ..)| *family == shape.family);
        whole.push(row_of_whole(shape, &run, smaller.as_ref().map(|(_, size, run)| (*size, run))));
        let cells = run.changes.iter().map(|[p50, p99]| format!("{} / {}", time(*p50), time(*p99)));
        changes.push(std::iter::once(shape.name.to_owned()).chain(cells).collect());
        before = Some((shape.family, shape.size, run));
    }
    table(
        "A whole datastore to a plan: processor time and memory (Felix: published, laptop i9-8950HK, not measured here)",
        &[
            "shape",
            "time",
            "without checking",
            "Felix",
            "Felix/ours",
            "live heap",
            "resident",
            "Felix's live heap",
            "Felix/ours",
            "growth",
            "policies, sets",
        ],
        &whole,
    );
    let mut header = vec!["shape"];
    header.extend(shapes::CHANGE_NAMES);
    table("One change more, once all that is there: processor time, p50 / p99", &header, &changes);
    Ok(())
}

fn row_of_whole(
    shape: &WorkloadShape,
    run: &ComputeRun,
    smaller: Option<(usize, &ComputeRun)>,
) -> Vec<String> {
    let unchecked = run.seconds - run.checking;
    let (felix_seconds, felix_live) = shape.felix;
    let or_nothing =
        |felix: Option<f64>, print: &dyn Fn(f64) -> String| felix.map_or_else(String::new, print);
    vec![
        shape.name.to_owned(),
        time(run.seconds * 1e9),
        time(unchecked * 1e9),
        or_nothing(felix_seconds, &|felix| time(felix * 1e9)),
        or_nothing(felix_seconds, &|felix| {
            format!("{}, {}", times(felix / run.seconds), times(felix / unchecked))
        }),
        format!("{:.1} MB", run.live),
        format!("{:.1} MB", run.resident),
        or_nothing(felix_live, &|felix| format!("{felix:.0} MB")),
        or_nothing(felix_live, &|felix| times(felix / run.live)),
        smaller.map_or_else(String::new, |(size, smaller)| {
            let size = shape.size as f64 / size as f64;
            format!("{} for {}", times(run.seconds / smaller.seconds), times(size))
        }),
        format!("{}, {}", run.policies, run.sets),
    ]
}

/// Environment variable that names the shape that this process measures.
const SHAPE_ENV: &str = "TORTIE_BENCH_COMPUTE_SHAPE";

/// Measures a shape in a child process, since memory freed by one shape would help the next.
fn in_a_process_of_its_own(shape: &WorkloadShape) -> Result<ComputeRun, Box<dyn std::error::Error>> {
    let output = Command::new(std::env::current_exe()?)
        .args(["worker", "compute"])
        .env(SHAPE_ENV, shape.name)
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    ComputeRun::parse(&text)
        .ok_or_else(|| format!("{}: {text}{}", shape.name, String::from_utf8_lossy(&output.stderr)).into())
}

impl ComputeRun {
    fn print(&self) -> String {
        let ComputeRun { seconds, checking, live, resident, policies, sets, changes } = self;
        let changes: Vec<String> = changes.iter().map(|[p50, p99]| format!("{p50} {p99}")).collect();
        format!("{seconds} {checking} {live} {resident} {policies} {sets} {}", changes.join(" "))
    }

    fn parse(text: &str) -> Option<ComputeRun> {
        let numbers: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let [seconds, checking, live, resident, policies, sets, changes @ ..] = &numbers[..] else {
            return None;
        };
        Some(ComputeRun {
            seconds: *seconds,
            checking: *checking,
            live: *live,
            resident: *resident,
            policies: *policies as usize,
            sets: *sets as usize,
            changes: changes.as_chunks().0.to_vec(),
        })
    }
}

fn measure(shape: &WorkloadShape) -> ComputeRun {
    let mut compute = PlanCompute::new(shapes::LOCAL_NODE, ParameterEnvironment::default());
    let (live, resident) = (heap::live(), self::resident());
    let (mut seconds, mut checking) = (0.0, 0.0);
    let mut own = Vec::new();
    // Entries are created in batches and dropped before the next one, so that they do not count as memory.
    (shape.entries)(shape.size, &mut |entries| {
        seconds += timed(|| entries.iter().for_each(|(key, value)| compute.put(key, value)));
        checking += timed(|| entries.iter().for_each(check));
        own.extend(entries.iter().filter(|entry| shapes::is_own(entry)).map(|(key, _)| key.clone()));
    });
    seconds += timed(|| compute.flush());
    let (live, resident) = (heap::live() - live, self::resident() - resident);
    let totals = compute.totals();
    let changes = (shape.changes)(shape.size);
    let changes = changes.iter().map(|change| quantiles(&mut compute, change)).collect();
    seconds += timed(|| {
        own.iter().for_each(|key| compute.delete(key));
        compute.flush()
    });
    ComputeRun {
        seconds,
        checking,
        live,
        resident,
        policies: totals.active_policies,
        sets: totals.sets,
        changes,
    }
}

/// Returns the CPU time quantiles of single changes, each flushed before the next.
fn quantiles(compute: &mut PlanCompute, change: &dyn Fn(usize) -> WorkloadEntry) -> [f64; 2] {
    let mut all = Latencies::default();
    for n in 0..CHANGE_COUNT {
        let (key, value) = change(n);
        let seconds = timed(|| {
            compute.put(&key, &value);
            compute.flush()
        });
        all.0.push(Duration::from_secs_f64(seconds));
    }
    [0.5, 0.99].map(|quantile| all.quantile(quantile).as_secs_f64() * 1e9)
}

/// Returns the CPU seconds that `work` takes, without dropping its result.
fn timed<T>(work: impl FnOnce() -> T) -> f64 {
    let start = now();
    let result = std::hint::black_box(work());
    let seconds = (now() - start) / 1e9;
    drop(result);
    seconds
}

fn check((_, value): &WorkloadEntry) {
    if let StoreValue::Resource(resource) = value {
        std::hint::black_box(resource.validate()).ok();
    }
}

/// Returns the resident memory of this process in megabytes.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or_default();
    pages * 4096.0 / 1e6
}
