//! A restart of the daemon with an unchanged plan changes nothing in the kernel.

use crate::namespace::{node_pair, plan, pod, start, workload};
use std::process::{Child, Stdio};
use std::time::Duration;
use tortie_plan::Route;

/// A child process that is killed when the test ends.
struct ChildProcess(Option<Child>);

impl ChildProcess {
    /// Kills the process and returns its output.
    fn stop(mut self) -> String {
        self.0.as_mut().unwrap().kill().unwrap();
        self.ends()
    }

    /// Waits until the process exits and returns its output.
    fn ends(mut self) -> String {
        let child = self.0.take().unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_the_same_plan_changes_nothing() {
    let (node, _other) = node_pair();
    let _sandbox = pod(&node, "cali1", &["10.65.0.2", "fd80:65::2"]).await;
    let workloads = [("one", workload("cali1", &["10.65.0.2", "fd80:65::2"]))];
    let routes = [
        ("10.65.0.0/26", Route::BLACKHOLE),
        ("10.65.1.0/26", Route::via("192.168.77.2".parse().unwrap())),
        ("fd80:65::/122", Route::BLACKHOLE),
        ("fd80:66::/122", Route::via("fd77::2".parse().unwrap())),
    ];
    let wanted = plan(&workloads, &routes);
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(wanted.clone()).await.unwrap();
    drop(dataplane);
    assert_eq!(node.routes("10.65.0.2/32").len(), 1, "stopping removes nothing");

    let mut monitor = node.command("ip");
    monitor.args(["-o", "monitor", "route", "link"]).stdout(Stdio::piped());
    let monitor = ChildProcess(Some(monitor.spawn().unwrap()));
    let mut ping = node.command("ping");
    ping.args(["-q", "-c", "400", "-i", "0.01", "-W", "5", "10.65.0.2"]).stdout(Stdio::piped());
    let ping = ChildProcess(Some(ping.spawn().unwrap()));
    // Only events after this marker count; the marker also proves that the monitor is running.
    tokio::time::sleep(Duration::from_millis(500)).await;
    node.ip("route add 10.99.0.1/32 dev eth0");

    let (dataplane, mut reports) = start(&node).await;
    dataplane.replace(wanted).await.unwrap();
    while !matches!(reports.next().await, Some(tortie_dataplane::DataplaneReport::Workload { .. })) {}
    tokio::time::sleep(Duration::from_secs(2)).await;
    node.ip("route del 10.99.0.1/32 dev eth0");
    let answers = ping.ends();
    assert!(answers.contains(" 0% packet loss"), "{answers}");

    let seen = monitor.stop();
    let changes: Vec<&str> = seen.lines().filter(|line| !line.contains("10.99.0.1")).collect();
    assert!(seen.contains("10.99.0.1"), "the monitor saw nothing");
    assert_eq!(changes, [""; 0], "the restart was visible");
}
