//! Every example object passes through calicoctl into the datastore and back: under the exact key, as the exact JSON.
//!
//! The expected JSON of each example is in tests/golden/, with placeholders for uid and time; GOLDEN=write cargo test
//! -p tortie --test cli rewrites it, to be reviewed and committed. One example, from the specification, is written
//! out in this file.

use crate::lab::{CalicoctlLab, LabBackend, repository};
use regex::Regex;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn golden() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"))
}

fn examples() -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(repository().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    // calicoctl does not manage kinds that are internal to the datastore, and users do not write ClusterInformation.
    let internal = ["blockaffinities", "clusterinformations", "ipamblocks", "ipamhandles", "livemigrations"];
    files.retain(|file| {
        file.extension().is_some_and(|e| e == "yaml")
            && file.file_stem().and_then(|s| s.to_str()).is_some_and(|s| !internal.contains(&s))
    });
    files.sort();
    files
}

/// Returns the key that an object is stored under, computed independently of the code under test.
fn key(object: &Value, plural: &str) -> String {
    let name = object["metadata"]["name"].as_str().unwrap();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/calico/resources/v3/projectcalico.org/{plural}/{namespace}/{name}"),
        None => format!("/calico/resources/v3/projectcalico.org/{plural}/{name}"),
    }
}

/// Replaces the uid and the time, which differ in every run, by placeholders.
pub fn normalised(json: &str) -> String {
    let uid = Regex::new(r#""uid":"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}""#).unwrap();
    let time = Regex::new(r#""creationTimestamp":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ""#).unwrap();
    let json = uid.replace_all(json, r#""uid":"UID""#);
    time.replace_all(&json, r#""creationTimestamp":"TIME""#).into_owned()
}

#[test]
fn every_example_is_valid() {
    let lab = CalicoctlLab::on_socket();
    let folder = repository().join("examples").display().to_string();
    let said = lab.must(&["validate", "-R", "-f", &folder]);
    assert!(said.starts_with("Successfully validated "), "{said}");
}

fn round_trip(backend: LabBackend) {
    let lab = CalicoctlLab::on(backend);
    let mut failures = Vec::new();
    for file in ordered(examples()) {
        let plural = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let file = file.to_str().unwrap().to_owned();
        lab.must(&["apply", "-f", &file]);
        let json: Value = serde_json::from_str(&lab.must(&["get", "-f", &file, "-o", "json"])).unwrap();
        let objects = match json {
            Value::Array(objects) => objects,
            one => vec![one],
        };
        let mut stored = String::new();
        for object in &objects {
            let text = lab.stored(&key(object, &plural));
            assert!(!text.is_empty(), "nothing is stored under {}", key(object, &plural));
            stored += &normalised(&text);
            stored.push('\n');
        }
        compare(&plural, &stored, &mut failures);
        // The YAML output can be applied again and changes only the revision.
        let yaml = lab.must(&["get", "-f", &file, "-o", "yaml"]);
        let ran = lab.calicoctl_with(&["apply", "-f", "-"], yaml.as_bytes());
        assert_eq!(ran.code, Some(0), "{file}: {ran:?}");
        for object in &objects {
            assert!(stored.contains(&normalised(&lab.stored(&key(object, &plural)))), "{plural} changed");
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for file in ordered(examples()).iter().rev() {
        lab.must(&["delete", "-f", file.to_str().unwrap()]);
    }
    let left = lab.keys("/calico/resources");
    let left: Vec<_> =
        left.iter().filter(|k| !k.contains("/tiers/") && !k.contains("/clusterinformations/")).collect();
    assert!(left.is_empty(), "still there: {left:?}");
}

/// Sorts tiers before policies, filters before peers, and nodes before the objects that refer to them.
fn ordered(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    files.sort_by_key(|file| match file.file_stem().and_then(|s| s.to_str()) {
        Some("tiers" | "bgpfilters" | "nodes") => 1,
        _ => 2,
    });
    files
}

fn compare(plural: &str, stored: &str, failures: &mut Vec<String>) {
    let file = golden().join(format!("{plural}.json"));
    if std::env::var("GOLDEN").is_ok_and(|v| v == "write") {
        std::fs::create_dir_all(golden()).unwrap();
        std::fs::write(&file, stored).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    if expected != stored {
        failures.push(format!("{plural}\n- {expected}+ {stored}"));
    }
}

#[test]
fn every_example_on_etcd() {
    round_trip(LabBackend::Etcd);
}

#[test]
fn every_example_on_the_embedded_store() {
    round_trip(LabBackend::Embedded);
}

/// Checks the specification's own example byte for byte.
fn the_example_of_the_specification(backend: LabBackend) {
    let lab = CalicoctlLab::on(backend);
    let input = r#"
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata:
  name: deny-metadata
spec:
  order: 50
  selector: all()
  egress:
  - action: Deny
    protocol: TCP
    destination:
      nets: [169.254.169.254/32]
      ports: [80]
"#;
    let ran = lab.calicoctl_with(&["create", "-f", "-"], input.as_bytes());
    assert_eq!(ran.out, "Successfully created 1 'GlobalNetworkPolicy' resource(s)\n");
    let stored = lab.stored("/calico/resources/v3/projectcalico.org/globalnetworkpolicies/deny-metadata");
    let expected = r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"deny-metadata","uid":"UID","creationTimestamp":"TIME","labels":{"projectcalico.org/tier":"default"},"annotations":{"projectcalico.org/metadata":"{\"name\":\"deny-metadata\"}"}},"spec":{"tier":"default","order":50,"egress":[{"action":"Deny","protocol":"TCP","destination":{"nets":["169.254.169.254/32"],"ports":[80]}}],"selector":"all()","types":["Egress"]}}"#;
    assert_eq!(normalised(&stored), expected);
    // The annotation is internal to the datastore and hidden; the tier label is shown.
    let shown: Value =
        serde_json::from_str(&lab.must(&["get", "gnp", "deny-metadata", "-o", "json"])).unwrap();
    assert_eq!(shown["metadata"].get("annotations"), None);
    assert_eq!(shown["metadata"]["labels"]["projectcalico.org/tier"], "default");
    lab.must(&["delete", "gnp", "deny-metadata"]);
    assert_eq!(lab.stored("/calico/resources/v3/projectcalico.org/globalnetworkpolicies/deny-metadata"), "");
}

#[test]
fn the_example_of_the_specification_on_etcd() {
    the_example_of_the_specification(LabBackend::Etcd);
}

#[test]
fn the_specified_example_on_the_embedded_store() {
    the_example_of_the_specification(LabBackend::Embedded);
}
