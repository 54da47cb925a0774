//! HTTP policy with a real Envoy as the sidecar of a pod: the kernel decides about connections, `tortie l7 serve` about
//! requests.

mod connections;
mod differential;
mod envoy_config;
mod http;
mod identity;
mod restart;

use crate::{TestLab, family};
use http::{HttpClient, PodServer};
use std::sync::atomic::{AtomicUsize, Ordering};
use tortie_testkit::{envoy_program, eventually_showing};

/// Port of Envoy, and of the server on the pod's loopback.
const ENVOY_PORT: u16 = 80;
const SERVER_ADDRESS: &str = "127.0.0.1:8080";

static APPLY_COUNT: AtomicUsize = AtomicUsize::new(0);

/// A lab with the pod `web`, which has a sidecar, on the first node, and `client` on the second.
struct ProxiedLab {
    lab: TestLab,
    web: Vec<String>,
    client_addresses: Vec<String>,
    server: PodServer,
}

impl ProxiedLab {
    fn up() -> ProxiedLab {
        ProxiedLab::with_hubs("0")
    }

    fn with_hubs(hubs: &str) -> ProxiedLab {
        let lab = TestLab::up(&["--nodes", "2", "--hub", hubs]);
        let mut add = lab.command(&["pod", "add", "web", "--node", "node1", "--label", "app=web", "--envoy"]);
        let printed = tortie_testkit::run(add.env("ENVOY", envoy_program()));
        let web = printed.lines().map(str::to_owned).collect();
        let client_addresses = lab.add("client", "node2", &["--label", "role=client"]);
        let server = PodServer::start(&pod_namespace(&lab, "web"), SERVER_ADDRESS);
        ProxiedLab { lab, web, client_addresses, server }
    }

    /// Returns a client in a pod that sends requests to Envoy.
    fn client(&self, pod: &str, ipv6: bool) -> HttpClient {
        let address = family(&self.web, ipv6).parse().unwrap();
        HttpClient::new(&pod_namespace(&self.lab, pod), address, ENVOY_PORT)
    }

    /// Applies a policy with ingress rules for `web`, in YAML flow style, and waits until the sidecar uses it.
    fn apply_rules(&self, rules: &[&str]) {
        let marker = format!("/applied-{}", APPLY_COUNT.fetch_add(1, Ordering::Relaxed));
        let rules: String = rules.iter().map(|rule| format!("  - {rule}\n")).collect();
        self.lab.apply(&format!(
            "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: web, namespace: default}}\nspec:\n  \
             selector: app == 'web'\n  types: [Ingress]\n  ingress:\n  \
             - {{action: Allow, protocol: TCP, source: {{selector: role == 'client'}}, destination: {{ports: [80]}}, \
             http: {{paths: [{{exact: {marker}}}]}}}}\n{rules}"
        ));
        let mut client = self.client("client", false);
        eventually_showing(
            "the sidecar has the policy",
            || client.send("GET", &marker).is_ok_and(|response| response.status == 200),
            || self.picture(),
        );
    }

    fn picture(&self) -> String {
        format!("{}\n{}", self.lab.picture(), self.lab.run(&["logs"]))
    }

    /// Returns the process ids of Envoy and of the policy server of `web`.
    fn sidecar(&self) -> (u64, Option<u64>) {
        let status = self.lab.status();
        let sidecar = &status["nodes"][0]["pods"][0]["sidecar"];
        (sidecar["envoy"].as_u64().unwrap(), sidecar["l7"].as_u64())
    }
}

fn pod_namespace(lab: &TestLab, pod: &str) -> String {
    format!("tortie-{}-pod-{pod}", lab.name)
}

const ALLOW_GET: &str = "{action: Allow, protocol: TCP, source: {selector: role == 'client'}, destination: {ports: [80]}, \
                         http: {methods: [GET], paths: [{exact: /allowed}, {prefix: /api}]}}";

