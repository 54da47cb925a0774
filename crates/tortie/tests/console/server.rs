//! A console on an embedded store, and requests to it.

use std::process::{Command, Output, Stdio};
use tortie_testkit::{TestInstallation, TestProcess, run};

/// Variables that choose a collector.
const COLLECTOR_VARIABLES: [&str; 4] = ["GOLDMANE_HOST", "TLS_CERT_PATH", "TLS_KEY_PATH", "CA_CERT_PATH"];

/// Returns the command that runs the console on a datastore.
pub fn console_command(endpoint: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
    command.arg("console").env("ETCD_ENDPOINTS", endpoint).stdin(Stdio::null());
    for variable in COLLECTOR_VARIABLES {
        command.env_remove(variable);
    }
    command
}

/// A store and a console. `link` is the first line of the console.
pub struct ConsoleFixture {
    pub process: TestProcess,
    pub link: String,
    pub store: TestInstallation,
}

/// Status, headers and body of a response.
pub struct ConsoleResponse {
    pub status: u16,
    pub text: String,
}

impl ConsoleFixture {
    pub fn start(args: &[&str]) -> ConsoleFixture {
        let mut store = TestInstallation::new(env!("CARGO_BIN_EXE_tortie"));
        store.start_store();
        let log = std::fs::File::create(store.path("console.log")).unwrap();
        let mut command = console_command(&store.socket());
        let (process, link) = TestProcess::until_first_line(command.args(args).stderr(log));
        ConsoleFixture { process, link: link.trim_end().to_owned(), store }
    }

    pub fn on_loopback() -> ConsoleFixture {
        let fixture = ConsoleFixture::start(&["--listen", "127.0.0.1:0"]);
        assert!(fixture.link.starts_with("open http://127.0.0.1:"), "{}", fixture.link);
        fixture
    }

    /// Returns `http://127.0.0.1:PORT`.
    pub fn origin(&self) -> &str {
        self.link.trim_start_matches("open ").split_once("/sign-in#").unwrap().0
    }

    pub fn token(&self) -> &str {
        self.link.split_once('#').unwrap().1
    }

    /// Signs in and returns the cookie.
    pub fn sign_in(&self) -> String {
        let response = self.post_token(self.token());
        assert_eq!(response.status, 200, "{}", response.text);
        let line = response.text.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
        assert!(line.contains("; HttpOnly; SameSite=Strict;"), "{line}");
        line.split(';').next().unwrap().to_owned()
    }

    pub fn post_token(&self, token: &str) -> ConsoleResponse {
        let body = format!("{{\"token\":\"{token}\"}}");
        self.request("/api/session", &["-X", "POST", "-H", "x-tortie-console: 1", "-d", &body])
    }

    /// Sends a request with the cookie.
    pub fn get(&self, path: &str, cookie: &str) -> ConsoleResponse {
        self.request(path, &["-H", &format!("cookie: {cookie}")])
    }

    pub fn request(&self, path: &str, args: &[&str]) -> ConsoleResponse {
        let url = format!("{}{path}", self.origin());
        curl(&[&[url.as_str()], args].concat())
    }
}

/// Runs curl and returns the response.
pub fn curl(args: &[&str]) -> ConsoleResponse {
    let text = run(Command::new("curl").args(["-sSi", "--compressed", "--max-time", "60"]).args(args));
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    ConsoleResponse { status, text }
}

pub fn error_of(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}
