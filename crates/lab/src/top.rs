//! `lab top`: periodically prints the resource usage of each daemon with the pods, routes and sessions of its node.

use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::sessions;
use crate::{enter, hub, kube, netns, node, pod, routes, status};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use tortie_process::stat_fields;

/// Unit of CPU time in /proc (USER_HZ), which is 100 on all Linux systems.
const TICKS_PER_SECOND: f64 = 100.0;
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

/// Sample of one daemon.
#[derive(Debug)]
struct TopRow {
    name: String,
    usage: Option<ProcessUsage>,
    /// Number of pods, routes and BGP sessions of a node; `None` for the datastore and hubs.
    node: Option<[String; 3]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessUsage {
    pid: u32,
    /// CPU time since its start, in ticks.
    ticks: u64,
    /// Resident memory in KiB.
    memory: u64,
}

/// Prints a table after each pause, `count` times or until interrupted.
pub async fn top(
    place: &LabPaths,
    count: Option<u32>,
    pause: Duration,
    out: &mut dyn Write,
) -> LabResult<()> {
    let cluster = LabCluster::load(place)?;
    enter::reach_store(place, &cluster)?;
    let clear = std::io::stdout().is_terminal();
    let mut before: BTreeMap<String, ProcessUsage> = BTreeMap::new();
    let mut taken = Instant::now();
    let mut left = count;
    // The first table needs a sample to compare with.
    remember(&mut before, &gather(place, &cluster).await?);
    while left != Some(0) {
        tokio::time::sleep(pause).await;
        let rows = gather(place, &cluster).await?;
        let table = table(&rows, &before, taken.elapsed());
        taken = Instant::now();
        remember(&mut before, &rows);
        let screen = if clear { format!("{CLEAR_SCREEN}{table}") } else { table };
        out.write_all(screen.as_bytes()).and_then(|()| out.flush()).map_err(LabError::Output)?;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

fn remember(before: &mut BTreeMap<String, ProcessUsage>, rows: &[TopRow]) {
    *before = rows.iter().filter_map(|row| Some((row.name.clone(), row.usage?))).collect();
}

async fn gather(place: &LabPaths, cluster: &LabCluster) -> LabResult<Vec<TopRow>> {
    let pods = pod::list(place, cluster).await?;
    let usage = status::store_of(place, cluster).running().and_then(ProcessUsage::read);
    let mut rows = vec![TopRow { name: "store".to_owned(), usage, node: None }];
    for number in 1..=cluster.process_hubs() {
        let usage = hub::daemon(place, number).running().and_then(ProcessUsage::read);
        rows.push(TopRow { name: format!("hub {number}"), usage, node: None });
    }
    for node in &cluster.nodes {
        let connection = netns::connection(&netns::open(&place.node_netns(&node.name))?)?;
        let sessions = sessions::list(&place.node_dir(&node.name).join("run")).await;
        let up = sessions.iter().filter(|session| session.state == "Established").count();
        let own = pods.iter().filter(|pod| pod.node == node.name).count();
        rows.push(TopRow {
            name: node.name.clone(),
            usage: daemon_process(place, cluster, &node.name).and_then(ProcessUsage::read),
            node: Some([
                own.to_string(),
                routes::list(&connection).await?.len().to_string(),
                format!("{up}/{}", sessions.len()),
            ]),
        });
    }
    Ok(rows)
}

/// Returns the process of a node's daemon.
fn daemon_process(place: &LabPaths, cluster: &LabCluster, name: &str) -> Option<u32> {
    match cluster.kubernetes {
        Some(_) => kube::node::daemon_process(place, name),
        None => node::daemon(place, name).running(),
    }
}

impl ProcessUsage {
    fn read(pid: u32) -> Option<ProcessUsage> {
        let [stat, status] =
            ["stat", "status"].map(|file| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok());
        Some(ProcessUsage { pid, ticks: parse_ticks(&stat?)?, memory: parse_memory(&status?)? })
    }
}

/// Returns user plus system time.
fn parse_ticks(stat: &str) -> Option<u64> {
    let mut times = stat_fields(stat)?.skip(11);
    Some(times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?)
}

fn parse_memory(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn table(rows: &[TopRow], before: &BTreeMap<String, ProcessUsage>, passed: Duration) -> String {
    let headings = ["NAME", "STATE", "CPU %", "MEMORY", "PODS", "ROUTES", "BGP"].map(str::to_owned);
    let mut lines = vec![headings];
    for row in rows {
        let [pods, routes, sessions] = row.node.clone().unwrap_or_default();
        let (state, cpu, memory) = match row.usage {
            None => ("stopped", String::new(), String::new()),
            Some(usage) => {
                // A restarted daemon has no previous sample.
                let earlier = before.get(&row.name).filter(|earlier| earlier.pid == usage.pid);
                let spent = usage.ticks.saturating_sub(earlier.map_or(usage.ticks, |earlier| earlier.ticks));
                let percent = spent as f64 / TICKS_PER_SECOND / passed.as_secs_f64().max(0.001) * 100.0;
                ("running", format!("{percent:.1}"), format!("{} MiB", usage.memory / 1024))
            }
        };
        lines.push([row.name.clone(), state.to_owned(), cpu, memory, pods, routes, sessions]);
    }
    let widths: [usize; 7] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0));
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_time_is_parsed_after_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 1 0 99 0 0";
        assert_eq!(parse_ticks(stat), Some(42));
        assert_eq!(parse_ticks("nonsense"), None);
        assert_eq!(parse_memory("Name:\tx\nVmRSS:\t   2048 kB\n"), Some(2048));
        assert!(ProcessUsage::read(std::process::id()).is_some_and(|usage| usage.memory > 0));
    }

    #[test]
    fn a_table_shows_the_share_of_a_processor() {
        let usage = |pid, ticks| Some(ProcessUsage { pid, ticks, memory: 20_480 });
        let nodes = [("node1", usage(7, 150)), ("node2", usage(9, 900)), ("node3", None)];
        let rows: Vec<TopRow> = nodes
            .into_iter()
            .map(|(name, usage)| TopRow {
                name: name.to_owned(),
                usage,
                node: Some(["2", "8", "1/2"].map(str::to_owned)),
            })
            .collect();
        let earlier = |pid| ProcessUsage { pid, ticks: 100, memory: 0 };
        // node2 was restarted.
        let before = BTreeMap::from([("node1".to_owned(), earlier(7)), ("node2".to_owned(), earlier(8))]);
        assert_eq!(
            table(&rows, &before, Duration::from_secs(2)),
            "NAME   STATE    CPU %  MEMORY  PODS  ROUTES  BGP\n\
             node1  running  25.0   20 MiB  2     8       1/2\n\
             node2  running  0.0    20 MiB  2     8       1/2\n\
             node3  stopped                 2     8       1/2\n"
        );
    }
}
