//! What a node's settings are, and where they come from, is shown; what has no effect is not silent.

use crate::world::{TORTIE, World, eventually};
use serde_json::Value;
use std::process::Command;

fn settings(world: &World, args: &[&str]) -> String {
    let run_dir = world.path("run");
    let output =
        Command::new(TORTIE).arg("settings").args(args).arg("--run-dir").arg(run_dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn setting(world: &World, name: &str) -> Value {
    let all: Value = serde_json::from_str(&settings(world, &["--all", "-o", "json"])).unwrap();
    all.as_array().unwrap().iter().find(|setting| setting["name"] == name).unwrap().clone()
}

#[test]
fn every_setting_has_a_value_and_a_source() {
    let mut world = World::without_node("10.77.0.0/24");
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

    // Once in the log, and on the health page as long as it is so.
    let idle = "bpfEnabled (environment): true has no effect here: there is no eBPF dataplane";
    let loosened = "node.n1 says Return and so opens this host";
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
fn the_log_begins_at_the_severity_that_is_set() {
    let world = World::new();
    let debugged = || world.log().matches("DEBUG").count();
    assert_eq!(debugged(), 0);
    world.felix("logSeverityScreen: Debug");
    eventually("more is logged", || debugged() > 0);
    world.felix("logSeverityScreen: Error");
    eventually("the setting is in force", || setting(&world, "logSeverityScreen")["value"] == "Error");
    // What was under way when it changed may still be logged.
    eventually("nothing more is logged", || {
        let before = world.log().len();
        let pod = world.container();
        world.must("ADD", "loud", &pod.path(), &world.config());
        world.must("DEL", "loud", &pod.path(), &world.config());
        world.log().len() == before
    });
}
