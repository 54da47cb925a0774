//! Debug pages about the process: memory, tasks and CPU time by thread. They contain no data of the node.

use crate::state::NodeState;
use axum::Router;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::routing::get;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

const DEBUG_INDEX_PAGE: &str = "\
/debug/memory              memory of the process
/debug/tasks               tasks of the daemon, and how long its work takes
/debug/profile?seconds=5   processor time by thread within so many seconds, 60 at most
";

/// Unit of CPU times in procfs (USER_HZ), the same on every supported architecture.
const TICKS_PER_SECOND: u64 = 100;
const MAX_PROFILE_SECONDS: u64 = 60;
const DEFAULT_PROFILE_SECONDS: u64 = 5;

pub(super) fn build_debug_router(of: Handle, state: Arc<NodeState>) -> Router {
    Router::new()
        .route("/debug", get(|| async { DEBUG_INDEX_PAGE }))
        .route("/debug/", get(|| async { DEBUG_INDEX_PAGE }))
        .route("/debug/memory", get(|| async { answer_memory() }))
        .route("/debug/tasks", get(move || async move { answer_tasks(&of, &state) }))
        .route("/debug/profile", get(answer_profile))
}

/// Returns the memory statistics of the process from procfs.
fn answer_memory() -> String {
    let mut text = String::new();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for line in status.lines().filter(|line| line.starts_with("Vm") || line.starts_with("Rss")) {
        let _ = writeln!(text, "{line}");
    }
    text + &fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default()
}

fn answer_tasks(of: &Handle, state: &NodeState) -> String {
    let runtime = of.metrics();
    let mut text = format!(
        "threads of the runtime: {}\ntasks: {}\ntasks that wait for a thread: {}\n",
        runtime.num_workers(),
        runtime.num_alive_tasks(),
        runtime.global_queue_depth()
    );
    let work = ["felix_calc_graph_", "felix_int_dataplane_"];
    for line in state.metrics.text().lines().filter(|line| work.iter().any(|begins| line.starts_with(begins)))
    {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Parses the duration of a profile from the query parameter `seconds=N`, with a default.
fn parse_span(query: Option<&str>) -> Result<u64, InvalidSpan> {
    let given = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("seconds="));
    let Some(given) = given else { return Ok(DEFAULT_PROFILE_SECONDS) };
    let seconds = given.parse().ok().filter(|seconds| (1..=MAX_PROFILE_SECONDS).contains(seconds));
    seconds.ok_or_else(|| InvalidSpan(given.to_owned()))
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("seconds: {0:?} is not a number between 1 and {MAX_PROFILE_SECONDS}")]
struct InvalidSpan(String);

async fn answer_profile(RawQuery(query): RawQuery) -> (StatusCode, String) {
    let seconds = match parse_span(query.as_deref()) {
        Ok(seconds) => seconds,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    let before = list_threads();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let after = list_threads().into_iter();
    let mut all: Vec<(u64, String)> = after
        .map(|(id, thread)| {
            let began = before.get(&id).map_or(0, |before| before.ticks);
            (thread.ticks.saturating_sub(began), thread.name)
        })
        .collect();
    all.sort_by(|one, other| other.cmp(one));
    let mut text = format!("milliseconds of processor time by thread, of {seconds} s\n");
    for (ticks, name) in all {
        let _ = writeln!(text, "{:>8} {name}", ticks * 1000 / TICKS_PER_SECOND);
    }
    (StatusCode::OK, text)
}

struct ThreadUsage {
    name: String,
    /// CPU time in clock ticks.
    ticks: u64,
}

fn list_threads() -> BTreeMap<u64, ThreadUsage> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let threads = entries.filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        Some((id, parse_thread(&fs::read_to_string(entry.path().join("stat")).ok()?)?))
    });
    threads.collect()
}

/// Parses `/proc/self/task/ID/stat`: `12 (name) S ...`, where the name may contain any character.
fn parse_thread(stat: &str) -> Option<ThreadUsage> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    // Fields 14 and 15 (utime, stime); `rest` begins with the third field.
    let mut times = rest.split(' ').skip(11).map(|field| field.parse::<u64>().ok());
    Some(ThreadUsage { name: name.to_owned(), ticks: times.next()?? + times.next()?? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_read_whatever_their_name() {
        let stat = "17 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        let read = parse_thread(stat).unwrap();
        assert_eq!((read.name.as_str(), read.ticks), ("a) b (c", 300));
        assert!(parse_thread("17 (short) S 1").is_none());
    }

    #[test]
    fn a_profile_has_an_end() {
        assert_eq!((parse_span(None), parse_span(Some("seconds=60"))), (Ok(DEFAULT_PROFILE_SECONDS), Ok(60)));
        for wrong in ["seconds=61", "seconds=0", "seconds=", "seconds=-1"] {
            assert!(parse_span(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
