//! A real Neutron with our driver, MariaDB, etcd and the daemon, for one test.

use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tortie_openstack::{OpenStackOptions, run};
use tortie_store::StoreConfig;
use tortie_testkit::{Etcd, TestProcess, eventually};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The environment. Fields are dropped in this order.
pub struct NeutronFixture {
    worker: Option<ProcessGroup>,
    api: Option<TestProcess>,
    daemon: Option<DaemonRuntime>,
    _database: TestProcess,
    pub etcd: Etcd,
    environment: PathBuf,
    dir: TempDir,
}

/// The daemon. All its state is in memory, so dropping its runtime ends it like SIGKILL does.
struct DaemonRuntime(Option<tokio::runtime::Runtime>);

impl Drop for DaemonRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(Duration::from_secs(10));
        }
    }
}

/// A process with children, killed together.
struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).output();
        let _ = self.0.wait();
    }
}

impl NeutronFixture {
    pub fn start() -> NeutronFixture {
        let build = tortie_testkit::run(Command::new(format!("{ROOT}/scripts/openstack/build")).arg("where"));
        let environment = PathBuf::from(build.trim());
        assert!(
            environment.join("complete").exists(),
            "Neutron is missing: run `scripts/openstack/build` first"
        );
        // A short path, because that of a Unix socket is limited.
        let dir = tempfile::Builder::new().prefix("tortie-os-").tempdir_in("/tmp").unwrap();
        let path = dir.path();
        tortie_testkit::run(Command::new("cp").arg("-a").arg(environment.join("data")).arg(path));
        let database = start_database(path);
        install_driver(&environment, path);
        let etcd = Etcd::start().unwrap();
        let mut fixture = NeutronFixture {
            worker: None,
            api: None,
            daemon: None,
            _database: database,
            etcd,
            environment,
            dir,
        };
        fixture.write_configuration();
        fixture.start_daemon();
        fixture.start_neutron();
        fixture
    }

    fn path(&self, part: &str) -> PathBuf {
        self.dir.path().join(part)
    }

    fn write_configuration(&self) {
        let dir = self.dir.path().display();
        let paste = self.environment.join("venv/etc/neutron/api-paste.ini");
        let text = format!(
            "[DEFAULT]\ncore_plugin = ml2\nservice_plugins = router,qos\nauth_strategy = noauth\n\
             transport_url = fake://\napi_paste_config = {}\nstate_path = {dir}/state\nhost = ctl-1\n\
             notify_nova_on_port_status_changes = false\nnotify_nova_on_port_data_changes = false\n\
             agent_down_time = 3600\ndhcp_agent_notification = false\nrpc_workers = 0\nlog_file = {dir}/neutron.log\n\
             [oslo_concurrency]\nlock_path = {dir}/state/lock\n[oslo_policy]\npolicy_file = {dir}/policy.yaml\n\
             [database]\nconnection = mysql+pymysql://root@localhost/neutron?unix_socket={dir}/m.sock&charset=utf8mb4\n\
             [ml2]\nmechanism_drivers = tortie\ntype_drivers = local,flat\ntenant_network_types = local\n\
             extension_drivers = port_security,qos\n[ml2_type_flat]\nflat_networks = *\n[tortie]\nsocket = {dir}/d.sock\n",
            paste.display()
        );
        fs::create_dir_all(self.path("state/lock")).unwrap();
        fs::write(self.path("policy.yaml"), "").unwrap();
        fs::write(self.path("neutron.conf"), text).unwrap();
    }

