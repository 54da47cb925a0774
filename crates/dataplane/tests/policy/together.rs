//! The inet and arp tables change in the same transaction when an endpoint is added or removed.

use crate::namespace::{TestNamespace, id, start, workload};
use crate::plans::{POD_TWO_ADDRESSES, open_plan, reaches, two_pods, workload_policy};
use crate::table;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tortie_plan::PlanUpdate;

/// A running `nft monitor`, which prints the changes of each transaction.
struct NftMonitor<'a> {
    node: &'a TestNamespace,
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    marks: usize,
}

impl NftMonitor<'_> {
    fn start(node: &TestNamespace) -> NftMonitor<'_> {
        let mut process = node.command("nft").arg("monitor").stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        // nft prints nothing when it starts to listen; repeat a change until it appears.
        let stop = AtomicBool::new(false);
        let mut monitor = NftMonitor { node, process, lines, marks: 0 };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    node.nft("add table ip listening; delete table ip listening");
                    thread::sleep(Duration::from_millis(20));
                }
            });
            monitor.lines.next().unwrap().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
        monitor.transactions();
        monitor
    }

    /// Returns the tables changed by each transaction since the last call.
    fn transactions(&mut self) -> Vec<Vec<&'static str>> {
        self.marks += 1;
        let mark = format!("mark{}", self.marks);
        self.node.nft(&format!("add table ip {mark}"));
        let (mut transactions, mut tables) = (Vec::new(), Vec::new());
        loop {
            let line = self.lines.next().unwrap().unwrap();
            if line.contains(&mark) {
                return transactions;
            }
            // Count only transactions on our tables, not the marks.
            if line.starts_with("# new generation") && !tables.is_empty() {
                transactions.push(std::mem::take(&mut tables));
            }
            let ours = ["inet tortie", "arp tortie"].into_iter().find(|name| line.contains(name));
            tables.extend(ours.filter(|name| !tables.contains(name)));
        }
    }
}

impl Drop for NftMonitor<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn tables(node: &TestNamespace) -> [String; 2] {
    ["inet", "arp"].map(|family| table::sorted(&node.exec(&["nft", "-s", "list", "table", family, "tortie"])))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_comes_and_goes_in_one_transaction() {
    let (node, one, _two) = two_pods().await;
    let (dataplane, _reports) = start(&node).await;
    let mut plan = open_plan();
    plan.workloads.remove(&id("two"));
    plan.workload_policies.remove(&id("two"));
    dataplane.replace(plan).await.unwrap();
    let before = tables(&node);
    let mut monitor = NftMonitor::start(&node);

    let two = workload("cali2", &POD_TWO_ADDRESSES);
    let policy = workload_policy("cali2", &POD_TWO_ADDRESSES);
    let comes =
        vec![PlanUpdate::Workload(id("two"), Some(two)), PlanUpdate::WorkloadPolicy(id("two"), Some(policy))];
    assert_eq!(dataplane.apply(comes).await.unwrap().failures, []);
    let transactions = monitor.transactions();
    assert_eq!(transactions.len(), 1, "{transactions:?}");
    assert_eq!(transactions[0].len(), 2, "both tables: {transactions:?}");
    assert!(reaches(&one, POD_TWO_ADDRESSES[0]) && reaches(&one, POD_TWO_ADDRESSES[1]));

    let goes = vec![PlanUpdate::Workload(id("two"), None), PlanUpdate::WorkloadPolicy(id("two"), None)];
    assert_eq!(dataplane.apply(goes).await.unwrap().failures, []);
    let transactions = monitor.transactions();
    assert_eq!((transactions.len(), transactions[0].len()), (1, 2), "{transactions:?}");
    assert_eq!(tables(&node), before);
}
