//! Renders the configuration of each BGP speaker.

use super::feed::MARKER_PREFIX;
use super::place::{BENCH_ASN, SPEAKER_ADDRESS};
use std::net::Ipv4Addr;

/// Blocks that the speaker originates, if any.
pub const OWN_BLOCKS: [&str; 2] = ["198.51.100.0/26", "198.51.100.64/26"];

/// Configuration common to all speakers. All peers are in the speaker's AS and open the connection; the speaker is
/// passive.
#[derive(Clone, Debug, Default)]
pub struct SpeakerSetup {
    pub peers: Vec<BenchNeighbour>,
    /// Whether the speaker originates `OWN_BLOCKS`.
    pub own: bool,
    /// Whether routes are programmed into the kernel.
    pub kernel: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct BenchNeighbour {
    pub address: Ipv4Addr,
    pub role: NeighbourRole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourRole {
    /// An ordinary iBGP peer.
    Mesh,
    /// A route reflector client of the speaker.
    Client,
    /// A client that receives only the marker route.
    Observer,
}

impl NeighbourRole {
    fn is_client(self) -> bool {
        self != NeighbourRole::Mesh
    }
}

pub fn bird(setup: &SpeakerSetup) -> String {
    let mut config =
        format!("router id {SPEAKER_ADDRESS};\nprotocol device {{}}\nprotocol direct {{ ipv4; }}\n");
    if setup.own {
        let [first, second] = OWN_BLOCKS;
        config +=
            &format!("protocol static {{ ipv4; route {first} blackhole; route {second} blackhole; }}\n");
    }
    if setup.kernel {
        config += "protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }\n";
    }
    for (number, BenchNeighbour { address, role }) in setup.peers.iter().enumerate() {
        let export = match role {
            NeighbourRole::Observer => format!("where net = {MARKER_PREFIX}"),
            NeighbourRole::Client => "all".to_owned(),
            NeighbourRole::Mesh => "where source != RTS_DEVICE".to_owned(),
        };
        let client = if role.is_client() { "rr client;" } else { "" };
        config += &format!(
            "protocol bgp peer{number} {{ local {SPEAKER_ADDRESS} as {BENCH_ASN}; neighbor {address} as {BENCH_ASN}; passive on; {client}
             error wait time 1, 1; ipv4 {{ import all; export {export}; }}; }}\n"
        );
    }
    config
}

pub fn frr(setup: &SpeakerSetup) -> String {
    let mut config =
        format!("router bgp {BENCH_ASN}\n bgp router-id {SPEAKER_ADDRESS}\n no bgp network import-check\n");
    let mut family = " address-family ipv4 unicast\n".to_owned();
    if setup.own {
        family += &OWN_BLOCKS.map(|block| format!("  network {block}\n")).concat();
    }
    for BenchNeighbour { address, role } in &setup.peers {
        config += &format!(" neighbor {address} remote-as {BENCH_ASN}\n neighbor {address} passive\n");
        if role.is_client() {
            family += &format!("  neighbor {address} route-reflector-client\n");
        }
        if *role == NeighbourRole::Observer {
            family += &format!("  neighbor {address} prefix-list marker out\n");
        }
    }
    config + &family + &format!(" exit-address-family\nip prefix-list marker seq 5 permit {MARKER_PREFIX}\n")
}

pub fn gobgp(setup: &SpeakerSetup) -> String {
    let mut config = format!("[global.config]\nas = {BENCH_ASN}\nrouter-id = \"{SPEAKER_ADDRESS}\"\n");
    if setup.peers.iter().any(|peer| peer.role == NeighbourRole::Observer) {
        config += &format!(
            "[global.apply-policy.config]
            export-policy-list = [\"marker\"]
            default-export-policy = \"reject-route\"
            [[defined-sets.prefix-sets]]
            prefix-set-name = \"marker\"
            [[defined-sets.prefix-sets.prefix-list]]
            ip-prefix = \"{MARKER_PREFIX}\"
            [[policy-definitions]]
            name = \"marker\"
            [[policy-definitions.statements]]
            [policy-definitions.statements.conditions.match-prefix-set]
            prefix-set = \"marker\"
            [policy-definitions.statements.actions]
            route-disposition = \"accept-route\"\n"
        );
    }
    for BenchNeighbour { address, role } in &setup.peers {
        config += &format!(
            "[[neighbors]]
            [neighbors.config]
            neighbor-address = \"{address}\"
            peer-as = {BENCH_ASN}
            [neighbors.timers.config]
            idle-hold-time-after-reset = 1
            [neighbors.transport.config]
            passive-mode = true\n"
        );
        if role.is_client() {
            config += &format!(
                "[neighbors.route-reflector.config]
                route-reflector-client = true
                route-reflector-cluster-id = \"{SPEAKER_ADDRESS}\"\n"
            );
        }
    }
    config
}
