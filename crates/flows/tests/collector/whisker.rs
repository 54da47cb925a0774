//! The endpoints of whisker-backend, with curl.

use super::{ANY_PORT, TestCollector};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use tokio::sync::oneshot;
use tortie_flows::{CollectorTarget, FlowListenAddress, WhiskerOptions, WhiskerServer};
use tortie_testkit::run;

/// Returns the collector with the certificates of a client.
pub fn target(collector: &TestCollector) -> CollectorTarget {
    let dir = collector.dir.path();
    CollectorTarget {
        server: collector.server(),
        server_name: None,
        certificate: dir.join("client.crt"),
        key: dir.join("client.key"),
        authority: dir.join("ca.crt"),
    }
}

struct TestBackend {
    collector: TestCollector,
    port: u16,
    _stop: oneshot::Sender<()>,
}

impl TestBackend {
    fn start() -> TestBackend {
        let collector = TestCollector::start();
        let target = target(&collector);
        TestBackend::start_with(collector, target)
    }

    fn start_with(collector: TestCollector, target: CollectorTarget) -> TestBackend {
        let options = WhiskerOptions {
            listen: FlowListenAddress { host: "127.0.0.1".to_owned(), port: ANY_PORT },
            certificate: collector.dir.path().join("server.crt"),
            key: collector.dir.path().join("server.key"),
            collector: target,
        };
        let server = collector.runtime.block_on(WhiskerServer::bind(options)).unwrap();
        let port = server.address().port();
        let (stop, stopped) = oneshot::channel();
        collector.runtime.spawn(server.serve(async { drop(stopped.await) }));
        TestBackend { collector, port, _stop: stop }
    }

