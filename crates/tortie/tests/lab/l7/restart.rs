//! The policy server, the node's daemon and hubs restart under a steady trickle of requests.

use super::http::HttpClient;
use super::{ALLOW_GET, ProxiedLab};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tortie_testkit::{TestProcess, eventually, eventually_showing, run};

const TRICKLE_INTERVAL: Duration = Duration::from_millis(5);
const TRICKLE_COUNT: usize = 40;

/// Sends an allowed and a denied request alternately, over one connection, until stopped.
struct RequestTrickle {
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<BTreeMap<(&'static str, String), usize>>,
}

impl RequestTrickle {
    fn start(mut client: HttpClient) -> RequestTrickle {
        let stopped = Arc::new(AtomicBool::new(false));
        let until = stopped.clone();
        let thread = std::thread::spawn(move || {
            let mut outcomes = BTreeMap::new();
            while !until.load(Ordering::Relaxed) {
                for target in ["/allowed", "/denied"] {
                    let outcome = match client.send("GET", target) {
                        Ok(response) => response.status.to_string(),
                        Err(error) => error.kind().to_string(),
                    };
                    *outcomes.entry((target, outcome)).or_default() += 1;
                }
                std::thread::sleep(TRICKLE_INTERVAL);
            }
            outcomes
        });
        RequestTrickle { stopped, thread }
    }

    /// Stops and returns how often each target had each outcome.
    fn stop(self) -> BTreeMap<(&'static str, String), usize> {
        self.stopped.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Sends allowed requests over new connections until enough of them were answered.
fn wait_for_answers(proxied: &ProxiedLab) {
    let mut answered = 0;
    eventually_showing(
        "new connections are answered",
        || {
            let response = proxied.client("client", false).send("GET", "/allowed");
            answered += usize::from(response.is_ok_and(|response| response.status == 200));
            answered >= TRICKLE_COUNT
        },
        || proxied.picture(),
    );
}

#[test]
fn restarts_cause_no_wrong_verdict() {
    let proxied = ProxiedLab::up();
    proxied.apply_rules(&[ALLOW_GET]);
    wait_for_answers(&proxied);

    // The server keeps its policy while the node restarts, and the kernel keeps its rules.
    let trickle = RequestTrickle::start(proxied.client("client", false));
    for how in [&["--kill"][..], &[]] {
        proxied.lab.run(&[&["node", "stop", "node1"], how].concat());
        std::thread::sleep(TRICKLE_INTERVAL * 20);
        proxied.lab.run(&["node", "start", "node1"]);
        wait_for_answers(&proxied);
    }
    let outcomes = trickle.stop();
    let expected = [("/allowed", "200".to_owned()), ("/denied", "403".to_owned())];
    assert!(outcomes.keys().eq(&expected), "{outcomes:?}\n{}", proxied.picture());

    // Without the server Envoy denies everything.
    let (_, Some(l7)) = proxied.sidecar() else { panic!("{}", proxied.picture()) };
    let command_line = std::fs::read_to_string(format!("/proc/{l7}/cmdline")).unwrap();
    let words: Vec<&str> = command_line.split_terminator('\0').collect();
    let trickle = RequestTrickle::start(proxied.client("client", false));
    run(Command::new("kill").args(["-9", &l7.to_string()]));
    eventually("the server has ended", || proxied.sidecar().1.is_none());
    let mut client = proxied.client("client", false);
    // Where the kernel has noticed too, connections are refused; otherwise Envoy answers.
    assert!(client.send("GET", "/allowed").map_or(true, |response| response.status == 403));
    let mut command = proxied.lab.command(&[&["exec", "web", "--"], &words[..]].concat());
    let log = std::fs::File::options().append(true).open(proxied.lab.dir().join("pods/web/l7/log")).unwrap();
    let _restarted = TestProcess::start(command.stdout(log.try_clone().unwrap()).stderr(log));
    wait_for_answers(&proxied);
    let outcomes = trickle.stop();
    assert!(outcomes.contains_key(&("/allowed", "200".to_owned())), "{outcomes:?}");
    for (target, outcome) in outcomes.keys() {
        let is_right = match *target {
            "/allowed" => ["200", "403"].contains(&outcome.as_str()),
            _ => outcome == "403",
        };
        assert!(is_right, "{outcomes:?}\n{}", proxied.picture());
    }
}

/// Allows another method than [`ALLOW_GET`].
const ALLOW_POST: &str = "{action: Allow, protocol: TCP, source: {selector: role == 'client'}, destination: {ports: [80]}, \
                          http: {methods: [POST], paths: [{exact: /allowed}]}}";

#[test]
fn hub_failover_causes_no_wrong_verdict() {
    let proxied = ProxiedLab::with_hubs("2");
    proxied.apply_rules(&[ALLOW_GET]);
    wait_for_answers(&proxied);
    let trickles =
        [false, true, false, true].map(|ipv6| RequestTrickle::start(proxied.client("client", ipv6)));
    let mut poster = proxied.client("client", false);
    for hub in ["1", "2"] {
        proxied.lab.run(&["hub", "stop", hub, "--kill"]);
        // Both rules allow GET, so the trickle is never denied; the next request sees each change.
        proxied.apply_rules(&[ALLOW_GET, ALLOW_POST]);
        assert_eq!([poster.status("POST", "/allowed"), poster.status("GET", "/allowed")], [200, 200]);
        proxied.apply_rules(&[ALLOW_GET]);
        assert_eq!([poster.status("POST", "/allowed"), poster.status("GET", "/allowed")], [403, 200]);
        proxied.lab.run(&["hub", "start", hub]);
    }
    // Without any hub the last policy decides.
    ["1", "2"].iter().for_each(|hub| drop(proxied.lab.run(&["hub", "stop", hub, "--kill"])));
    wait_for_answers(&proxied);
    ["1", "2"].iter().for_each(|hub| drop(proxied.lab.run(&["hub", "start", hub])));
    proxied.apply_rules(&[ALLOW_GET, ALLOW_POST]);
    assert_eq!(poster.status("POST", "/allowed"), 200);
    let expected = [("/allowed", "200".to_owned()), ("/denied", "403".to_owned())];
    for trickle in trickles {
        let outcomes = trickle.stop();
        assert!(outcomes.keys().eq(&expected), "{outcomes:?}\n{}", proxied.picture());
    }
}
