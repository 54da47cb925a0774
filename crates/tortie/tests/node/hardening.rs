//! Attacks, operator mistakes and failures: the node continues, or exits with an error that names the cause.

use crate::world::{NodeFixture, TORTIE, eventually};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tortie_dataplane::Netns;
use tortie_testkit::TableOwner;

/// Fetches a page on the host; returns its text followed by the status code.
fn page(world: &NodeFixture, url: &str) -> String {
    let output = world.host.try_exec(&["curl", "-s", "-m", "20", "-w", "%{http_code}", url]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn readiness(world: &NodeFixture) -> String {
    page(world, "http://127.0.0.1:9099/readiness")
}

/// Runs `tortie health` on the host; returns its exit code and output.
fn health(world: &NodeFixture, flags: &[&str]) -> (Option<i32>, String) {
    let run_dir = world.dir.path().join("run");
    let output =
        Command::new(TORTIE).arg("health").arg("--run-dir").arg(run_dir).args(flags).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until the whole node is healthy (BGP starts after the engine) and returns the output of `tortie health`.
fn await_health(world: &NodeFixture) -> String {
    let mut said = String::new();
    eventually("the node is well", || {
        let (code, text) = health(world, &[]);
        said = text;
        code == Some(0)
    });
    said
}

/// Waits for a process to exit; kills it and returns `None` after the timeout.
fn end_of(mut child: Child) -> Option<(bool, String)> {
    let deadline = Instant::now() + Duration::from_secs(50);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Some((output.status.success(), text))
}

#[test]
fn unfinished_requests_do_not_block_cni_and_probes() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    world.start_with_descriptors(
        1024,
        &[("FELIX_HEALTHENABLED", "true"), ("FELIX_PROMETHEUSMETRICSENABLED", "true")],
    );
    eventually("the node is ready", || readiness(&world).ends_with("200"));
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 4096, 4096).unwrap();
    let host = Netns::open(world.host.path()).unwrap();
    let attack = || {
        let mut streams = Vec::new();
        for number in 0..1100 {
            let port = if number % 2 == 0 { 9099 } else { 9091 };
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            let _ = stream.write_all(b"GET /liveness HTTP/1.1\r\nHost: x\r\n");
            streams.push(stream);
        }
        streams
    };
    let streams = host.run(attack).unwrap();
    let pod = world.container();
    let config = world.config();
    world.must("ADD", "c1", &pod.path(), &config);
    assert!(readiness(&world).ends_with("200"), "{}", world.log());
    await_health(&world);
    let open = std::fs::read_dir(format!("/proc/{}/fd", world.pid())).unwrap().count();
    assert!(open < 400, "{open} descriptors");
    assert!(page(&world, "http://127.0.0.1:9091/metrics").contains("tortie_closed_connections"));
    world.must("DEL", "c1", &pod.path(), &config);
    // Connections that stay unfinished are closed after a while.
    let mut last = streams.into_iter().next_back().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    assert!(last.read_to_end(&mut rest).is_ok() || !rest.is_empty(), "nobody waits for ever");
}

#[test]
fn unfinished_plugin_requests_do_not_block_others() {
    let world = NodeFixture::new();
    world.await_status();
    let answered_before_they_are_given_up = || {
        let mut streams: Vec<_> = (0..200).map(|_| world.connect()).collect();
        for stream in &mut streams {
            stream.write_all(b"{\"plugin\"").unwrap();
        }
        world.must("STATUS", "", "", &world.config());
        // The node closes them after ten seconds: if one is still open, STATUS did not wait for them.
        let first = &mut streams[0];
        first.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        first.read(&mut [0; 16]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    // A daemon that waits for them does so every time; a busy machine takes ten seconds only occasionally.
    assert!(
        (0..4).any(|_| answered_before_they_are_given_up()),
        "answered only after the others were given up"
    );
}

#[test]
fn a_second_daemon_names_the_first_and_exits() {
    let world = NodeFixture::new();
    let second = world.command(&[], &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (success, text) = end_of(second).expect("it leaves");
    assert!(!success, "{text}");
    let holder = format!("in use by another node daemon (process {},", world.pid());
    assert!(text.contains(&holder), "{text}");
    // Separate directories do not make it a separate host.
    let own = world.dir.path().join("second");
    let dirs = ["state", "run", "calico"].map(|name| own.join(name).display().to_string());
    let second = world
        .command(&[], &[])
        .args(["--state-dir", &dirs[0], "--run-dir", &dirs[1], "--calico-dir", &dirs[2]])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (success, text) = end_of(second).expect("it leaves");
    let holder = format!("another node daemon (process {}) runs in this network namespace", world.pid());
    assert!(!success && text.contains(&holder), "{text}");
    // The first daemon is not affected.
    let pod = world.container();
    world.must("ADD", "c1", &pod.path(), &world.config());
    await_health(&world);
    world.must("DEL", "c1", &pod.path(), &world.config());
}

#[test]
fn a_node_without_a_datastore_leaves_no_directories() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let child = Command::new(TORTIE)
        .arg("node")
        .args(["--state-dir".as_ref(), at("state").as_os_str()])
        .args(["--run-dir".as_ref(), at("run").as_os_str()])
        .args(["--config".as_ref(), at("none.cfg").as_os_str()])
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (success, text) = end_of(child).expect("it leaves");
    assert!(!success && text.contains("none.cfg"), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn health_needs_nothing_switched_on() {
    let mut world = NodeFixture::new();
    let text = await_health(&world);
    for line in [
        "ok         datastore: in sync",
        "ok         dataplane: ",
        "ok         policy: in force",
        "ok         engine: alive",
        "ok         datastore-watch: alive",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    assert_eq!(health(&world, &["--felix-live", "--felix-ready"]), (Some(0), String::new()));
    world.stop_store();
    eventually("a lost datastore is reported and does not make the node unready", || {
        let (code, text) = health(&world, &[]);
        code == Some(0) && text.contains("warning    datastore: ")
    });
    world.stop();
    let (code, text) = health(&world, &[]);
    assert!(code == Some(2) && text.contains("is the node running on this host?"), "{code:?} {text}");
    assert_eq!(health(&world, &["--felix-live"]).0, Some(1));
}

/// Stops the datastore's process without closing its connections; continues it on drop.
struct FrozenStore(nix::unistd::Pid);

impl FrozenStore {
    fn freeze(world: &NodeFixture) -> FrozenStore {
        let process = nix::unistd::Pid::from_raw(world.store_pid().try_into().unwrap());
        nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGSTOP).unwrap();
        FrozenStore(process)
    }
}

impl Drop for FrozenStore {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(self.0, nix::sys::signal::Signal::SIGCONT);
    }
}

#[test]
fn a_hung_store_is_named_and_fails_adds() {
    let world = NodeFixture::new();
    world.await_status();
    let (pod, config) = (world.container(), world.config());
    let frozen = FrozenStore::freeze(&world);
    let adding = world.begin("calico", "ADD", "c1", &pod.path(), &config.to_string(), "");
    eventually("health names the hung store", || health(&world, &[]).1.contains("datastore: no answer from"));
    let (success, text) = end_of(adding).expect("ADD ends while the store hangs");
    let text = text.replace(": ", ":");
    assert!(
        !success && text.contains("\"code\":11") && text.contains("the datastore does not respond"),
        "{text}"
    );
    assert!(text.contains("no answer from"), "{text}");
    eventually("the outage is logged", || world.log().contains("the datastore is out of reach"));
    drop(frozen);
    eventually("the store is back", || health(&world, &[]).1.contains("datastore: in sync"));
    let log = world.log();
    assert!(!log.contains("protocol"), "the protocol is not the cause: {log}");
    world.must("ADD", "c2", &pod.path(), &config);
    world.must("DEL", "c2", &pod.path(), &config);
    world.must("DEL", "c1", &pod.path(), &config);
    eventually("the failed ADD is undone", || world.traces().is_empty());
}

#[test]
fn a_stuck_engine_fails_liveness_by_name() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let hold = world.hold();
    world.start(&[
        ("TORTIE_FAILPOINT", &hold.failpoint("engine-request")),
        ("FELIX_HEALTHTIMEOUTOVERRIDES", "engine=3s"),
        ("FELIX_HEALTHENABLED", "true"),
    ]);
    let liveness = || page(&world, "http://127.0.0.1:9099/liveness");
    eventually("the node is alive", || liveness().ends_with("200"));
    let (pod, config) = (world.container(), world.config());
    let plugin = world.begin("calico", "ADD", "c1", &pod.path(), &config.to_string(), "");
    hold.wait();
    eventually("the part that is stuck is named", || {
        let page = liveness();
        page.ends_with("503") && page.contains("engine: no sign of life")
    });
    let (code, text) = health(&world, &[]);
    assert!(code == Some(2) && text.contains("NOT LIVE   engine: "), "{text}");
    assert_eq!(health(&world, &["--felix-live"]).0, Some(1));
    hold.let_go();
    assert!(crate::world::said(plugin).success);
    eventually("it is alive again", || liveness().ends_with("200"));
    world.must("DEL", "c1", &pod.path(), &config);
}

#[test]
fn an_ended_task_ends_only_the_process() {
    let mut world = NodeFixture::new();
    let (first, second, neighbour) = (world.container(), world.container(), world.container());
    let config = world.config();
    let address = world.must("ADD", "c1", &first.path(), &config).addresses()[0].clone();
    world.must("ADD", "c3", &neighbour.path(), &config);
    world.start(&[("TORTIE_FAILPOINT", "engine-request:panic")]);
    assert_eq!(world.cni("ADD", "c2", &second.path(), &config).code(), 11);
    eventually("the daemon is gone", || world.has_ended());
    assert!(world.log().contains("the engine has ended unexpectedly"), "{}", world.log());
    assert!(neighbour.pings(&address), "{}", world.host.ip("route"));
    world.start(&[]);
    eventually("the ADD that was not answered is undone", || !world.host.ip(&["link"]).contains("calic2"));
    world.must("DEL", "c1", &first.path(), &config);
    world.must("DEL", "c3", &neighbour.path(), &config);
    world.assert_clean("DEL");
}

#[test]
fn a_node_without_policy_rejects_workloads() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let owner = TableOwner::new(&world.host);
    world.start(&[("FELIX_HEALTHENABLED", "true"), ("FELIX_PROMETHEUSMETRICSENABLED", "true")]);
    let (pod, config) = (world.container(), world.config());
    eventually("the node is not ready", || {
        let page = readiness(&world);
        page.ends_with("503") && page.contains("policy: ") && page.contains("table inet tortie")
    });
    assert_eq!(world.cni("STATUS", "", "", &config).code(), 50);
    let said = world.cni("ADD", "c1", &pod.path(), &config);
    assert!(said.code() == 11 && said.json.to_string().contains("policy is not in force"), "{said:?}");
    world.assert_clean("a refused ADD");
    assert!(page(&world, "http://127.0.0.1:9091/metrics").contains("tortie_policy_in_force 0"));
    assert!(world.log().contains("policy is not in force"), "{}", world.log());
    assert!(health(&world, &[]).1.contains("NOT READY  policy: "), "{:?}", health(&world, &[]));
    // DEL still works.
    world.must("DEL", "c1", &pod.path(), &config);

    drop(owner);
    eventually("the node is ready", || readiness(&world).ends_with("200"));
    world.must("STATUS", "", "", &config);
    world.must("ADD", "c1", &pod.path(), &config);
    assert!(page(&world, "http://127.0.0.1:9091/metrics").contains("tortie_policy_in_force 1"));
    world.must("DEL", "c1", &pod.path(), &config);
}

#[test]
fn what_is_no_namespace_is_none() {
    let world = NodeFixture::new();
    let config = world.config();
    // Opening a FIFO blocks until its other end is opened.
    let fifo = world.dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let fifo = fifo.display().to_string();
    for command in ["ADD", "DEL"] {
        let plugin = world.begin("calico", command, "c1", &fifo, &config.to_string(), "");
        let (success, text) = end_of(plugin).unwrap_or_else(|| panic!("{command} hangs"));
        assert_eq!(success, command == "DEL", "{command}: {text}");
        assert!(success || text.contains("network namespace"), "{text}");
    }
    // After a reboot or an unmount, a plain file is left where the namespace was.
    let pod = world.container();
    world.must("ADD", "c2", &pod.path(), &config);
    let record = world.dir.path().join("state/attachments/c2:eth0.json");
    assert_eq!(std::fs::metadata(record).unwrap().permissions().mode() & 0o777, 0o600);
    let path = pod.path();
    drop(pod);
    std::fs::write(&path, "").unwrap();
    let said = world.cni("DEL", "c2", &path, &config);
    std::fs::remove_file(&path).unwrap();
    assert!(said.success, "{said:?}");
    world.assert_clean("DEL");
}

#[test]
fn start_and_end_of_outages_are_logged() {
    let mut world = NodeFixture::new();
    let before = world.log().lines().count();
    world.stop_store();
    eventually("the beginning is logged", || world.log().contains("the datastore is out of reach"));
    std::thread::sleep(Duration::from_secs(5));
    world.start_store();
    eventually("the end is logged", || world.log().contains("the datastore is back"));
    let log = world.log();
    let lines: Vec<&str> = log.lines().skip(before).filter(|line| !line.contains(" INFO ")).collect();
    assert!(lines.len() <= 4, "{lines:#?}");
}

/// Returns the netlink sockets that a process has open.
fn netlink_sockets(pid: u32) -> BTreeSet<String> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/netlink")).unwrap();
    let inodes: BTreeSet<&str> =
        table.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let inode =
        |target: PathBuf| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    targets.filter_map(inode).filter(|inode| inodes.contains(inode.as_str())).collect()
}

#[test]
fn changed_settings_do_not_restart_the_dataplane() {
    let world = NodeFixture::new();
    let (pod, other, config) = (world.container(), world.container(), world.config());
    let address = world.must("ADD", "c1", &pod.path(), &config).addresses()[0].clone();
    world.must("ADD", "c2", &other.path(), &config);
    // Some sockets are open only briefly: those in every sample are permanent.
    let looks = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        netlink_sockets(world.pid())
    });
    let before = looks.reduce(|one, other| &one & &other).unwrap();
    assert!(!before.is_empty());
    let settings = "{kind: FelixConfiguration, apiVersion: projectcalico.org/v3, metadata: {name: default}, \
                    spec: {deviceRouteProtocol: 77, logPrefix: other, logSeverityScreen: Info}}";
    world.calicoctl(&["apply", "-f", "-"], settings);
    eventually("routes are written as set", || {
        world.host.ip(&["route", "show", &address]).contains("proto 77")
    });
    assert!(other.pings(&address), "{}", world.log());
    assert!(before.is_subset(&netlink_sockets(world.pid())), "{}", world.log());
    world.must("CHECK", "c1", &pod.path(), &config);
}
