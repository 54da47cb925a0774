//! Access control of the console, its stream of events, and outages of the datastore.

use super::server::{ConsoleFixture, console_command, curl, error_of};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use tortie_testkit::{CertificateMaker, TestProcess, eventually};

const HALF_OPEN_CONNECTIONS: usize = 3000;
/// Maximum number of streams of the console.
const MAX_STREAMS: usize = 64;
/// Connections of the console, and the files that it has open besides them.
const MAX_OPEN_FILES: usize = 256 + 64;

#[test]
fn only_the_link_opens_a_session() {
    let mut console = ConsoleFixture::on_loopback();
    assert_eq!(console.request("/", &[]).status, 200, "the page is not secret");
    for path in ["/api/overview", "/api/events", "/api/policies", "/api/anything"] {
        assert_eq!(console.request(path, &[]).status, 401, "{path}");
    }
    let name = format!("tortie_console_{}", console.origin().rsplit(':').next().unwrap());
    assert_eq!(console.get("/api/overview", &format!("{name}=forged")).status, 401);
    assert_eq!(console.post_token("forged").status, 403);
    let body = format!("{{\"token\":\"{}\"}}", console.token());
    let foreign =
        ["-X", "POST", "-d", &body, "-H", "origin: http://evil.example", "-H", "x-tortie-console: 1"];
    assert_eq!(console.request("/api/session", &foreign).status, 403);
    assert_eq!(console.request("/api/session", &["-X", "POST", "-d", &body]).status, 403, "no header");
    let cookie = console.sign_in();
    assert_eq!(console.post_token(console.token()).status, 403, "a link is valid once");
    let overview = console.get("/api/overview", &cookie);
    assert_eq!(overview.status, 200, "{}", overview.text);
    for header in [
        "content-security-policy: default-src 'none'; script-src 'self';",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
    ] {
        assert!(overview.text.contains(header), "{}", overview.text);
    }
    let rebound = ["-H", &format!("cookie: {cookie}"), "-H", "host: evil.example"];
    assert_eq!(console.request("/api/overview", &rebound).status, 421);
    let foreign = ["-H", &format!("cookie: {cookie}"), "-H", "origin: http://evil.example"];
    assert_eq!(console.request("/api/overview", &foreign).status, 403);
    kill(Pid::from_raw(console.process.id().cast_signed()), Signal::SIGTERM).unwrap();
    eventually("the console stops", || console.process.ended());
}

#[test]
fn addresses_of_others_need_certificates() {
    let refused = console_command("unix:///nothing").args(["--listen", "0.0.0.0:0"]).output().unwrap();
    let error = error_of(&refused);
    assert!(error.contains("does not serve all addresses without client certificates"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let maker = CertificateMaker::new(dir.path());
    let (server, client) = (maker.issue("server", &["localhost"]), maker.issue("client", &[]));
    let [cert, key] = [&server.certificate, &server.key].map(|path| path.to_str().unwrap());
    let authority = maker.authority_file();
    let authority = authority.to_str().unwrap();
    let tls = ["--listen", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key, "--client-ca", authority];
    let console = ConsoleFixture::start(&tls);
    let port = console.link.split(',').next().unwrap().rsplit(':').next().unwrap();
    let url = format!("https://localhost:{port}/api/nodes");
    let own = ["--cert", client.certificate.to_str().unwrap(), "--key", client.key.to_str().unwrap()];
    let response = curl(&[&[url.as_str(), "--cacert", authority], &own[..]].concat());
    assert_eq!(response.status, 200, "{}", response.text);
    let stranger = Command::new("curl").args(["-sS", &url, "--cacert", authority]).output().unwrap();
    assert!(!stranger.status.success(), "{stranger:?}");
}

#[test]
fn a_socket_belongs_to_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("console.sock");
    let console = ConsoleFixture::start(&["--socket", path.to_str().unwrap(), "--socket-group", "0"]);
    assert_eq!(console.link, format!("ready: console on the socket {}", path.display()));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let socket = path.to_str().unwrap();
    assert_eq!(curl(&["--unix-socket", socket, "http://localhost/api/overview"]).status, 200);
    assert_eq!(curl(&["--unix-socket", socket, "http://evil.example/api/overview"]).status, 421);
}

#[test]
fn half_open_connections_are_bounded() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let console = ConsoleFixture::on_loopback();
    let cookie = console.sign_in();
    let address = console.origin().trim_start_matches("http://").to_owned();
    let mut waiting = Vec::new();
    for _ in 0..HALF_OPEN_CONNECTIONS {
        // One that the console has closed already does not matter.
        waiting.extend(TcpStream::connect(&address).ok());
    }
    assert!(waiting.len() > MAX_OPEN_FILES * 2, "{}", waiting.len());
    assert_eq!(console.get("/api/nodes", &cookie).status, 200);
    let metrics = console.get("/api/metrics", &cookie).text;
    assert!(!metrics.contains("displaced_connections_total 0\n"), "{metrics}");
    let open = std::fs::read_dir(format!("/proc/{}/fd", console.process.id())).unwrap().count();
    assert!(open <= MAX_OPEN_FILES, "{open} open files");
}

