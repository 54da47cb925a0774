//! The pages in Chromium, with a lab and a flow collector. `crates/console/web/tests/browser.mjs` has the steps.

use super::lab::TestLab;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tortie_flows::proto::{
    Action, EndpointType, Flow, FlowKey, PolicyHit, PolicyKind, PolicyTrace, Reporter,
};
use tortie_flows::ring::RingOptions;
use tortie_flows::{CollectorOptions, CollectorServer, DEFAULT_MAX_STREAMS, FlowListenAddress, now_seconds};
use tortie_testkit::{CertificateMaker, TestProcess, run};
use tortie_tls::TlsFiles;

/// Maximum length of a name.
const LONGEST_NAME: usize = 253;

/// A collector in this process with a few flows.
struct SmallCollector {
    dir: TempDir,
    port: u16,
    _runtime: Runtime,
}

impl SmallCollector {
    fn start() -> SmallCollector {
        let dir = tempfile::tempdir().unwrap();
        let maker = CertificateMaker::new(dir.path());
        let server = maker.issue("server", &["localhost"]);
        maker.issue("client", &[]);
        let options = CollectorOptions {
            listen: FlowListenAddress { host: "127.0.0.1".to_owned(), port: 0 },
            tls: TlsFiles {
                certificate: server.certificate,
                key: server.key,
                ca: Some(maker.authority_file()),
            },
            ring: RingOptions { window: 15, max_bytes: 16 << 20 },
            max_streams: DEFAULT_MAX_STREAMS,
            health: None,
            metrics: None,
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(CollectorServer::bind(options)).unwrap();
        let (port, collector) = (server.address().port(), server.collector().clone());
        runtime.spawn(server.serve(std::future::pending()));
        let node = collector.open_connection(IpAddr::V4(Ipv4Addr::LOCALHOST));
        for (from, to, action) in [
            (("shop", "client"), ("shop", "web"), Action::Allow),
            (("shop", "web"), ("shop", "db"), Action::Allow),
            (("batch", "job-*"), ("shop", "db"), Action::Deny),
            (("shop", "client"), ("-", "pub"), Action::Allow),
        ] {
            collector.receive(node, Some(&build_flow(from, to, action)));
        }
        SmallCollector { dir, port, _runtime: runtime }
    }

    fn add_arguments(&self, command: &mut Command) {
        command.args(["--collector", &format!("localhost:{}", self.port)]);
        for (option, file) in [
            ("--collector-cert", "client.crt"),
            ("--collector-key", "client.key"),
            ("--collector-ca", "ca.crt"),
        ] {
            command.arg(option).arg(self.dir.path().join(file));
        }
    }
}

fn build_flow(from: (&str, &str), to: (&str, &str), action: Action) -> Flow {
    let workload = i32::from(EndpointType::WorkloadEndpoint);
    let hit = PolicyHit {
        kind: PolicyKind::GlobalNetworkPolicy.into(),
        name: "allow-web".to_owned(),
        tier: "default".to_owned(),
        action: action.into(),
        ..PolicyHit::default()
    };
    let key = FlowKey {
        source_namespace: from.0.to_owned(),
        source_name: from.1.to_owned(),
        source_type: workload,
        dest_namespace: to.0.to_owned(),
        dest_name: to.1.to_owned(),
        dest_type: workload,
        dest_port: 80,
        proto: "tcp".to_owned(),
        reporter: Reporter::Dst.into(),
        action: action.into(),
        policies: Some(PolicyTrace { enforced_policies: vec![hit], ..PolicyTrace::default() }),
        ..FlowKey::default()
    };
    let now = now_seconds();
    Flow {
        key: Some(key),
        start_time: now,
        end_time: now,
        packets_in: 10,
        bytes_in: 4096,
        num_connections_started: 3,
        ..Flow::default()
    }
}

/// Returns objects whose names and texts try to leave their place in the page.
fn hostile_objects() -> String {
    let warning = r#"[{\"object\":\"<script>window.pwned = 1</script>\",\"reason\":\"a\u202eb</p><img src=x onerror=alert(1)>\",\"advice\":\"\u2066c\"}]"#;
    let name = "a".repeat(LONGEST_NAME);
    format!(
        "apiVersion: projectcalico.org/v3\nkind: Node\nmetadata:\n  name: evil\n  annotations:\n    \
         tortie/network-warnings: \"{warning}\"\nspec: {{addresses: [{{address: 192.0.2.9, type: InternalIP}}]}}\n---\n\
         apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: {name}}}\n\
         spec: {{selector: \"app == '<script>alert(2)</script>'\", types: [Egress], order: 900}}\n"
    )
}

const POLICY: &str = "apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: allow-web}
spec: {selector: app == 'web', order: 5, types: [Ingress], ingress: [{action: Allow, protocol: TCP, destination: {ports: [443]}}]}
---
apiVersion: projectcalico.org/v3
kind: StagedGlobalNetworkPolicy
metadata: {name: deny-db}
spec: {selector: app == 'db', types: [Ingress], ingress: [{action: Deny, source: {selector: app == 'client'}}]}
";

#[test]
fn pages_work_in_a_browser() {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../console/web");
    assert!(web.join("node_modules/playwright-core").is_dir(), "node_modules is missing: run `make setup`");
    assert!(Path::new("/usr/bin/chromium").exists(), "chromium is missing: run `make setup`");
    let lab = TestLab::up(&["--nodes", "2"]);
    for (pod, node) in [("client", "node1"), ("web", "node2"), ("db", "node2")] {
        lab.add(pod, node, &["--namespace", "shop", "--label", &format!("app={pod}")]);
    }
    lab.apply(POLICY);
    lab.apply(&hostile_objects());
    let collector = SmallCollector::start();
    let mut command = lab.command(&["console", "--listen", "127.0.0.1:0"]);
    collector.add_arguments(&mut command);
    let (_console, line) = TestProcess::until_first_line(&mut command);
    let shots = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("console");
    let tortie = env!("CARGO_BIN_EXE_tortie");
    let mut steps = Command::new("node");
    steps
        .arg("tests/browser.mjs")
        .current_dir(&web)
        .env("CONSOLE_LINK", line.trim_end().trim_start_matches("open "))
        .env("CONSOLE_PODS", "shop/client,shop/web")
        .env("CONSOLE_APPLY", format!("{tortie} lab --name {} ctl apply -f -", lab.name))
        .env("CONSOLE_SHOTS", &shots);
    let report = run(&mut steps);
    assert_eq!(report.lines().filter(|line| line.starts_with("ok ")).count(), 10, "{report}");
    println!("{report}screenshots: {}", shots.display());
}
