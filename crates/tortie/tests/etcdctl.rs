//! Debian's etcdctl against the embedded datastore: an operator's commands must work over TCP and over the Unix
//! socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;
use tortie_testkit::DatastoreProcess;

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");

/// Starts the embedded datastore on a free port.
fn start(dir: &Path, more: &[&str]) -> DatastoreProcess {
    DatastoreProcess::start(TORTIE, dir, &["http://127.0.0.1:0"], more)
}

struct Etcdctl {
    endpoint: String,
}

impl Etcdctl {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("/usr/bin/etcdctl");
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(&self.endpoint).args(args);
        command
    }

    /// Runs etcdctl, which must succeed, and returns its output.
    fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().expect("/usr/bin/etcdctl is needed: install etcd-client");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {args:?}: {error}");
        // Some commands print their result on standard error.
        String::from_utf8(output.stdout).unwrap() + &error
    }

    fn fails(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(!output.status.success(), "etcdctl {args:?} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs etcdctl with `input` on its standard input.
    fn feed(&self, args: &[&str], input: &str) -> String {
        let mut child = self.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }
}

/// A command that runs until it is dropped.
struct RunningCommand {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl RunningCommand {
    fn start(mut command: Command) -> RunningCommand {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        RunningCommand { child, lines }
    }

    fn lines(&mut self, count: usize) -> Vec<String> {
        self.lines.by_ref().take(count).map(Result::unwrap).collect()
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a datastore and returns it with an etcdctl for it.
fn store(dir: &Path) -> (DatastoreProcess, Etcdctl) {
    let server = start(dir, &[]);
    let endpoint = server.url().to_owned();
    (server, Etcdctl { endpoint })
}

fn cluster_of(json: &str) -> u64 {
    let answer: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    answer["header"]["cluster_id"].as_u64().unwrap()
}

fn revision_of(json: &str) -> i64 {
    let answer: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    answer["header"]["revision"].as_i64().unwrap()
}

#[test]
fn keys_are_put_read_and_deleted() {
    let dir = TempDir::new().unwrap();
    let (_server, etcdctl) = store(dir.path());
    for (key, value) in [("/a/1", "one"), ("/a/2", "two"), ("/a/3", "three"), ("/b", "four")] {
        assert_eq!(etcdctl.run(&["put", key, value]), "OK\n");
    }
    assert_eq!(etcdctl.run(&["put", "/a/1", "uno", "--prev-kv"]), "OK\n/a/1\none\n");
    assert_eq!(etcdctl.run(&["get", "/a/1"]), "/a/1\nuno\n");
    assert_eq!(etcdctl.run(&["get", "/a/1", "--rev", "2"]), "/a/1\none\n");
    assert_eq!(etcdctl.run(&["get", "/none"]), "");
    let keys = |args: &[&str]| {
        let lines = etcdctl.run(&[&["get", "--keys-only"], args].concat());
        lines.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys(&["/a/", "--prefix"]), "/a/1 /a/2 /a/3");
    assert_eq!(keys(&["/a/2", "--from-key"]), "/a/2 /a/3 /b");
    assert_eq!(keys(&["/a/1", "/a/3"]), "/a/1 /a/2");
    assert_eq!(keys(&["/a/", "--prefix", "--limit", "2"]), "/a/1 /a/2");
    assert_eq!(keys(&["/a/", "--prefix", "--sort-by", "KEY", "--order", "DESCEND"]), "/a/3 /a/2 /a/1");
    assert_eq!(keys(&["/a/", "--prefix", "--sort-by", "MODIFY", "--order", "ASCEND"]), "/a/2 /a/3 /a/1");
    assert_eq!(etcdctl.run(&["get", "/a/", "--prefix", "--print-value-only"]), "uno\ntwo\nthree\n");
    let limited = etcdctl.run(&["get", "/a/", "--prefix", "--limit", "1", "-w", "fields"]);
    assert!(limited.contains("\"More\" : true\n\"Count\" : 3"), "{limited}");
    assert_eq!(etcdctl.run(&["del", "/a/1", "--prev-kv"]), "1\n/a/1\nuno\n");
    assert_eq!(etcdctl.run(&["del", "/", "--prefix"]), "3\n");
    assert_eq!(etcdctl.run(&["del", "/", "--prefix"]), "0\n");
}

#[test]
fn transactions_choose_their_branch() {
    let dir = TempDir::new().unwrap();
    let (_server, etcdctl) = store(dir.path());
    etcdctl.run(&["put", "k", "v"]);
    let txn = "value(\"k\") = \"v\"\nmod(\"k\") > \"1\"\nversion(\"x\") = \"0\"\n\nput k w\nget k\n\nput k never\n\n";
    assert_eq!(etcdctl.feed(&["txn"], txn), "SUCCESS\n\nOK\n\nk\nw\n");
    let answer = etcdctl.feed(&["txn"], "create(\"k\") = \"0\"\n\nput k never\n\nget k\n\n");
    assert_eq!(answer, "FAILURE\n\nk\nw\n");
}

#[test]
fn watches_tell_the_past_and_the_present() {
    let dir = TempDir::new().unwrap();
    let (_server, etcdctl) = store(dir.path());
    etcdctl.run(&["put", "/w/a", "1"]);
    etcdctl.run(&["put", "/w/a", "2"]);
    let past = ["watch", "/w/", "--prefix", "--rev", "2", "--prev-kv"];
    let mut watch = RunningCommand::start(etcdctl.command(&past));
    assert_eq!(watch.lines(8), ["PUT", "/w/a", "1", "PUT", "/w/a", "1", "/w/a", "2"]);
    etcdctl.run(&["put", "/other", "x"]);
    etcdctl.run(&["del", "/w/a"]);
    assert_eq!(watch.lines(5), ["DELETE", "/w/a", "2", "/w/a", ""]);
}

#[test]
fn leases_hold_keys_and_let_them_go() {
    let dir = TempDir::new().unwrap();
    let (_server, etcdctl) = store(dir.path());
    let granted = etcdctl.run(&["lease", "grant", "100"]);
    let id = granted.split_whitespace().nth(1).unwrap();
    assert_eq!(granted, format!("lease {id} granted with TTL(100s)\n"));
    etcdctl.run(&["put", "held", "x", "--lease", id]);
    let time = etcdctl.run(&["lease", "timetolive", id, "--keys"]);
    assert!(time.starts_with(&format!("lease {id} granted with TTL(100s), remaining(")), "{time}");
    assert!(time.trim_end().ends_with("attached keys([held])"), "{time}");
    assert_eq!(
        etcdctl.run(&["lease", "keep-alive", "--once", id]),
        format!("lease {id} keepalived with TTL(100)\n")
    );
    assert_eq!(etcdctl.run(&["lease", "list"]), format!("found 1 leases\n{id}\n"));
    assert_eq!(etcdctl.run(&["lease", "revoke", id]), format!("lease {id} revoked\n"));
    assert_eq!(etcdctl.run(&["get", "held"]), "");
    assert!(etcdctl.fails(&["lease", "revoke", id]).contains("requested lease not found"));
    assert_eq!(etcdctl.run(&["lease", "timetolive", id]), format!("lease {id} already expired\n"));
}

#[test]
fn a_short_lease_takes_its_key_along() {
    let dir = TempDir::new().unwrap();
    let (_server, etcdctl) = store(dir.path());
    let granted = etcdctl.run(&["lease", "grant", "1"]);
    let id = granted.split_whitespace().nth(1).unwrap();
    etcdctl.run(&["put", "held", "x", "--lease", id]);
    let mut watch = RunningCommand::start(etcdctl.command(&["watch", "held", "--rev", "2"]));
    assert_eq!(watch.lines(6), ["PUT", "held", "x", "DELETE", "held", ""]);
}

#[test]
fn compaction_forgets_the_past() {
    let dir = TempDir::new().unwrap();
    let (_server, etcdctl) = store(dir.path());
    for value in ["1", "2", "3"] {
        etcdctl.run(&["put", "k", value]);
    }
    assert_eq!(etcdctl.run(&["compaction", "4", "--physical"]), "compacted revision 4\n");
    assert!(etcdctl.fails(&["get", "k", "--rev", "3"]).contains("required revision has been compacted"));
    assert_eq!(etcdctl.run(&["get", "k", "--rev", "4"]), "k\n3\n");
    assert!(etcdctl.fails(&["compaction", "99"]).contains("required revision is a future revision"));
    assert!(etcdctl.fails(&["compaction", "4"]).contains("required revision has been compacted"));
}

#[test]
fn etcdctl_shows_the_server_status() {
    let dir = TempDir::new().unwrap();
    let (server, etcdctl) = store(dir.path());
    assert!(etcdctl.run(&["endpoint", "health"]).contains("is healthy"));
    let status = etcdctl.run(&["endpoint", "status"]);
    assert!(status.starts_with(&format!("{}, ", server.url())) && status.contains("true, false"), "{status}");
    let members = etcdctl.run(&["member", "list"]);
    assert!(members.contains("started, tortie") && members.contains(server.url()), "{members}");
    assert_eq!(etcdctl.run(&["alarm", "list"]), "");
    assert!(etcdctl.run(&["defrag"]).starts_with("Finished defragmenting"));
    etcdctl.run(&["put", "k", "after the defragmentation"]);
    assert_eq!(etcdctl.run(&["get", "k", "--print-value-only"]), "after the defragmentation\n");
    assert!(etcdctl.run(&["endpoint", "hashkv"]).starts_with(server.url()));
    // etcdctl continues without a user only on etcd's exact error that authentication is not enabled.
    assert!(etcdctl.run(&["--user", "root:secret", "get", "k"]).starts_with("k\n"));
}

#[test]
fn a_snapshot_can_be_restored() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("snapshot.db");
    let (_server, etcdctl) = store(&dir.path().join("old"));
    let lease = etcdctl.run(&["lease", "grant", "1000"]);
    let lease = lease.split_whitespace().nth(1).unwrap();
    for number in 0..50 {
        etcdctl.run(&["put", &format!("/k/{}", number % 20), &format!("{number}"), "--lease", lease]);
    }
    etcdctl.run(&["snapshot", "save", file.to_str().unwrap()]);
    etcdctl.run(&["put", "/k/0", "later"]);
    etcdctl.run(&["get", "/k/", "--prefix", "-w", "json", "--rev", "51"]);

    tortie_datastore::restore(&file, &dir.path().join("restored")).unwrap();
    let path = file.to_str().unwrap();
    drop(start(&dir.path().join("by-option"), &["--restore", path]));
    // A snapshot that is copied into place by hand works too.
    std::fs::create_dir(dir.path().join("by-hand")).unwrap();
    std::fs::copy(&file, dir.path().join("by-hand/store.redb")).unwrap();
    let identity = |tool: &Etcdctl| cluster_of(&tool.run(&["get", "x", "-w", "json"]));
    for name in ["restored", "by-option", "by-hand"] {
        let (_server, restored) = store(&dir.path().join(name));
        let all = |tool: &Etcdctl, rev: &str| tool.run(&["get", "/k/", "--prefix", "--rev", rev]);
        assert_eq!(all(&restored, "30"), all(&etcdctl, "30"));
        assert_eq!(all(&restored, "51"), all(&etcdctl, "51"));
        assert_eq!(revision_of(&restored.run(&["get", "x", "-w", "json"])), 51);
        assert_eq!(restored.run(&["lease", "list"]), format!("found 1 leases\n{lease}\n"));
        // The cluster id must differ after a restore, so that watchers notice that revisions were reused.
        assert_eq!(identity(&restored) == identity(&etcdctl), name == "by-hand");
    }
    let refused = tortie_datastore::restore(&file, &dir.path().join("restored")).unwrap_err();
    assert!(refused.to_string().contains("is not empty"), "{refused}");
    let output = Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args(["datastore", "--listen", "http://127.0.0.1:0", "--restore", path, "--data-dir"])
        .arg(dir.path().join("restored"))
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("is not empty"), "{error}");

    let mut damaged = std::fs::read(&file).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&file, damaged).unwrap();
    let refused = tortie_datastore::restore(&file, &dir.path().join("new")).unwrap_err();
    assert!(refused.to_string().contains("checksum does not match"), "{refused}");
}

#[test]
fn it_works_over_the_socket_too() {
    let dir = TempDir::new().unwrap();
    let endpoint = format!("unix://{}", dir.path().join("datastore.sock").display());
    let _server =
        DatastoreProcess::start(TORTIE, &dir.path().join("data"), &["http://127.0.0.1:0", &endpoint], &[]);
    let etcdctl = Etcdctl { endpoint };
    assert_eq!(etcdctl.run(&["put", "k", "v"]), "OK\n");
    assert_eq!(etcdctl.run(&["get", "k"]), "k\nv\n");
    assert!(etcdctl.run(&["endpoint", "status"]).starts_with("unix://"));
}

/// A certificate authority and the certificates that it has signed, as files.
struct EtcdCertificates {
    dir: TempDir,
    ca: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl EtcdCertificates {
    fn new() -> EtcdCertificates {
        let dir = TempDir::new().unwrap();
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        std::fs::write(dir.path().join("ca.pem"), certificate.pem()).unwrap();
        EtcdCertificates { dir, ca: rcgen::Issuer::new(parameters, key) }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes `NAME.pem` and `NAME.key` atomically.
    fn sign(&self, name: &str, common_name: &str, serial: u64) {
        let mut parameters = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        parameters.serial_number = Some(serial.into());
        parameters.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.ca).unwrap();
        for (ending, text) in [("key", key.serialize_pem()), ("pem", certificate.pem())] {
            let (new, path) = (self.path("new"), self.path(&format!("{name}.{ending}")));
            std::fs::write(&new, text).unwrap();
            std::fs::rename(&new, path).unwrap();
        }
    }

    fn server(&self) -> Vec<String> {
        ["--cert-file", &self.path("server.pem"), "--key-file", &self.path("server.key")]
            .map(str::to_owned)
            .to_vec()
    }

    fn client(&self, name: &str) -> Vec<String> {
        let (pem, key) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        ["--cacert", &self.path("ca.pem"), "--cert", &pem, "--key", &key].map(str::to_owned).to_vec()
    }
}

fn with<'a>(first: &'a [String], rest: &[&'a str]) -> Vec<&'a str> {
    first.iter().map(String::as_str).chain(rest.iter().copied()).collect()
}

#[test]
fn tls_requires_client_certificates_and_reloads_its_own() {
    let (dir, certificates, strangers) =
        (TempDir::new().unwrap(), EtcdCertificates::new(), EtcdCertificates::new());
    certificates.sign("server", "server", 1);
    certificates.sign("client", "client", 2);
    strangers.sign("client", "client", 2);
    let mut options = certificates.server();
    options.extend(["--trusted-ca-file".to_owned(), certificates.path("ca.pem")]);
    let server = DatastoreProcess::start(TORTIE, dir.path(), &["https://127.0.0.1:0"], &with(&options, &[]));
    let etcdctl = Etcdctl { endpoint: server.endpoints[0].clone() };
    let client = certificates.client("client");
    assert_eq!(etcdctl.run(&with(&client, &["put", "k", "v"])), "OK\n");
    assert_eq!(etcdctl.run(&with(&client, &["get", "k"])), "k\nv\n");

    // No certificate, a certificate of another authority, and no TLS are all rejected.
    let timeouts = ["--dial-timeout", "2s", "--command-timeout", "2s"];
    let ca_only = [["--cacert", &certificates.path("ca.pem")].as_slice(), &timeouts].concat().join(" ");
    let ca_only: Vec<String> = ca_only.split(' ').map(str::to_owned).collect();
    etcdctl.fails(&with(&ca_only, &["get", "k"]));
    let mut stranger = strangers.client("client");
    stranger[1] = certificates.path("ca.pem");
    stranger.extend(timeouts.map(str::to_owned));
    etcdctl.fails(&with(&stranger, &["get", "k"]));
    let plain = Etcdctl { endpoint: etcdctl.endpoint.replace("https", "http") };
    plain.fails(&["--dial-timeout", "2s", "--command-timeout", "2s", "get", "k"]);

    // The next connection uses a renewed certificate; an unreadable file changes nothing.
    let serial = || {
        let address = etcdctl.endpoint.strip_prefix("https://").unwrap();
        let output = Command::new("openssl")
            .args(["s_client", "-connect", address, "-alpn", "h2", "-cert", &client[3], "-key", &client[5]])
            .stdin(Stdio::null())
            .output()
            .expect("openssl is needed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let pem = &text[text.find("-----BEGIN").unwrap()..];
        std::fs::write(certificates.path("seen.pem"), pem).unwrap();
        let output = Command::new("openssl")
            .args(["x509", "-noout", "-serial", "-in", &certificates.path("seen.pem")])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(serial(), "serial=01");
    certificates.sign("server", "server", 9);
    assert_eq!(serial(), "serial=09");
    std::fs::write(certificates.path("server.pem"), "no certificate").unwrap();
    assert_eq!(serial(), "serial=09");
    assert_eq!(etcdctl.run(&with(&client, &["get", "k"])), "k\nv\n");
}

#[test]
fn plaintext_for_other_machines_needs_an_option() {
    let dir = TempDir::new().unwrap();
    let refused = |options: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(["datastore", "--data-dir"])
            .arg(dir.path())
            .args(options)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let error = refused(&["--listen", "http://0.0.0.0:0"]);
    assert!(error.contains("use https:// with a certificate, or --allow-plaintext"), "{error}");
    let error = refused(&["--listen", "https://127.0.0.1:0"]);
    assert!(error.contains("TLS needs --cert-file and --key-file"), "{error}");
    std::fs::write(dir.path().join("bad.pem"), "nothing").unwrap();
    let bad = dir.path().join("bad.pem").to_str().unwrap().to_owned();
    let error = refused(&["--listen", "https://127.0.0.1:0", "--cert-file", &bad, "--key-file", &bad]);
    assert!(error.contains("bad.pem"), "{error}");
    let data = dir.path().join("other");
    let server = DatastoreProcess::start(TORTIE, &data, &["http://0.0.0.0:0"], &["--allow-plaintext"]);
    assert_eq!(Etcdctl { endpoint: server.url().to_owned() }.run(&["put", "k", "v"]), "OK\n");
}

/// Returns the processor time in seconds that a process has used.
fn processor_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[test]
fn without_descriptors_it_waits_instead_of_spinning() {
    let dir = TempDir::new().unwrap();
    let (server, etcdctl) = store(dir.path());
    etcdctl.run(&["put", "k", "v"]);
    let mut watch = RunningCommand::start(etcdctl.command(&["watch", "k", "--rev", "2"]));
    assert_eq!(watch.lines(3), ["PUT", "k", "v"]);
    // Lower the limit to the descriptors that are open now: the next connection cannot be accepted.
    let pid = server.id();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let limit = |soft: usize| {
        let nofile = format!("--nofile={soft}:4096");
        let status = Command::new("prlimit").args(["--pid", &pid.to_string(), &nofile]).status().unwrap();
        assert!(status.success());
    };
    limit(open);
    let address = server.url().strip_prefix("http://").unwrap();
    let waiting: Vec<_> = (0..50).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    let before = processor_seconds(pid);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let used = processor_seconds(pid) - before;
    // A busy loop would use more than this even on a loaded machine.
    assert!(used < 0.15, "{used} s of processor time in 3 s of waiting for descriptors");
    limit(1024);
    drop(waiting);
    assert_eq!(etcdctl.run(&["put", "k", "again"]), "OK\n");
    assert_eq!(watch.lines(3), ["PUT", "k", "again"]);
}

#[test]
fn users_may_do_what_their_roles_say() {
    let (dir, certificates) = (TempDir::new().unwrap(), EtcdCertificates::new());
    certificates.sign("server", "server", 1);
    certificates.sign("client", "reader", 2);
    let mut options = certificates.server();
    options.extend(["--trusted-ca-file".to_owned(), certificates.path("ca.pem")]);
    let listen = ["http://127.0.0.1:0", "https://127.0.0.1:0"];
    let server = DatastoreProcess::start(TORTIE, dir.path(), &listen, &with(&options, &[]));
    let etcdctl = Etcdctl { endpoint: server.url().to_owned() };
    assert!(etcdctl.fails(&["auth", "enable", "--user", "root:pw"]).contains("root user does not exist"));
    etcdctl.run(&["user", "add", "root:pw"]);
    assert!(etcdctl.fails(&["user", "add", "root:pw"]).contains("user name already exists"));
    etcdctl.run(&["user", "grant-role", "root", "root"]);
    etcdctl.run(&["role", "add", "half"]);
    etcdctl.run(&["role", "grant-permission", "half", "read", "--prefix=true", "/calico/"]);
    etcdctl.run(&["role", "grant-permission", "half", "readwrite", "/mine"]);
    etcdctl.run(&["user", "add", "reader:secret"]);
    etcdctl.run(&["user", "grant-role", "reader", "half"]);
    etcdctl.run(&["put", "/calico/a", "1"]);
    assert_eq!(etcdctl.run(&["auth", "enable"]), "Authentication Enabled\n");

    let as_user = |user: &'static str, args: &[&'static str]| [&["--user", user], args].concat();
    assert!(etcdctl.fails(&["get", "/calico/a"]).contains("user name is empty"));
    assert!(etcdctl.fails(&as_user("reader:wrong", &["get", "/calico/a"])).contains("authentication failed"));
    assert!(etcdctl.fails(&as_user("nobody:pw", &["get", "/calico/a"])).contains("authentication failed"));
    let reader = |args: &[&'static str]| etcdctl.run(&as_user("reader:secret", args));
    let denied = |args: &[&'static str]| {
        let error = etcdctl.fails(&as_user("reader:secret", args));
        assert!(error.contains("permission denied"), "{args:?}: {error}");
    };
    assert_eq!(reader(&["get", "/calico/", "--prefix"]), "/calico/a\n1\n");
    assert_eq!(reader(&["put", "/mine", "x"]), "OK\n");
    assert_eq!(reader(&["del", "/mine"]), "1\n");
    denied(&["put", "/calico/a", "2"]);
    denied(&["del", "/calico/a"]);
    denied(&["get", "/", "--prefix"]);
    denied(&["get", "/other"]);
    denied(&["user", "list"]);
    denied(&["defrag"]);
    denied(&["auth", "disable"]);
    denied(&["snapshot", "save", "/tmp/never-written.db"]);
    let mut watch = etcdctl.command(&as_user("reader:secret", &["watch", "/other"]));
    let output = watch.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("permission denied"), "{output:?}");
    assert!(reader(&["user", "get", "reader"]).contains("Roles: half"));

    // The same user, identified by its certificate instead of a password.
    let tls = Etcdctl { endpoint: server.endpoints[1].clone() };
    let client = certificates.client("client");
    assert_eq!(tls.run(&with(&client, &["get", "/calico/a"])), "/calico/a\n1\n");
    assert!(tls.fails(&with(&client, &["put", "/calico/a", "2"])).contains("permission denied"));

    // Users survive a restart.
    drop(server);
    let server = start(dir.path(), &[]);
    let etcdctl = Etcdctl { endpoint: server.url().to_owned() };
    assert!(etcdctl.fails(&["get", "/calico/a"]).contains("user name is empty"));
    assert!(etcdctl.run(&as_user("root:pw", &["user", "list"])).contains("reader"));
    etcdctl.run(&as_user("root:pw", &["role", "revoke-permission", "half", "--prefix=true", "/calico/"]));
    assert!(etcdctl.fails(&as_user("reader:secret", &["get", "/calico/a"])).contains("permission denied"));
    etcdctl.run(&as_user("root:pw", &["user", "delete", "reader"]));
    assert!(
        etcdctl.fails(&as_user("root:pw", &["user", "delete", "root"])).contains("invalid auth management")
    );
    etcdctl.run(&as_user("root:pw", &["auth", "disable"]));
    assert_eq!(etcdctl.run(&["get", "/calico/a"]), "/calico/a\n1\n");
}
