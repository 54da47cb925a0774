//! Policy over SCTP: what `tortie explain` says of an association is what becomes of it.

use crate::world::{TORTIE, World, eventually};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, listen, socket,
};
use serde_json::json;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};
use tortie_dataplane::Netns;
use tortie_testkit::{Namespace, guest_test};

const PORTS: [u16; 3] = [9000, 9001, 9002];

fn open(namespace: &Namespace, v6: bool) -> OwnedFd {
    let family = if v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let open = move || {
        socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp)
    };
    Netns::open(namespace.path()).unwrap().run(open).unwrap().unwrap()
}

fn listener(namespace: &Namespace, address: &str, port: u16) -> OwnedFd {
    let at = SockaddrStorage::from(SocketAddr::new(address.parse().unwrap(), port));
    let fd = open(namespace, address.contains(':'));
    bind(fd.as_raw_fd(), &at).unwrap();
    listen(&fd, Backlog::new(8).unwrap()).unwrap();
    fd
}

/// Whether an association comes to be. Not much patience where the answer is no.
fn associates(from: &Namespace, address: &str, port: u16, patience: Duration) -> bool {
    let to = SockaddrStorage::from(SocketAddr::new(address.parse().unwrap(), port));
    let fd = open(from, address.contains(':'));
    let deadline = Instant::now() + patience;
    loop {
        match connect(fd.as_raw_fd(), &to) {
            Ok(()) | Err(Errno::EISCONN) => return true,
            Err(Errno::EINPROGRESS | Errno::EALREADY) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(_) => return false,
        }
    }
}

fn explained(world: &World, from: &str, to: &str, port: u16) -> bool {
    let traffic = format!("sctp/{port}");
    let mut command = Command::new(TORTIE);
    command.args(["explain", "--from", from, "--to", to, "--port", &traffic]);
    let output = command.env("ETCD_ENDPOINTS", world.socket()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("ALLOWED") || text.starts_with("DENIED"), "{output:?}");
    text.starts_with("ALLOWED")
}

fn policy(rules: serde_json::Value) -> String {
    json!({
        "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "guard"},
        "spec": {"selector": "guarded == 'yes'", "types": ["Ingress"], "ingress": rules},
    })
    .to_string()
}

guest_test!(
    crate::machine,
    fn associations_are_what_policy_says() {
        let world = World::new();
        let (one, two) = (world.container(), world.container());
        let mut guarded = world.config();
        guarded["tortie_labels"] = json!({"guarded": "yes"});
        let from = world.must("ADD", "c1", &one.path(), &world.config()).addresses();
        let to = world.must("ADD", "c2", &two.path(), &guarded).addresses();
        let _listeners: Vec<OwnedFd> =
            to.iter().flat_map(|address| PORTS.map(|port| listener(&two, address, port))).collect();
        let cases = [
            json!([{"action": "Allow", "protocol": "SCTP", "destination": {"ports": [9000]}}]),
            json!([{"action": "Deny", "protocol": "SCTP", "destination": {"ports": ["9001:9002"]}}, {"action": "Allow"}]),
            json!([{"action": "Allow", "protocol": "TCP"}]),
            json!([{"action": "Allow", "notProtocol": "UDP", "source": {"nets": [format!("{}/32", from[0])]}}]),
            json!([{"action": "Allow", "protocol": 132}]),
        ];
        for rules in cases {
            world.calicoctl(&["apply", "-f", "-"], &policy(rules.clone()));
            for (source, destination) in from.iter().zip(&to) {
                for port in PORTS {
                    let allowed = explained(&world, source, destination, port);
                    eventually(&format!("{destination}:{port} is allowed: {allowed}, by {rules}"), || {
                        let patience = Duration::from_secs(if allowed { 20 } else { 2 });
                        associates(&one, destination, port, patience) == allowed
                    });
                }
            }
        }
    }
);
