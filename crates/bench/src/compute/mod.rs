//! From the datastore to a node's plan, in the shapes that Felix's own benchmarks of its calculation graph use, beside the
//! figures published for it. Those were taken on a laptop (i9-8950HK) and count its live heap; ours is what a fresh process
//! has resident more afterwards than before, which is never less than the live heap.

mod shapes;

use crate::Outcome;
use crate::measure::{table, time, times};
use shapes::Shape;
use std::process::Command;
use tortie_compute::{Compute, Environment};
use tortie_plan::Update;

const ROUNDS: usize = 3;

/// What one run gave.
#[derive(Clone, Copy, Debug)]
struct Run {
    seconds: f64,
    mebibytes: f64,
    /// One more endpoint, one more policy, once everything is there.
    endpoint: f64,
    policy: f64,
    sets: usize,
    policies: usize,
}

pub fn run() -> Outcome {
    if let Some(shape) = std::env::var_os(CHILD) {
        let shape = shape.into_string().unwrap_or_default();
        let shape = shapes::ALL.iter().find(|known| known.name == shape).ok_or("no such shape")?;
        let run = measure(shape);
        let Run { seconds, mebibytes, endpoint, policy, sets, policies } = run;
        println!("{seconds} {mebibytes} {endpoint} {policy} {sets} {policies}");
        return Ok(());
    }
    let mut rows = Vec::new();
    let mut before: Option<(&str, usize, Run)> = None;
    for shape in &shapes::ALL {
        let mut runs = Vec::new();
        for _ in 0..ROUNDS {
            runs.push(in_a_process_of_its_own(shape)?);
        }
        runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let run = runs[ROUNDS / 2];
        let growth = match before {
            Some((family, size, smaller)) if family == shape.family => format!(
                "{} for {}",
                times(run.seconds / smaller.seconds),
                times(shape.size as f64 / size as f64)
            ),
            _ => String::new(),
        };
        rows.push(vec![
            shape.name.to_owned(),
            time(run.seconds * 1e9),
            shape.felix.0.map_or_else(String::new, |felix| time(felix * 1e9)),
            shape.felix.0.map_or_else(String::new, |felix| times(felix / run.seconds)),
            format!("{:.0} MiB", run.mebibytes),
            shape.felix.1.map_or_else(String::new, |felix| format!("{felix:.0} MB")),
            shape.felix.1.map_or_else(String::new, |felix| times(felix / run.mebibytes)),
            growth,
            time(run.endpoint * 1e9),
            time(run.policy * 1e9),
            format!("{}, {}", run.policies, run.sets),
        ]);
        before = Some((shape.family, shape.size, run));
    }
    table(
        "A whole datastore to a plan, then one change more (Felix: published, laptop i9-8950HK, not measured here)",
        &[
            "shape",
            "time",
            "Felix",
            "Felix/ours",
            "memory",
            "Felix",
            "Felix/ours",
            "growth",
            "+1 endpoint",
            "+1 policy",
            "policies, sets",
        ],
        &rows,
    );
    Ok(())
}

/// Names the shape that this process is to measure.
const CHILD: &str = "TORTIE_BENCH_COMPUTE_SHAPE";

/// Memory that one shape leaves behind would help the next.
fn in_a_process_of_its_own(shape: &Shape) -> Result<Run, Box<dyn std::error::Error>> {
    let output = Command::new(std::env::current_exe()?).arg("compute").env(CHILD, shape.name).output()?;
    let text = String::from_utf8(output.stdout)?;
    let numbers: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    match numbers[..] {
        [seconds, mebibytes, endpoint, policy, sets, policies] => {
            Ok(Run { seconds, mebibytes, endpoint, policy, sets: sets as usize, policies: policies as usize })
        }
        _ => Err(format!("{}: {text}{}", shape.name, String::from_utf8_lossy(&output.stderr)).into()),
    }
}

fn measure(shape: &Shape) -> Run {
    let mut compute = Compute::new(shapes::HOST, Environment::default());
    let before = resident();
    let mut seconds = 0.0;
    let mut updates = 0;
    // The entries are made in portions and gone before the next: they are not ours to keep.
    (shape.entries)(shape.size, &mut |entries| {
        let start = crate::measure::now();
        entries.iter().for_each(|(key, value)| compute.put(key, value));
        seconds += (crate::measure::now() - start) / 1e9;
    });
    let mut timed = |compute: &mut Compute, entries: &[shapes::Entry]| {
        let start = crate::measure::now();
        entries.iter().for_each(|(key, value)| compute.put(key, value));
        let told: Vec<Update> = compute.flush();
        let seconds = (crate::measure::now() - start) / 1e9;
        updates += told.len();
        seconds
    };
    seconds += timed(&mut compute, &[]);
    let mebibytes = resident() - before;
    let totals = compute.totals();
    let one = |compute: &mut Compute,
               make: &dyn Fn(usize) -> shapes::Entry,
               timed: &mut dyn FnMut(&mut Compute, &[shapes::Entry]) -> f64| {
        let mut all: Vec<f64> = (0..101).map(|n| timed(compute, &[make(n)])).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let endpoint = one(&mut compute, &|n| (shape.endpoint)(n), &mut timed);
    let policy = one(&mut compute, &|n| (shape.policy)(n), &mut timed);
    std::hint::black_box(updates);
    Run { seconds, mebibytes, endpoint, policy, sets: totals.sets, policies: totals.active_policies }
}

/// Mebibytes of memory that this process has.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or_default();
    pages * 4096.0 / (1024.0 * 1024.0)
}