    /// Starts the daemon and waits for its socket.
    pub fn start_daemon(&mut self) {
        let options = OpenStackOptions {
            socket: self.path("d.sock"),
            region: String::new(),
            elector_name: "ctl-1".to_owned(),
            store: StoreConfig { etcd_endpoints: self.etcd.endpoint(), ..StoreConfig::default() },
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let ended = run(options, move || sender.send(()).unwrap()).await;
            panic!("the daemon ended: {ended:?}");
        });
        self.daemon = Some(DaemonRuntime(Some(runtime)));
        receiver.recv().expect("the daemon ended before its socket was ready");
    }

    pub fn kill_daemon(&mut self) {
        self.daemon = None;
    }

    fn python(&self, program: &str) -> Command {
        let mut command = Command::new(self.environment.join("venv/bin").join(program));
        let log = File::options().create(true).append(true).open(self.path("python.log")).unwrap();
        command.env("PYTHONPATH", self.path("driver")).stdin(Stdio::null()).stderr(log);
        command
    }

    fn start_neutron(&mut self) {
        let mut worker = self.python("neutron-periodic-workers");
        worker.arg("--config-file").arg(self.path("neutron.conf")).stdout(Stdio::null()).process_group(0);
        self.worker = Some(ProcessGroup(worker.spawn().unwrap()));
        let mut api = self.python("python");
        api.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/neutron/serve.py")).arg(self.path("api.sock"));
        api.arg("--config-file").arg(self.path("neutron.conf"));
        let (process, line) = TestProcess::until_first_line(&mut api);
        assert_eq!(line.trim(), "ready", "{}", self.logs());
        self.api = Some(process);
    }

    /// Runs `calico-resync` and returns its exit status and report.
    pub fn resync(&self, arguments: &[&str]) -> (i32, Value) {
        let mut command = self.python("python");
        command.args(["-m", "tortie_neutron.resync_command", "--config-file"]).arg(self.path("neutron.conf"));
        let output = command.args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let report =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{}", self.logs()));
        (output.status.code().unwrap(), report)
    }

    /// Sends a request to Neutron and returns status and body.
    pub fn request(&self, verb: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut stream = UnixStream::connect(self.path("api.sock")).unwrap();
        stream.set_read_timeout(Some(REQUEST_TIMEOUT)).unwrap();
        let text = if body.is_null() { String::new() } else { body.to_string() };
        write!(
            stream,
            "{verb} /v2.0{path} HTTP/1.0\r\nhost: neutron\r\nx-roles: admin,service\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    /// Sends a request that must succeed and returns the object in the response.
    pub fn call(&self, verb: &str, path: &str, body: &Value) -> Value {
        let (status, response) = self.request(verb, path, body);
        assert!(status < 300, "{verb} {path} {body}: {status} {response}\n{}", self.logs());
        match response {
            Value::Object(object) => object.into_iter().next().map(|(_, value)| value).unwrap_or_default(),
            other => other,
        }
    }

    pub fn create(&self, kind: &str, fields: Value) -> Value {
        let mut fields = fields;
        fields["project_id"] = json!("proj1");
        self.call("POST", &format!("/{}", plural(kind)), &json!({kind: fields}))
    }

    pub fn update(&self, kind: &str, id: &str, fields: &Value) -> Value {
        self.call("PUT", &format!("/{}/{id}", plural(kind)), &json!({kind: fields}))
    }

    pub fn show(&self, kind: &str, id: &str) -> Value {
        self.call("GET", &format!("/{}/{id}", plural(kind)), &Value::Null)
    }

    pub fn delete(&self, kind: &str, id: &str) {
        self.call("DELETE", &format!("/{}/{id}", plural(kind)), &Value::Null);
    }

    /// Returns the JSON of an entry, null if it does not exist, or its text if it is not JSON.
    pub fn entry(&self, path: &str) -> Value {
        let text = self.etcd.ctl(&["get", path, "--print-value-only"]).unwrap();
        if text.trim().is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }

    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let text = self.etcd.ctl(&["get", prefix, "--prefix", "--keys-only"]).unwrap();
        text.split_whitespace().map(str::to_owned).collect()
    }

    pub fn put(&self, path: &str, value: &str) {
        self.etcd.ctl(&["put", path, value]).unwrap();
    }

    /// Waits for a condition and shows the logs of Neutron if it does not hold in time.
    pub fn eventually(&self, what: &str, condition: impl Fn() -> bool) {
        eventually(&format!("{what}; logs: {}", self.path("").display()), condition);
    }

    pub fn logs(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.path(name)).unwrap_or_default();
        let text = read("python.log") + &read("neutron.log");
        let interesting = text.lines().filter(|line| !line.contains(" INFO ") && !line.contains(" DEBUG "));
        let lines: Vec<&str> = interesting.collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

fn plural(kind: &str) -> String {
    let kind = kind.replace('_', "-");
    if kind == "policy" { "qos/policies".to_owned() } else { format!("{kind}s") }
}

fn start_database(dir: &Path) -> TestProcess {
    let mut command = Command::new("mariadbd");
    command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
    command.args([
        "--no-defaults",
        "--user=root",
        "--skip-networking",
        "--skip-log-bin",
        "--performance-schema=OFF",
    ]);
    command.args([
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=0",
        "--innodb-log-file-size=8M",
    ]);
    command.args(["--innodb-buffer-pool-size=64M"]);
    for (option, file) in [("datadir", "data"), ("socket", "m.sock"), ("pid-file", "m.pid")] {
        command.arg(format!("--{option}={}", dir.join(file).display()));
    }
    let log = File::create(dir.join("mariadb.log")).unwrap();
    let mut database =
        TestProcess::start(command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log));
    let log = || fs::read_to_string(dir.join("mariadb.log")).unwrap_or_default();
    eventually("MariaDB accepts connections", || {
        assert!(!database.ended(), "MariaDB ended: {}", log());
        UnixStream::connect(dir.join("m.sock")).is_ok()
    });
    database
}

/// Installs the driver as a deployment does, into a directory of this test.
fn install_driver(environment: &Path, dir: &Path) {
    tortie_testkit::run(
        Command::new("cp").arg("-a").arg(format!("{ROOT}/openstack")).arg(dir.join("source")),
    );
    let mut pip = Command::new(environment.join("venv/bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]);
    pip.args(["--no-build-isolation", "--target"]).arg(dir.join("driver")).arg(dir.join("source"));
    tortie_testkit::run(&mut pip);
}
