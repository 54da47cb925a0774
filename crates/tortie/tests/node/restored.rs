//! The datastore is restored to an earlier state while containers exist that it does not know.

use crate::world::{NodeFixture, TORTIE, eventually};
use serde_json::json;
use std::process::{Command, Stdio};
use tortie_testkit::TestProcess;

const ENDPOINT_KEYS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/";

/// Deletes the addresses, blocks and endpoints that an older backup would not contain.
fn forget(world: &NodeFixture) {
    for prefix in ["/calico/ipam/v2/", ENDPOINT_KEYS] {
        world.etcdctl(&["del", "--prefix", prefix]);
    }
}

fn reaches(world: &NodeFixture, address: &str) -> bool {
    world.host.try_exec(&["ping", "-n", "-c", "1", "-W", "10", address]).status.success()
}

fn endpoints(world: &NodeFixture) -> usize {
    world.stored("--keys-only").lines().filter(|key| key.contains("/workloadendpoints/")).count()
}

#[test]
fn addresses_of_live_containers_are_not_reassigned() {
    let mut world = NodeFixture::new();
    let (old, new) = (world.container(), world.container());
    let first = world.must("ADD", "old", &old.path(), &world.config()).addresses();
    world.stop();
    forget(&world);
    world.start(&[]);
    // The node restores its live attachments in the datastore before it accepts the first request.
    assert_eq!(endpoints(&world), 1, "{}", world.log());
    let second = world.must("ADD", "new", &new.path(), &world.config()).addresses();
    assert!(second.iter().all(|address| !first.contains(address)), "{first:?} {second:?}");
    for address in first.iter().chain(&second) {
        assert!(reaches(&world, address), "{address} is not reached\n{}", world.log());
    }
    let check = world.calicoctl(&["ipam", "check"], "");
    assert!(check.contains("found 0 problems"), "{check}");
    world.must("DEL", "old", &old.path(), &world.config());
    world.must("DEL", "new", &new.path(), &world.config());
    world.assert_clean("the end of both");
}

#[test]
fn a_running_node_rewrites_lost_entries() {
    let world = NodeFixture::new();
    let netns = world.container();
    let addresses = world.must("ADD", "c1", &netns.path(), &world.config()).addresses();
    forget(&world);
    eventually("the endpoint and the addresses are back", || {
        let values = world.stored("--print-value-only");
        endpoints(&world) == 1 && values.contains("\"handle_id\":\"net.c1\"")
    });
    for address in &addresses {
        assert!(reaches(&world, address), "{address} is not reached\n{}", world.log());
    }
    world.must("DEL", "c1", &netns.path(), &world.config());
    world.assert_clean("its removal");
}

/// The datastore has assigned the address of a live container to another holder.
#[test]
fn two_holders_of_an_address_are_reported() {
    let mut world = NodeFixture::new();
    let netns = world.container();
    let addresses = world.must("ADD", "c1", &netns.path(), &world.config()).addresses();
    let address = addresses.iter().find(|address| !address.contains(':')).unwrap();
    world.stop();
    // As if another node had been assigned it while this one was down.
    let keys = world.stored("--keys-only");
    let block = keys.lines().find(|key| key.contains("/assignment/ipv4/block/")).unwrap();
    let value = world.stored_at(block).replace("net.c1", "net.other");
    world.etcdctl(&["put", block, &value]);
    let handle = world.stored_at("/calico/ipam/v2/handle/net.c1");
    world.etcdctl(&["put", "/calico/ipam/v2/handle/net.other", &handle]);
    world.start(&[("FELIX_PROMETHEUSMETRICSENABLED", "true")]);
    eventually("the metric counts it", || {
        let page = world.host.try_exec("curl -s -m 20 http://127.0.0.1:9091/metrics");
        String::from_utf8_lossy(&page.stdout).contains("tortie_address_conflicts 1")
    });
    let health = Command::new(TORTIE).arg("health").arg("--run-dir").arg(world.path("run")).output().unwrap();
    let health = String::from_utf8_lossy(&health.stdout);
    assert!(health.contains("addresses: ") && health.contains("net.other"), "{health}");
    let state = world.dir.path().join("state").display().to_string();
    let check = world.calicoctl(&["ipam", "check", "--state-dir", &state], "");
    assert!(check.contains("Found 1 IPs with more than one live holder."), "{check}");
    assert!(
        check.contains(&format!("{address} is held by Attachment(c1) and by Handle(net.other)")),
        "{check}"
    );
    assert!(world.log().contains("net.other"), "the log names the other holder: {}", world.log());
    let report = world.dir.path().join("report.json").display().to_string();
    world.calicoctl(&["ipam", "check", "--state-dir", &state, "-o", &report], "");
    let released =
        world.calicoctl(&["ipam", "release", "--force", "--state-dir", &state, "--from-report", &report], "");
    assert!(released.contains("Released 0 IPs"), "{released}");
    assert!(reaches(&world, address), "{}", world.log());
}

/// A datastore that is empty all of a sudden, as after the restoration of the wrong backup, when the node starts.
#[test]
fn a_restarted_node_distrusts_an_emptied_datastore() {
    let mut world = NodeFixture::new();
    let (client, web) = (world.container(), world.container());
    let mut labelled = world.config();
    labelled["tortie_labels"] = json!({"role": "web"});
    world.must("ADD", "client", &client.path(), &world.config());
    let addresses = world.must("ADD", "web", &web.path(), &labelled).addresses();
    let policy = json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "closed"},
        "spec": {"selector": "role == 'web'", "types": ["Ingress"]}});
    world.calicoctl(&["apply", "-f", "-"], &policy.to_string());
    let is_closed = |address: &String| !client.reaches(address);
    eventually("the policy is in force", || addresses.iter().all(is_closed));
    // A node that becomes ready saves the numbers of objects that it knows.
    world.start(&[]);
    let counts = || std::fs::read_to_string(world.path("state/known-objects.json")).unwrap_or_default();
    eventually("the policy is counted", || counts().contains("\"GlobalNetworkPolicy\":1"));
    world.stop();
    let policy_key = "/calico/resources/v3/projectcalico.org/globalnetworkpolicies/closed";
    let stored = world.stored_at(policy_key);
    assert!(stored.contains("role == 'web'"), "{}", world.stored("--keys-only"));
    world.etcdctl(&["del", policy_key]);
    world.etcdctl(&["del", "--prefix", ENDPOINT_KEYS]);

    let mut command = world.command(&[], &[("TORTIE_ABSENCE_GRACE_SECONDS", "600")]);
    let log = std::fs::File::options().append(true).open(world.path("node.log")).unwrap();
    let _node = TestProcess::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log));
    eventually("the node reports the loss", || world.log().contains("1 of 1 GlobalNetworkPolicy"));
    assert!(addresses.iter().all(is_closed), "{}", world.log());
    world.etcdctl(&["put", policy_key, &stored]);
    world.await_status();
    assert!(addresses.iter().all(is_closed), "{}", world.log());
}
