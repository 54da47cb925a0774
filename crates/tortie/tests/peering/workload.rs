//! A workload that peers with its own node: BIRD in the namespace of a container, as in a virtual machine.
//!
//! ```text
//! 10.99.0.1 -- container, AS 65010, BIRD ---- 169.254.77.1 and fd00:77::1 on its link, the node, AS 64512
//! ```

use crate::world::PeeringFixture;
use serde_json::json;
use std::path::Path;
use tortie_testkit::{TestProcess, eventually_showing};

const NODE_PEERING_ADDRESSES: [&str; 2] = ["169.254.77.1", "fd00:77::1"];
const BEHIND_ADDRESSES: [&str; 2] = ["10.99.0.1", "fd99::1"];

fn configuration(own: &[String], log: &Path) -> String {
    let mut text = format!("log \"{}\" all;\nrouter id 1.2.3.4;\nprotocol device {{}}\n", log.display());
    for (v6, channel) in [(false, "ipv4"), (true, "ipv6")] {
        let (own, node) = (&own[usize::from(v6)], NODE_PEERING_ADDRESSES[usize::from(v6)]);
        let net = if v6 { "fd99::/64" } else { "10.99.0.0/24" };
        text += &format!(
            "protocol static own_{channel} {{ {channel}; route {net} blackhole; }}
            protocol bgp node_{channel} {{
              local {own} as 65010; neighbor {node} as 64512; multihop; connect delay time 1; connect retry time 1;
              error wait time 1, 2; {channel} {{ import all; export where source = RTS_STATIC; }};
            }}\n"
        );
    }
    text
}

#[test]
fn a_selected_workload_peers_with_its_node() {
    let mut world = PeeringFixture::new();
    let pools = ["default-ipv4-ippool", "default-ipv6-ippool"];
    let addresses = world.pod("router", pools);
    let other = world.pod("other", pools);
    let pod = world.container(0);
    for (address, length) in BEHIND_ADDRESSES.into_iter().zip([32, 128]) {
        pod.ip(&format!("addr add {address}/{length} dev lo"));
    }
    world.apply("FelixConfiguration", "default", &json!({"defaultEndpointToHostAction": "Accept"}));
    let peering = json!({"localWorkloadPeeringIPV4": NODE_PEERING_ADDRESSES[0], "localWorkloadPeeringIPV6": NODE_PEERING_ADDRESSES[1]});
    world.apply("BGPConfiguration", "default", &peering);
    // Selects the label of the profile that all containers of the network have.
    world.apply("BGPPeer", "workloads", &json!({"localWorkloadSelector": "has(net)", "asNumber": 65010}));

    let dir = tempfile::tempdir().unwrap();
    let [config, socket, log] = ["bird.conf", "bird.ctl", "bird.log"].map(|name| dir.path().join(name));
    std::fs::write(&config, configuration(&addresses, &log)).unwrap();
    let mut command = pod.command("bird");
    command.arg("-f").arg("-c").arg(&config).arg("-s").arg(&socket);
    let _bird = TestProcess::quiet(&mut command);
    let birdc = |command: &str| {
        let output = pod.command("birdc").arg("-s").arg(&socket).arg(command).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let logged = || std::fs::read_to_string(&log).unwrap_or_default();
    let picture = || {
        let seen = [world.host.ip("addr"), birdc("show protocols all"), logged(), world.picture()];
        seen.join("\n")
    };
    for (own, address) in addresses.iter().zip(BEHIND_ADDRESSES) {
        let up = || world.session(own)["state"] == "Established";
        eventually_showing(&format!("the session with {own} is up"), up, picture);
        let name = world.session(own)["name"].clone();
        assert_eq!(name, format!("Local_Workload_{}", own.replace(['.', ':'], "_")));
        let v6 = address.contains(':');
        let learnt = || world.kernel(v6).contains(&format!("via {own} dev cali"));
        eventually_showing("what it announces is routed to it", learnt, picture);
        let heard = || birdc(&format!("show route protocol node_{}", if v6 { "ipv6" } else { "ipv4" }));
        let block = if v6 { "fd77::" } else { "10.77.0." };
        eventually_showing("it hears of the blocks of the node", || heard().contains(block), picture);
        let answers = || world.host.command("ping").args(["-c1", "-W1", address]).output().unwrap().status;
        eventually_showing("what is behind it answers", || answers().success(), picture);
    }
    assert!(world.session(&other[0])["name"].is_string(), "both have the label\n{}", picture());
    let files = std::fs::read_dir(world.path("run/endpoint-status")).unwrap().filter_map(Result::ok);
    let texts: Vec<String> = files.map(|file| std::fs::read_to_string(file.path()).unwrap()).collect();
    assert!(texts.iter().all(|text| text.contains(r#""bgpPeerName":"workloads""#)), "{texts:?}");

    world.calicoctl(&["delete", "bgppeer", "workloads"], "");
    let gone = || {
        let routes = [false, true].map(|v6| world.kernel(v6)).concat();
        !world.host.ip("addr").contains(NODE_PEERING_ADDRESSES[0])
            && !world.host.ip("addr").contains(NODE_PEERING_ADDRESSES[1])
            && !routes.contains(" dev cali")
    };
    eventually_showing("nothing is left of it", gone, picture);
    // Both sessions received a NOTIFICATION, sent from the addresses that have been removed since.
    for channel in ["ipv4", "ipv6"] {
        let notified = || logged().contains(&format!("node_{channel}: Received: Peer de-configured"));
        eventually_showing(
            &format!("the {channel} session was ended with a NOTIFICATION"),
            notified,
            picture,
        );
    }
    assert!(!world.session(&addresses[0])["name"].is_string(), "{}", picture());
}
