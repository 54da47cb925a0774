//! Tests that need kernel features this machine may not have: IPIP, WireGuard, SCTP, flow tables, VRF. One guest runs
//! all of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;
mod devices;
mod ipip;
mod log_rule;
mod offload;
mod sctp;
mod wireguard;
// Shared with the lab and node tests, which use more of it.
#[path = "../lab/capture.rs"]
mod capture;
#[allow(dead_code)]
#[path = "../lab/lab.rs"]
mod lab;
#[allow(dead_code)]
#[path = "../lab/pinger.rs"]
mod pinger;
#[path = "../lab/stream.rs"]
mod stream;
#[allow(dead_code)]
#[path = "../node/world.rs"]
mod world;

use std::path::Path;
use tortie_testkit::vm::GuestMachine;

/// Kernel modules that the tests need; their dependencies are added.
const KERNEL_MODULES: [&str; 27] = [
    "bridge",
    "dummy",
    "hmac",
    "ipip",
    "nf_conntrack_netlink",
    "nf_log_syslog",
    "nfnetlink_log",
    "nf_tables",
    "nft_chain_nat",
    "nft_ct",
    "nft_fib_inet",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_flow_offload",
    "nf_flow_table_inet",
    "nft_limit",
    "nft_log",
    "nft_masq",
    "nft_nat",
    "nft_reject_inet",
    "sctp",
    "sha1_generic",
    "veth",
    "vrf",
    "vxlan",
    "wireguard",
    "crc32c_generic",
];

fn machine() -> GuestMachine {
    let programs = [world::TORTIE, "bird", "ip", "nft", "ping"];
    GuestMachine {
        sources: Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
        programs: programs.map(str::to_owned).to_vec(),
        modules: KERNEL_MODULES.to_vec(),
    }
}