/// Targets that a careless comparison of paths takes for `/allowed` or for something below `/api`.
const PATH_TRICKS: [&str; 36] = [
    "/denied",
    "/",
    "/allowedx",
    "/Allowed",
    "/allowed/",
    "/allowed/x",
    "/apix",
    "/api/../denied",
    "/api/..;/denied",
    "/api/..;x=1/denied",
    "/api/%2e%2e/denied",
    "/api/%2E%2E/denied",
    "/api/.%2e/denied",
    "/api%2f..%2fdenied",
    "/api%2F%2e%2e%2Fdenied",
    "/api/..%2fdenied",
    "/api/%252e%252e/denied",
    "/api%252f..%252fdenied",
    "/api/..%5cdenied",
    "/api/..\\denied",
    "/api/%5c../../denied",
    "/api//..//denied",
    "//denied/../denied",
    "/api/x/../../denied",
    "/../allowed",
    "/api/../../allowed",
    "/api/%00",
    "/allowed%00",
    "/allowed%2500",
    "/denied?/../allowed",
    // Some servers take these for names below `/denied`.
    "/denied/../allowed",
    "/denied/..%2fallowed",
    "/denied/..;/allowed",
    "/denied/x\\..\\..\\allowed",
    "/denied%3f/../allowed",
    "/api%2fx",
];

#[test]
fn methods_and_paths_decide_about_requests() {
    let proxied = ProxiedLab::up();
    let mut client = proxied.client("client", false);
    assert_eq!(client.status("POST", "/denied"), 200, "without policy everything is allowed");
    proxied.apply_rules(&[ALLOW_GET]);
    let reached = proxied.server.received();

    let mut forwarded = 0;
    for ipv6 in [false, true] {
        let mut client = proxied.client("client", ipv6);
        for target in
            ["/allowed", "/allowed?x=1", "/api", "/api/x", "/api/../allowed", "//allowed", "/api;v=1/x"]
        {
            let response = client.send("GET", target).unwrap();
            assert_eq!(
                (response.status, response.body),
                (200, format!("GET {target}")),
                "{}",
                proxied.picture()
            );
            forwarded += 1;
        }
        for target in PATH_TRICKS {
            assert_eq!(client.status("GET", target), 403, "{target}");
        }
        for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"] {
            assert_eq!(client.status(method, "/allowed"), 403, "{method}");
        }
        // Envoy rejects methods in other letters, unless it is configured to forward them.
        for method in ["get", "Get"] {
            assert!([400, 403].contains(&client.status(method, "/allowed")), "{method}");
        }
    }
    assert_eq!(proxied.server.received(), reached + forwarded, "no denied request reached the server");

    bypassing_envoy_is_blocked(&proxied);
    a_change_applies_to_an_open_connection(&proxied);
    the_sidecar_is_removed_with_its_pod(proxied);
}

#[test]
fn unusual_requests_do_not_bypass_policy() {
    let proxied = ProxiedLab::up();
    proxied.apply_rules(&[ALLOW_GET]);
    let reached = proxied.server.received();
    let [long, too_long] = [50_000, 100_000].map(|length| format!("/denied/{}", "a".repeat(length)));
    let requests = [
        ("CONNECT", "web:80", ""),
        ("CONNECT", "/allowed", ""),
        ("OPTIONS", "*", ""),
        ("TRACE", "/allowed", ""),
        ("GET", "allowed", ""),
        ("GET", "http://web/denied", ""),
        ("GET", "http://web/allowed/../denied", ""),
        ("GET", "/denied#/../allowed", ""),
        ("GET", &long, ""),
        ("GET", &too_long, ""),
        ("GET", "/denied", "x-envoy-original-path: /allowed\r\nx-original-url: /allowed\r\n"),
        ("GET", "/denied", ":path: /allowed\r\n"),
        ("POST", "/allowed", "x-http-method-override: GET\r\n"),
        ("GET", "/denied", "connection: upgrade\r\nupgrade: websocket\r\n"),
        (
            "GET",
            "/denied",
            "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
        ),
        ("GET", "/denied", "transfer-encoding: chunked\r\n"),
    ];
    for (method, target, headers) in requests {
        let response = proxied.client("client", false).send_with_headers(method, target, headers);
        // Envoy ends the connection instead of answering some of them.
        let is_denied = response.as_ref().map_or(true, |response| (400..500).contains(&response.status));
        let shown: String = target.chars().take(40).collect();
        assert!(is_denied, "{method} {shown} {headers:?}: {response:?}");
    }
    assert_eq!(proxied.server.received(), reached, "no request reached the server");

    let url = format!("http://{}", family(&proxied.web, false));
    let status = |method: &str, target: &str| {
        let curl = ["curl", "-sS", "-m", "20", "--http2-prior-knowledge", "--path-as-is", "-o", "/dev/null"];
        let url = format!("{url}{target}");
        let request = ["-w", "%{http_code} over %{http_version}", "-X", method, &url];
        proxied.lab.run(&[&["exec", "client", "--"], &curl[..], &request].concat())
    };
    assert_eq!(status("GET", "/allowed"), "200 over 2", "{}", proxied.picture());
    for (method, target) in [("POST", "/allowed"), ("GET", "/denied"), ("GET", "/denied/..%2fallowed")] {
        assert_eq!(status(method, target), "403 over 2", "{method} {target}");
    }
}

