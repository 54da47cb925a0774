//! A host whose /proc/sys is read-only, as in an unprivileged container: the error names the cause, and nothing is
//! left behind.

use crate::namespace::{OpenNetns, TestNamespace, plan, request, workload};
use std::process::Command;
use std::time::Duration;
use tortie_dataplane::{DataplaneHandle, DataplaneReport, WorkloadState, pod};
use tortie_plan::DataplaneSettings;

const READ_ONLY_CHILD_VARIABLE: &str = "TORTIE_TEST_READ_ONLY_SYSCTL";
const READ_ONLY_TEST_NAME: &str = "read_only::read_only_settings_are_named_in_the_error";

#[tokio::test(flavor = "multi_thread")]
async fn read_only_settings_are_named_in_the_error() {
    if std::env::var_os(READ_ONLY_CHILD_VARIABLE).is_some() {
        return inside().await;
    }
    // Run this test again in a mount namespace where /proc/sys is read-only.
    let script =
        "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec \"$0\" \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", READ_ONLY_TEST_NAME, "--nocapture"])
        .env(READ_ONLY_CHILD_VARIABLE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

async fn inside() {
    let node = TestNamespace::new("node");
    // A new namespace inherits the host's value, which is 1 on hosts that run Docker.
    node.exec(&["sh", "-c", "mount -o remount,rw,bind /proc/sys && sysctl -qw net.ipv4.ip_forward=0"]);
    let error =
        DataplaneHandle::start(node.open(), DataplaneSettings::default()).await.err().unwrap().to_string();
    assert!(error.starts_with("sysctl net.ipv4.ip_forward=1: /proc/sys is read-only here"), "{error}");

    let sandbox = TestNamespace::new("node");
    let error = pod::attach(&node.open(), &request(&sandbox, "cali1", &["10.65.0.2"])).await.unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
    assert!(!node.has_link("cali1") && !sandbox.has_link("eth0"));

    let settings = DataplaneSettings { ip_forwarding: false, ..DataplaneSettings::default() };
    let (dataplane, mut reports) = DataplaneHandle::start(node.open(), settings).await.unwrap();
    node.ip("link add cali1 type veth peer name other1");
    node.ip("link set cali1 up");
    node.ip("link set other1 up");
    dataplane.replace(plan(&[("one", workload("cali1", &["10.65.0.2"]))], &[])).await.unwrap();
    loop {
        let report = tokio::time::timeout(Duration::from_secs(30), reports.next()).await.unwrap().unwrap();
        if let DataplaneReport::Workload { state: WorkloadState::Error(reason), .. } = report {
            assert!(reason.contains("read-only"), "{reason}");
            break;
        }
    }
    assert_eq!(node.routes("10.65.0.2/32").len(), 1, "the rest goes on");
}