    fn curl(&self, path: &str, parameters: &[&str]) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--no-buffer", "--get", "--max-time", "120", "--cacert"]);
        curl.arg(self.collector.dir.path().join("ca.crt"));
        for parameter in parameters {
            curl.args(["--data-urlencode", parameter]);
        }
        curl.arg(format!("https://localhost:{}{path}", self.port));
        curl
    }

    /// Returns the status and the body of a response.
    fn get(&self, path: &str, parameters: &[&str]) -> (u16, Value) {
        let output = run(self.curl(path, parameters).args(["--write-out", "\n%{http_code}"]));
        let (body, code) = output.rsplit_once('\n').unwrap();
        (code.parse().unwrap(), serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }

    fn values(&self, path: &str, parameters: &[&str], field: &str) -> Vec<String> {
        let (code, body) = self.get(path, parameters);
        assert_eq!(code, 200, "{body}");
        let items = body["items"].as_array().unwrap().iter();
        items.map(|item| item[field].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn whisker_gets_flows_and_hints() {
    let backend = TestBackend::start();
    backend.collector.run_client("send");
    let (code, body) = backend.get("/flows", &["page=0", "pageSize=2"]);
    assert_eq!((code, &body["total"]["totalPages"]), (200, &Value::from(1)));
    let items = body["items"].as_array().unwrap();
    assert_eq!(items.len(), 4, "the page is not passed on");
    let denied = &items[1];
    for (field, value) in [
        ("action", "Deny"),
        ("source_name", "PUBLIC NETWORK"),
        ("source_namespace", "-"),
        ("dest_name", "web"),
        ("protocol", "tcp"),
        ("reporter", "Dst"),
    ] {
        assert_eq!(denied[field], value, "{field}");
    }
    assert_eq!((&denied["dest_port"], &denied["packets_in"]), (&Value::from(443), &Value::from(7)));
    let hit = &denied["policies"]["enforced"][0];
    assert_eq!((&hit["kind"], &hit["rule_index"]), (&Value::from("EndOfTier"), &Value::from(-1)));
    assert_eq!(hit["trigger"]["name"], "deny-all");
    assert_eq!(hit["trigger"]["trigger"], Value::Null);
    let web = &items[3];
    assert_eq!(web["source_labels"], "app=web");
    let time = web["start_time"].as_str().unwrap();
    assert!(time.len() == 20 && time.ends_with('Z'), "{time}");

    let names = |parameters: &[&str]| backend.values("/flows", parameters, "source_name");
    assert_eq!(names(&["sortBy=SourceName"]), ["api-*", "PUBLIC NETWORK", "web", "zeta"]);
    assert_eq!(
        names(&[r#"filters={"source_names":[{"value":"PUBLIC NETWORK","type":"Exact"}]}"#]),
        ["PUBLIC NETWORK"]
    );
    assert_eq!(names(&[r#"filters={"dest_namespaces":[{"value":"Global"}],"reporter":"Src"}"#]), ["zeta"]);
    assert_eq!(names(&[r#"filters={"pending_actions":["Deny"]}"#]), ["api-*"]);
    assert_eq!(names(&["startTimeGte=-25"]).len(), 2);
    assert_eq!(
        names(&[
            r#"filters={"policies":[{"kind":"NetworkPolicy","name":{"value":"allow-api","type":"Exact"}}]}"#
        ]),
        ["api-*"]
    );
    let hints = |kind: &str| backend.values("/flows-filter-hints", &[&format!("type={kind}")], "value");
    assert_eq!(hints("SourceName"), ["api-*", "PUBLIC NETWORK", "web", "zeta"]);
    assert_eq!(hints("SourceNamespace"), ["Global", "api", "shop"]);
    assert_eq!(hints("PolicyNamespace"), ["Global", "bank", "shop"]);
    assert_eq!(hints("PolicyTier"), ["default"]);
    assert_eq!(hints("PolicyKind").len(), 4);
    let page = ["type=SourceName", "page=1", "pageSize=3"];
    assert_eq!(backend.values("/flows-filter-hints", &page, "value"), ["zeta"]);
}

#[test]
fn watching_sends_server_sent_events() {
    let backend = TestBackend::start();
    backend.collector.run_client("send");
    let mut curl = backend.curl("/flows", &["watch=true", "startTimeGte=-100"]);
    let mut curl = curl.args(["--include"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(curl.stdout.take().unwrap()).lines().map(Result::unwrap);
    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    assert!(head[0].starts_with("HTTP/1.1 200"), "{head:?}");
    assert!(head.iter().any(|line| line == "content-type: text/event-stream"), "{head:?}");
    let names: Vec<String> = (0..5)
        .map(|_| {
            let event = lines.next().unwrap();
            assert_eq!(lines.next().unwrap(), "");
            let item: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
            item["source_name"].as_str().unwrap().to_owned()
        })
        .collect();
    // One event for each bucket, the oldest first.
    assert_eq!(names, ["web", "web", "api-*", "PUBLIC NETWORK", "zeta"]);
    curl.kill().unwrap();
    curl.wait().unwrap();
    // The stream at the collector ends with the client.
    let streams = &backend.collector.collector.metrics().streams;
    tortie_testkit::eventually("the stream ends", || streams.get() == 0);
}

#[test]
fn errors_of_whisker_backend_are_json() {
    let backend = TestBackend::start();
    let error = |path: &str, parameters: &[&str]| {
        let (code, body) = backend.get(path, parameters);
        (code, body["error"].as_str().unwrap().to_owned())
    };
    assert_eq!(error("/flows", &["sortBy=Size"]), (400, "unknown sortBy value: Size".to_owned()));
    let (code, text) = error("/flows-filter-hints", &["type=Port"]);
    assert!(
        code == 400 && text.starts_with("unknown filter type value Port; allowed values are '"),
        "{text}"
    );
    let (code, text) = error("/flows-filter-hints", &[]);
    assert!(code == 400 && text.starts_with("type is required"), "{text}");
    let (code, text) = error("/flows", &["filters={"]);
    assert!(code == 400 && text.starts_with("filters: "), "{text}");
    assert_eq!(
        error("/flows", &["startTimeGte=soon"]),
        (400, "startTimeGte: \"soon\" is not a whole number".to_owned())
    );
    let (code, text) = error("/flows", &["sortBy=DestType"]);
    assert!(code == 400 && text.contains("DestType is not supported"), "{text}");

    // A collector that is not there.
    let target = CollectorTarget { server: "localhost:1".to_owned(), ..target(&backend.collector) };
    let backend = TestBackend::start_with(TestCollector::start(), target);
    let (code, body) = backend.get("/flows", &[]);
    let text = body["error"].as_str().unwrap();
    assert!(code == 500 && text.starts_with("cannot connect to the flow collector localhost:1: "), "{text}");
}