fn bypassing_envoy_is_blocked(proxied: &ProxiedLab) {
    let web = pod_namespace(&proxied.lab, "web");
    let exposed = PodServer::start(&web, "0.0.0.0:9000");
    let address = family(&proxied.web, false).parse().unwrap();
    let mut inside = HttpClient::new(&web, "127.0.0.1".parse().unwrap(), 9000);
    assert_eq!(inside.status("GET", "/denied"), 200);
    let client = pod_namespace(&proxied.lab, "client");
    for port in [8080, 9000] {
        let connected = HttpClient::new(&client, address, port).connect();
        assert!(connected.is_err(), "port {port} of the pod is open");
    }
    assert_eq!(exposed.received(), 1);
    // The rules select the client: connections of another pod do not even reach Envoy.
    proxied.lab.add("stranger", "node2", &[]);
    assert_eq!(proxied.client("client", false).status("GET", "/allowed"), 200);
    assert!(proxied.client("stranger", false).connect().is_err());
}

fn a_change_applies_to_an_open_connection(proxied: &ProxiedLab) {
    let mut client = proxied.client("client", false);
    assert_eq!([client.status("GET", "/allowed"), client.status("POST", "/allowed")], [200, 403]);
    proxied.apply_rules(&[&ALLOW_GET.replace("[GET]", "[POST]")]);
    assert!(client.is_connected());
    assert_eq!([client.status("GET", "/allowed"), client.status("POST", "/allowed")], [403, 200]);
    proxied.apply_rules(&[
        "{action: Deny, protocol: TCP, source: {selector: role == 'client'}, destination: {ports: [81]}}",
    ]);
    assert!(client.is_connected());
    assert_eq!([client.status("GET", "/allowed"), client.status("POST", "/allowed")], [403, 403]);
}

fn the_sidecar_is_removed_with_its_pod(proxied: ProxiedLab) {
    let (envoy, l7) = proxied.sidecar();
    let ProxiedLab { lab, .. } = proxied;
    let text = lab.picture();
    assert!(text.contains("Envoy: process") && text.contains("HTTP policy: process"), "{text}");
    let logs = lab.run(&["logs", "node1"]);
    assert!(logs.contains("web/l7 | "), "{logs}");
    lab.run(&["pod", "del", "web"]);
    for process in [envoy, l7.unwrap()] {
        // The entry of a zombie process has no command line.
        let command_line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        assert!(command_line.is_empty(), "process {process} is left");
    }
    let synced = lab.dir().join("nodes/node1/policysync");
    let left = std::fs::read_dir(synced.join("creds")).unwrap().count();
    assert_eq!(left, 0, "credentials are left");
    assert!(!lab.dir().join("pods/web").exists());
    let left = || std::fs::read_dir(synced.join("mount")).map_or(0, Iterator::count);
    eventually_showing("the node removes the socket", || left() == 0, || lab.picture());
}

#[test]
fn a_missing_envoy_is_named() {
    let lab = TestLab::up(&["--nodes", "1"]);
    let add = ["pod", "add", "web", "--node", "node1", "--envoy", "--envoy-program", "/nonexistent/envoy"];
    let error = lab.refused(&add);
    assert!(error.contains("/nonexistent/envoy") && error.contains("scripts/envoy"), "{error}");
    assert!(lab.namespaces().iter().all(|name| !name.contains("-pod-")));
}
