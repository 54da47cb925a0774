//! `tortie settings` shows the value and source of every setting; settings without effect are reported.

use crate::world::{NodeFixture, TORTIE, eventually};
use serde_json::{Value, json};
use std::os::unix::net::UnixDatagram;
use std::process::Command;

fn settings(world: &NodeFixture, args: &[&str]) -> String {
    let run_dir = world.path("run");
    let output =
        Command::new(TORTIE).arg("settings").args(args).arg("--run-dir").arg(run_dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn setting(world: &NodeFixture, name: &str) -> Value {
    let all: Value = serde_json::from_str(&settings(world, &["--all", "-o", "json"])).unwrap();
    all.as_array().unwrap().iter().find(|setting| setting["name"] == name).unwrap().clone()
}

#[test]
fn every_setting_has_a_value_and_a_source() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    std::fs::create_dir_all(world.path("state")).unwrap();
    std::fs::write(world.path("state/felix.cfg"), "[global]\nLogPrefix = from-file\n").unwrap();
    world.start(&[("FELIX_HEALTHENABLED", "true"), ("FELIX_HEALTHPORT", ""), ("FELIX_bpfEnabled", "true")]);
    let object = |name: &str, spec: &str| {
        format!(
            "{{kind: FelixConfiguration, apiVersion: projectcalico.org/v3, metadata: {{name: {name}}}, spec: {{{spec}}}}}"
        )
    };
    let objects = [
        object("default", "healthPort: 9199, logPrefix: from-object, defaultEndpointToHostAction: Drop"),
        object("all", "nodeSelector: all(), vxlanPort: 4790"),
    ];
    world.calicoctl(&["apply", "-f", "-"], &objects.join("\n---\n"));
    let is = |name: &str, value: &str, source: &str| {
        let setting = setting(&world, name);
        setting["value"] == value && setting["source"] == source
    };
    eventually("an empty variable does not hide the object", || is("healthPort", "9199", "default"));
    eventually("a selector counts", || is("vxlanPort", "4790", "selector"));
    assert!(is("healthEnabled", "true", "environment"));
    assert!(is("logPrefix", "from-file", "file"));
    assert!(is("defaultEndpointToHostAction", "Return", "node"), "written when the node starts");
    assert!(is("interfacePrefix", "cali", "built-in"));
    assert_eq!(setting(&world, "bpfEnabled")["effect"], "none");

    let changed = settings(&world, &[]);
    assert!(changed.contains("logPrefix") && !changed.contains("interfacePrefix"), "{changed}");
    assert!(settings(&world, &["INTERFACEPREFIX"]).contains("cali"));

    // Logged once, and shown on the health page while it applies.
    let idle = "bpfEnabled (environment): true has no effect here: there is no eBPF dataplane";
    let loosened = "node.n1 sets Return, which lets workloads reach this host";
    let page = || {
        let output = world.host.try_exec(&["curl", "-s", "http://localhost:9199/readiness"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    eventually("the page names both", || page().contains(idle) && page().contains(loosened));
    for warning in [idle, loosened] {
        assert_eq!(world.log().matches(warning).count(), 1, "{}", world.log());
    }
    world.calicoctl(
        &[
            "patch",
            "felixconfiguration",
            "node.n1",
            "-p",
            r#"{"spec": {"defaultEndpointToHostAction": "Drop"}}"#,
        ],
        "",
    );
    eventually("what is mended is named no more", || page().contains(idle) && !page().contains(loosened));
}

#[test]
fn a_host_of_calico_brings_its_settings() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let object = |name: &str, spec: &str| {
        let head =
            format!("apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {{name: {name}}}");
        world.calicoctl(&["apply", "-f", "-"], &format!("{{{head}, spec: {{{spec}}}}}"));
    };
    object("default", "logSeverityScreen: Warning");
    object("node.n7", "logPrefix: own");
    // Only Felix's file contains the datastore endpoint and the host name.
    std::fs::create_dir_all(world.path("state")).unwrap();
    let file = format!("[global]\nFelixHostname = n7\nEtcdEndpoints = {}\n", world.socket());
    std::fs::write(world.path("state/felix.cfg"), file).unwrap();
    let mut command = world.command(&[], &[]);
    command.env_remove("NODENAME").env_remove("ETCD_ENDPOINTS");
    world.start_node(command);
    assert!(world.calicoctl(&["get", "nodes"], "").contains("n7"));
    let stored = |kind: &str, name: &str| {
        let text = world.calicoctl(&["get", kind, name, "-o", "json"], "");
        serde_json::from_str::<Value>(&text).unwrap()["spec"].clone()
    };
    let own = stored("felixconfiguration", "node.n7");
    assert_eq!((&own["logPrefix"], &own["defaultEndpointToHostAction"]), (&json!("own"), &json!("Return")));
    let cluster = stored("felixconfiguration", "default");
    assert_eq!(
        (&cluster["logSeverityScreen"], &cluster["reportingInterval"]),
        (&json!("Warning"), &json!("0s"))
    );
    let ipam = stored("ipamconfiguration", "default");
    assert_eq!((&ipam["autoAllocateBlocks"], &ipam["strictAffinity"]), (&json!(true), &json!(false)));
}

#[test]
fn the_log_starts_at_the_configured_severity() {
    let world = NodeFixture::new();
    let debugged = || world.log().matches("DEBUG").count();
    assert_eq!(debugged(), 0);
    world.felix("logSeverityScreen: Debug");
    eventually("more is logged", || debugged() > 0);
    world.felix("logSeverityScreen: Error");
    eventually("the setting is in force", || setting(&world, "logSeverityScreen")["value"] == "Error");
    // Requests in progress during the change may still be logged.
    eventually("nothing more is logged", || {
        let before = world.log().len();
        let pod = world.container();
        world.must("ADD", "loud", &pod.path(), &world.config());
        world.must("DEL", "loud", &pod.path(), &world.config());
        world.log().len() == before
    });
}

#[test]
fn bgp_has_its_own_severity() {
    let world = NodeFixture::new();
    world.await_status();
    let configure = |severity: &str| {
        let object = format!(
            "{{kind: BGPConfiguration, apiVersion: projectcalico.org/v3, metadata: {{name: default}}, \
             spec: {{logSeverityScreen: {severity}, asNumber: {}}}}}",
            if severity == "Debug" { 64600 } else { 64601 }
        );
        world.calicoctl(&["apply", "-f", "-"], &object);
    };
    // A peer that does not exist: every connection attempt is logged at the severity debug.
    let peer = "{kind: BGPPeer, apiVersion: projectcalico.org/v3, metadata: {name: gone}, \
                spec: {peerIP: 172.30.0.77, asNumber: 65001}}";
    world.calicoctl(&["apply", "-f", "-"], peer);
    let debugged = |module: &str| {
        let log = world.log();
        log.lines().filter(|line| line.contains("DEBUG") && line.contains(module)).count()
    };
    assert_eq!(debugged("tortie"), 0, "{}", world.log());
    configure("Debug");
    eventually("more is logged about BGP", || debugged("tortie_bgp") > 0);
    let pod = world.container();
    world.must("ADD", "quiet", &pod.path(), &world.config());
    assert_eq!(debugged("tortie"), debugged("tortie_bgp") + debugged("tortie_node::bgp"), "{}", world.log());
    configure("Error");
    eventually("the setting is in force", || {
        let before = debugged("tortie_bgp");
        std::thread::sleep(std::time::Duration::from_secs(3));
        debugged("tortie_bgp") == before
    });
    world.must("DEL", "quiet", &pod.path(), &world.config());
}

#[test]
fn debug_pages_are_served_where_the_settings_say() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    world.start(&[]);
    let get = |path: &str| {
        let url = format!("http://127.0.0.1:6061{path}");
        let output = world.host.try_exec(&["curl", "-s", &url]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(get("/debug"), "", "nobody has asked for it");
    world.felix("debugPort: 6061");
    eventually("there are pages", || get("/debug").contains("/debug/memory"));
    assert!(get("/debug/memory").contains("VmRSS:"), "{}", get("/debug/memory"));
    assert!(get("/debug/tasks").contains("felix_int_dataplane_apply_time_seconds_count"));
    let profile = get("/debug/profile?seconds=1");
    assert!(profile.contains("observers"), "every thread is named\n{profile}");
    assert!(get("/debug/profile?seconds=3600").contains("is not a number between 1 and 60"));
    // Served only on loopback unless debugHost is set.
    let elsewhere = world.host.try_exec(&["curl", "-s", "-m", "1", "http://172.30.0.1:6061/debug"]);
    assert!(!elsewhere.status.success());
    world.felix("debugHost: 172.30.0.1, debugPort: 6061");
    eventually("they are where the settings say", || {
        world.host.try_exec(&["curl", "-s", "-m", "1", "http://172.30.0.1:6061/debug"]).status.success()
    });
    world.felix("logPrefix: other");
    eventually("nothing is served any more", || {
        !world.host.try_exec(&["curl", "-s", "-m", "1", "http://172.30.0.1:6061/debug"]).status.success()
    });
}

#[test]
fn a_mask_with_too_few_bits_is_rejected() {
    let world = NodeFixture::new();
    let marks = || world.host.exec("nft list chain inet tortie forward-allowed");
    assert!(marks().contains("0x00010000"), "{}", marks());
    world.felix("iptablesMarkMask: 240");
    eventually("the lowest bits of the mask are used", || marks().contains("0x00000010"));
    world.felix("iptablesMarkMask: 240, nftablesMarkMask: 3840");
    eventually("that of nftables counts", || marks().contains("0x00000100"));
    // Two bits are enough for policy, but not with WireGuard.
    world.felix("nftablesMarkMask: 3, wireguardEnabled: true");
    let named =
        "nftablesMarkMask (FelixConfiguration default): 0x3 has 2 bits and policy needs 3, one for WireGuard";
    eventually("it is named", || world.log().contains(named));
    assert!(marks().contains("0x00000100"), "{}", marks());
}

/// Creates a directory that becomes /dev for the node only, with a syslog socket of this test.
fn with_syslog(world: &NodeFixture) -> (UnixDatagram, String) {
    let dev = world.path("dev").display().to_string();
    std::fs::create_dir_all(&dev).unwrap();
    let daemon = UnixDatagram::bind(format!("{dev}/log")).unwrap();
    daemon.set_nonblocking(true).unwrap();
    let script = format!(
        "cp -a /dev/null /dev/urandom /dev/random /dev/zero {dev}/ && mount --bind {dev} /dev && exec \"$0\" \"$@\""
    );
    (daemon, script)
}

#[test]
fn files_and_syslog_have_their_own_severity() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let (daemon, script) = with_syslog(&world);
    world.start_by(&["sh", "-c", &script], &[("FELIX_LOGSEVERITYSCREEN", "error")]);
    let received = std::cell::RefCell::new(String::new());
    let syslog = || {
        let mut message = [0; 9000];
        while let Ok(length) = daemon.recv(&mut message) {
            *received.borrow_mut() += &format!("{}\n", String::from_utf8_lossy(&message[..length]));
        }
        received.borrow().clone()
    };
    let path = |name: &str| world.path(name).display().to_string();
    let (first, second) = (path("logs/deep/node.log"), path("second.log"));
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    // ADD and DEL write log lines, including debug lines.
    let make_noise = || {
        let pod = world.container();
        world.must("ADD", "noise", &pod.path(), &world.config());
        world.must("DEL", "noise", &pod.path(), &world.config());
    };
    make_noise();
    assert_eq!(syslog(), "", "nobody has asked for it");

    world.felix(&format!("logFilePath: {first}, logSeverityFile: Debug"));
    eventually("the file is written", || {
        make_noise();
        read(&first).contains("DEBUG")
    });
    assert!(!world.log().contains("DEBUG"), "standard error has its own severity\n{}", world.log());
    assert_eq!(syslog(), "");

    world.felix(&format!("logFilePath: {second}, logSeverityFile: Debug, logDebugFilenameRegex: /nowhere/, logSeveritySys: Debug"));
    eventually("the log has moved, and syslog has it", || {
        make_noise();
        !read(&second).is_empty() && syslog().contains("<30>tortie[")
    });
    let before = read(&first);
    make_noise();
    assert_eq!(read(&first), before, "the old file is left alone");
    // Lines that were in progress when the settings changed may still arrive.
    eventually("of what is for debugging nothing is added", || {
        let (file, messages) = (read(&second).len(), syslog().len());
        make_noise();
        !read(&second)[file..].contains("DEBUG") && !syslog()[messages..].contains("<31>")
    });

    // A file that cannot be written is reported by name, and the previous file stays in use.
    world.felix("logFilePath: /proc/no/such.log");
    let named = "logFilePath: \"/proc/no/such.log\" cannot be written";
    eventually("the health page names it", || {
        let health = Command::new(TORTIE).args(["health", "--run-dir", &path("run")]).output().unwrap();
        String::from_utf8_lossy(&health.stdout).contains(named)
    });
}

#[test]
fn missing_flow_tables_are_reported_and_tolerated() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let faults = world.dir.path().join("faults");
    std::fs::write(&faults, "table inet tortie-flows").unwrap();
    world.start(&[("TORTIE_FAULTS", faults.to_str().unwrap())]);
    // In the node's own FelixConfiguration, which takes precedence over the cluster's.
    let set = |offload: &str| {
        let head = "apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: node.n1}";
        let object = format!("{{{head}, spec: {{nftablesFlowTableOffload: {offload}}}}}");
        world.calicoctl(&["apply", "-f", "-"], &object);
    };
    set("All");
    let run = world.path("run").display().to_string();
    let (one, two) = (world.container(), world.container());
    world.must("ADD", "c1", &one.path(), &world.config());
    let to = world.must("ADD", "c2", &two.path(), &world.config()).addresses();
    eventually("the health page names it", || {
        let health = Command::new(TORTIE).args(["health", "--run-dir", &run]).output().unwrap();
        String::from_utf8_lossy(&health.stdout).contains("table inet tortie-flows")
    });
    let said = "the kernel refuses the flow table; connections take the usual way";
    assert_eq!(world.log().matches(said).count(), 1, "{}", world.log());
    assert!(to.iter().all(|address| one.pings(address)), "{}", world.log());
    set("Disabled");
    eventually("nobody misses it", || {
        let health = Command::new(TORTIE).args(["health", "--run-dir", &run]).output().unwrap();
        !String::from_utf8_lossy(&health.stdout).contains("tortie-flows")
    });
}
