//! `get --watch` prints the existing objects and then every change.

use crate::lab::{CalicoctlLab, LabBackend};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

struct WatchProcess(Child);

impl Drop for WatchProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch(lab: &CalicoctlLab, args: &[&str]) -> (WatchProcess, BufReader<impl Read + use<>>) {
    let mut command = lab.command(lab.program("calicoctl"));
    let mut child = WatchProcess(command.args(args).stdout(Stdio::piped()).spawn().unwrap());
    let out = BufReader::new(child.0.stdout.take().unwrap());
    (child, out)
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn watches(backend: LabBackend) {
    let lab = CalicoctlLab::on(backend);
    let tier = |name: &str, order: u32| {
        let text = format!(
            "{{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {{name: {name}}}, spec: {{order: {order}}}}}"
        );
        let ran = lab.calicoctl_with(&["apply", "-f", "-"], text.as_bytes());
        assert_eq!(ran.code, Some(0), "{ran:?}");
    };
    tier("platform", 10);
    let (_table, mut table) = watch(&lab, &["get", "tiers", "--watch"]);
    let (_json, mut json) = watch(&lab, &["get", "tiers", "platform", "-w", "-o", "json"]);
    for expected in [
        "EVENT      NAME            ORDER",
        "ADDED      default         1e+06",
        "ADDED      kube-admin      1000",
        "ADDED      kube-baseline   1e+07",
        "ADDED      platform        10",
    ] {
        assert_eq!(line(&mut table), expected);
    }
    assert!(line(&mut json).starts_with(r#"{"type":"ADDED","object":{"kind":"Tier""#));
    tier("platform", 20);
    lab.must(&["delete", "tier", "platform"]);
    assert_eq!(line(&mut table), "MODIFIED   platform        20");
    assert_eq!(line(&mut table), "DELETED    platform        20");
    assert!(line(&mut json).starts_with(r#"{"type":"MODIFIED","object":{"kind":"Tier""#));
    assert!(line(&mut json).starts_with(r#"{"type":"DELETED","object":{"kind":"Tier""#));
}

#[test]
fn on_etcd() {
    watches(LabBackend::Etcd);
}

#[test]
fn on_the_embedded_store() {
    watches(LabBackend::Embedded);
}
