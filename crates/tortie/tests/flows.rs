//! `tortie flows` as a process: the collector starts, answers its probes, serves a reader and stops on SIGTERM.
#![allow(clippy::unwrap_used, clippy::panic)]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Command, Output};
use tortie_testkit::{CertificateFiles, CertificateMaker, TestProcess, eventually, free_port, run};

const VARIABLES: [&str; 4] = ["GOLDMANE_HOST", "TLS_CERT_PATH", "TLS_KEY_PATH", "CA_CERT_PATH"];

fn tortie() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    command
}

fn error_of(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn list(maker: &CertificateMaker, client: &CertificateFiles, port: u16) -> Output {
    let mut command = tortie();
    command
        .args(["flows", "list", "--server", &format!("localhost:{port}"), "--cert"])
        .arg(&client.certificate);
    command.arg("--key").arg(&client.key).arg("--ca").arg(maker.authority_file());
    command.output().unwrap()
}

#[test]
fn the_collector_serves_until_it_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let maker = CertificateMaker::new(dir.path());
    let (server, client) = (maker.issue("server", &["localhost"]), maker.issue("client", &[]));
    let [port, health, metrics] = [(); 3].map(|()| free_port().unwrap());
    let mut command = tortie();
    command.args(["flows", "serve", "--host", "127.0.0.1", "--health-host", "127.0.0.1"]);
    // The variables of Goldmane.
    command.env("PORT", port.to_string()).env("HEALTH_PORT", health.to_string());
    command.env("PROMETHEUS_PORT", metrics.to_string()).env("CA_CERT_PATH", maker.authority_file());
    command.env("SERVER_CERT_PATH", &server.certificate).env("SERVER_KEY_PATH", &server.key);
    let (mut process, line) = TestProcess::until_first_line(&mut command);
    assert_eq!(line, format!("ready: flow collector on 127.0.0.1:{port}\n"));
    let get = |port: u16, page: &str| {
        run(Command::new("curl").args(["-sf", &format!("http://127.0.0.1:{port}/{page}")]))
    };
    assert_eq!(get(health, "readiness"), "ready\n");
    assert_eq!(get(health, "liveness"), "clock: alive\n");
    assert!(get(metrics, "metrics").contains("\ngoldmane_aggr_num_unique_flows 0\n"));
    let listed = list(&maker, &client, port);
    assert!(listed.status.success(), "{listed:?}");
    let table = String::from_utf8(listed.stdout).unwrap();
    assert!(table.starts_with("START   FROM   TO   PORT   VERDICT   REPORTER   POLICY"), "{table}");
    kill(Pid::from_raw(process.id().cast_signed()), Signal::SIGTERM).unwrap();
    eventually("the collector stops", || process.ended());
    let error = error_of(&list(&maker, &client, port));
    assert!(
        error.starts_with(&format!("cannot connect to the flow collector localhost:{port}: ")),
        "{error}"
    );
}

#[test]
fn reading_without_a_source_names_the_options() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["list", "follow"] {
        let output = tortie().args(["flows", command, "--run-dir"]).arg(dir.path()).output().unwrap();
        let error = error_of(&output);
        for part in ["flows.sock", "--server HOST:PORT", "flowLogsLocalReporter: Enabled"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }
}
