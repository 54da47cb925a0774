//! Policy for SCTP: the verdict of `tortie explain` equals the outcome of an association.

use crate::world::{NodeFixture, TORTIE};
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
use tortie_testkit::{TestNamespace, eventually_showing, guest_test};

const SCTP_PORTS: [u16; 2] = [9000, 9001];
const ASSOCIATION_TIMEOUT: Duration = Duration::from_secs(1);

/// Destination address, port, and whether it is allowed.
type SctpAttempt<'t> = (&'t String, u16, bool);

fn open(namespace: &TestNamespace, v6: bool) -> OwnedFd {
    let family = if v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let open = move || {
        socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp)
    };
    Netns::open(namespace.path()).unwrap().run(open).unwrap().unwrap()
}

fn listener(namespace: &TestNamespace, address: &str, port: u16) -> OwnedFd {
    let at = SockaddrStorage::from(SocketAddr::new(address.parse().unwrap(), port));
    let fd = open(namespace, address.contains(':'));
    bind(fd.as_raw_fd(), &at).unwrap();
    listen(&fd, Backlog::new(8).unwrap()).unwrap();
    fd
}

/// Returns whether an association is established. A denied one never answers, so the timeout is short.
fn associates(from: &TestNamespace, address: &str, port: u16) -> bool {
    let to = SockaddrStorage::from(SocketAddr::new(address.parse().unwrap(), port));
    let fd = open(from, address.contains(':'));
    let deadline = Instant::now() + ASSOCIATION_TIMEOUT;
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

/// Returns the attempts whose outcome differs from the expected one. All are made in parallel.
fn wrong<'t>(from: &TestNamespace, talks: &[SctpAttempt<'t>]) -> Vec<SctpAttempt<'t>> {
    std::thread::scope(|scope| {
        let start = |talk: &SctpAttempt<'t>| {
            let (address, port, allowed) = *talk;
            scope.spawn(move || {
                (associates(from, address, port) != allowed).then_some((address, port, allowed))
            })
        };
        let attempts: Vec<_> = talks.iter().map(start).collect();
        attempts.into_iter().filter_map(|attempt| attempt.join().unwrap()).collect()
    })
}

fn explained(world: &NodeFixture, from: &str, to: &str, port: u16) -> bool {
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
        let world = NodeFixture::new();
        let (one, two) = (world.container(), world.container());
        let mut guarded = world.config();
        guarded["tortie_labels"] = json!({"guarded": "yes"});
        let from = world.must("ADD", "c1", &one.path(), &world.config()).addresses();
        let to = world.must("ADD", "c2", &two.path(), &guarded).addresses();
        let _listeners: Vec<OwnedFd> =
            to.iter().flat_map(|address| SCTP_PORTS.map(|port| listener(&two, address, port))).collect();
        let cases = [
            json!([{"action": "Allow", "protocol": "SCTP", "destination": {"ports": [9000]}}]),
            json!([
                {"action": "Deny", "protocol": 132, "destination": {"ports": ["9001:9002"]}},
                {"action": "Allow", "source": {"nets": [format!("{}/32", from[0])]}},
            ]),
            json!([{"action": "Allow", "protocol": "TCP"}]),
        ];
        for rules in cases {
            world.calicoctl(&["apply", "-f", "-"], &policy(rules.clone()));
            let mut talks = Vec::new();
            for (source, destination) in from.iter().zip(&to) {
                talks.extend(
                    SCTP_PORTS.map(|port| (destination, port, explained(&world, source, destination, port))),
                );
            }
            let wrong = || wrong(&one, &talks);
            eventually_showing(
                &format!("what is allowed is as explained, by {rules}"),
                || wrong().is_empty(),
                || format!("{:?}", wrong()),
            );
        }
    }
);
