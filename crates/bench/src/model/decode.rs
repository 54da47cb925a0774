//! Measures the decoding of policies into typed objects, compared with parsing the same bytes into an untyped tree,
//! which is the minimum for any decoder based on a tree, and with Go's encoding/json.

use crate::SuiteResult;
use crate::measure::{side_by_side, table, time, times};
use serde_json::{Value, json};
use std::error::Error;
use std::hint::black_box;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use tortie_model::{Kind, Resource, codec};

const POLICY_COUNTS: [usize; 3] = [100, 1_000, 10_000];

pub fn run() -> SuiteResult {
    json_decoding()?;
    yaml_decoding()
}

fn json_decoding() -> SuiteResult {
    let directory = tempfile::tempdir()?;
    let go = GoDecoder::build(directory.path())?;
    let mut rows = Vec::new();
    let mut smallest = None;
    for count in POLICY_COUNTS {
        let texts: Vec<Vec<u8>> = (0..count).map(|n| policy(n).to_string().into_bytes()).collect();
        texts.iter().try_for_each(|text| typed(text).map(drop))?;
        let [ours, tree] = side_by_side([
            &mut || drop(black_box(texts.iter().map(|text| typed(text).ok()).collect::<Vec<_>>())),
            &mut || {
                let tree = |text: &Vec<u8>| serde_json::from_slice::<Value>(text).ok();
                drop(black_box(texts.iter().map(tree).collect::<Vec<_>>()));
            },
        ])
        .map(|all| all / count as f64);
        let go = match &go {
            Some(go) => Some(go.decode(&texts)?),
            None => None,
        };
        let bytes: usize = texts.iter().map(Vec::len).sum();
        let first = *smallest.get_or_insert(ours);
        rows.push(vec![
            count.to_string(),
            time(ours),
            format!("{:.0} MB/s", bytes as f64 / count as f64 * 1e3 / ours),
            time(tree),
            times(ours / tree),
            go.map_or("go not found".to_owned(), time),
            go.map_or(String::new(), |go| times(go / ours)),
            times(ours / first),
        ]);
    }
    let header =
        ["policies", "typed", "rate", "untyped tree", "typed/tree", "Go encoding/json", "Go/typed", "growth"];
    table("Decoding a policy from JSON (time per policy)", &header, &rows);
    Ok(())
}

fn yaml_decoding() -> SuiteResult {
    let mut rows = Vec::new();
    let mut smallest = None;
    for count in POLICY_COUNTS {
        let texts: Vec<String> = (0..count).map(|n| codec::to_yaml(&policy(n))).collect();
        texts.iter().try_for_each(|text| typed_yaml(text).map(drop))?;
        let [ours, peer] = side_by_side([
            &mut || drop(black_box(texts.iter().map(|text| typed_yaml(text).ok()).collect::<Vec<_>>())),
            &mut || {
                let tree = |text: &String| serde_yaml_ng::from_str::<Value>(text).ok();
                drop(black_box(texts.iter().map(tree).collect::<Vec<_>>()));
            },
        ])
        .map(|all| all / count as f64);
        let bytes: usize = texts.iter().map(String::len).sum();
        let first = *smallest.get_or_insert(ours);
        rows.push(vec![
            count.to_string(),
            time(ours),
            format!("{:.1} MB/s", bytes as f64 / count as f64 * 1e3 / ours),
            time(peer),
            times(peer / ours),
            times(ours / first),
        ]);
    }
    let header = ["policies", "typed", "rate", "libyaml, untyped tree", "libyaml/typed", "growth"];
    table("Decoding a policy from YAML (time per policy)", &header, &rows);
    Ok(())
}

fn typed(text: &[u8]) -> Result<Resource, Box<dyn Error>> {
    Ok(Resource::from_store(Kind::NetworkPolicy, serde_json::from_slice(text)?)?)
}

fn typed_yaml(text: &str) -> Result<Vec<Resource>, Box<dyn Error>> {
    Ok(codec::documents(text.as_bytes())?.into_iter().map(Resource::from_user).collect::<Result<_, _>>()?)
}

/// Returns a policy of typical size, about 1 KB.
fn policy(n: usize) -> Value {
    json!({
        "kind": "NetworkPolicy",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": format!("policy-{n}"),
            "namespace": format!("team-{}", n % 50),
            "uid": "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
            "creationTimestamp": "2026-03-01T10:20:30Z",
            "labels": {"projectcalico.org/tier": "default", "owner": format!("team-{}", n % 50)},
        },
        "spec": {
            "tier": "default",
            "order": 100.5,
            "selector": format!("app == 'service-{n}' && env in {{'prod', 'stage'}}"),
            "types": ["Ingress", "Egress"],
            "ingress": [
                {
                    "action": "Allow",
                    "protocol": "TCP",
                    "source": {"selector": "role == 'frontend'", "namespaceSelector": "team == 'shop'"},
                    "destination": {"ports": [80, 443, "8000:8080"]},
                },
                {"action": "Allow", "protocol": "TCP", "source": {"nets": ["10.0.0.0/8", "192.168.0.0/16"]}, "destination": {"ports": [9090]}},
                {"action": "Deny", "source": {}, "destination": {}},
            ],
            "egress": [
                {"action": "Allow", "protocol": "UDP", "source": {}, "destination": {"ports": [53], "selector": "k8s-app == 'dns'", "namespaceSelector": "global()"}},
                {"action": "Allow", "source": {}, "destination": {"notNets": ["169.254.0.0/16"]}},
            ],
        },
    })
}

/// The decoder in Go, compiled from the source file in this directory if a Go toolchain is installed.
struct GoDecoder {
    directory: PathBuf,
}

impl GoDecoder {
    fn build(directory: &Path) -> Result<Option<GoDecoder>, Box<dyn Error>> {
        std::fs::write(directory.join("decode.go"), include_str!("decode.go"))?;
        let build = Command::new("go").args(["build", "decode.go"]).current_dir(directory).output();
        match build {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
            Ok(output) if !output.status.success() => Err(String::from_utf8_lossy(&output.stderr).into()),
            Ok(_) => Ok(Some(GoDecoder { directory: directory.to_owned() })),
        }
    }

    /// Returns the nanoseconds per policy.
    fn decode(&self, texts: &[Vec<u8>]) -> Result<f64, Box<dyn Error>> {
        let input = self.directory.join("policies");
        std::fs::write(&input, texts.join(&b'\n'))?;
        let output = Command::new(self.directory.join("decode")).arg(&input).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    }
}