#[test]
fn streams_are_bounded_and_counted() {
    let console = ConsoleFixture::on_loopback();
    let cookie = console.sign_in();
    let mut streams: Vec<EventReader> =
        (0..MAX_STREAMS).map(|_| EventReader::open(&console, &cookie, None)).collect();
    for stream in &mut streams {
        stream.next("state");
    }
    assert_eq!(console.get("/api/events", &cookie).status, 503);
    let metrics = console.get("/api/metrics", &cookie).text;
    assert!(metrics.contains("\ntortie_console_streams 64\n"), "{metrics}");
    assert!(metrics.contains("\ntortie_console_busy_requests_total 1\n"), "{metrics}");
    streams.clear();
    let is_free = || console.get("/api/metrics", &cookie).text.contains("\ntortie_console_streams 0\n");
    eventually("the places are free again", is_free);
}

/// A stream of events, as curl receives it.
struct EventReader {
    _curl: TestProcess,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl EventReader {
    fn open(console: &ConsoleFixture, cookie: &str, last: Option<&str>) -> EventReader {
        let mut command = Command::new("curl");
        command.args(["-sSN", "--max-time", "120", "-H", &format!("cookie: {cookie}")]);
        command.args(last.iter().flat_map(|id| ["-H".to_owned(), format!("last-event-id: {id}")]));
        let mut curl = TestProcess::start(
            command.arg(format!("{}/api/events", console.origin())).stdout(Stdio::piped()),
        );
        let lines = BufReader::new(curl.take_output()).lines();
        EventReader { _curl: curl, lines }
    }

    /// Returns name, data and id of the next event with this name.
    fn next(&mut self, wanted: &str) -> (String, String) {
        let (mut name, mut data, mut id) = (String::new(), String::new(), String::new());
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            match line.split_once(": ") {
                Some(("event", text)) => name = text.to_owned(),
                Some(("data", text)) => data = text.to_owned(),
                Some(("id", text)) => id = text.to_owned(),
                _ if line.is_empty() && name == wanted => return (data, id),
                _ => {}
            }
        }
        panic!("the stream ended before {wanted}");
    }
}

fn pool(name: &str, third: u8) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {{name: {name}}}\nspec: {{cidr: 10.9.{third}.0/24}}\n"
    )
}

#[test]
fn streams_resume_where_they_ended() {
    let console = ConsoleFixture::on_loopback();
    let cookie = console.sign_in();
    let mut events = EventReader::open(&console, &cookie, None);
    while !events.next("state").0.contains("\"connected\":true") {}
    console.store.calicoctl(&["apply", "-f", "-"], &pool("first", 1));
    // The first command also creates the tiers.
    let expected = r#"{"topic":"addresses","object":"IPPool(first)","deleted":false}"#;
    let id = loop {
        let (data, id) = events.next("changes");
        if data.contains(expected) {
            break id;
        }
    };
    drop(events);
    console.store.calicoctl(&["apply", "-f", "-"], &pool("second", 2));
    let mut resumed = EventReader::open(&console, &cookie, Some(&id));
    let mut data = resumed.next("changes").0;
    while !data.contains("IPPool(second)") {
        data = resumed.next("changes").0;
    }
    assert!(!data.contains("IPPool(first)"), "{data}");
    let mut unknown = EventReader::open(&console, &cookie, Some("0-0"));
    unknown.next("resync");
}

#[test]
fn an_unavailable_datastore_is_said() {
    let mut console = ConsoleFixture::on_loopback();
    let cookie = console.sign_in();
    console.store.calicoctl(&["apply", "-f", "-"], &pool("kept", 1));
    let stale = |console: &ConsoleFixture| {
        let response = console.get("/api/routes", &cookie);
        assert_eq!(response.status, 200, "{}", response.text);
        assert!(response.text.contains("\"name\":\"kept\""), "{}", response.text);
        response.text.contains("\"stale\":")
    };
    eventually("the datastore is followed", || !stale(&console));
    console.store.stop_store();
    eventually("the answer is marked", || stale(&console));
    console.store.start_store();
    eventually("the answer is current again", || !stale(&console));
}
