//! Continuous packets from pod one to pod two, to a port that is always open and to one that is always closed.
//! Packets that pass all chains are counted and dropped, so that each packet is the first of its flow.

use crate::namespace::{TestNamespace, eventually};
use crate::packets;
use crate::world::{RawSockets, raw};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tortie_plan::evaluate::Packet;

pub const OPEN_PORT: u16 = 1000;
pub const CLOSED_PORT: u16 = 2000;

const PROBE_TABLE: &str = "table inet probe {
    counter open_in { }
    counter open_out { }
    counter closed_in { }
    counter closed_out { }
    chain enter {
        type filter hook prerouting priority -400;
        udp dport 1000 counter name open_in
        udp dport 2000 counter name closed_in
    }
    chain leave {
        type filter hook forward priority 100;
        udp dport 1000 counter name open_out drop
        udp dport 2000 counter name closed_out drop
    }
}";

pub struct PacketFlood {
    stop: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug)]
pub struct FloodCounters {
    pub open_in: u64,
    pub open_out: u64,
    pub closed_in: u64,
    pub closed_out: u64,
}

impl PacketFlood {
    /// Starts sending; packets are lost until the sender has a route.
    pub fn start(node: &TestNamespace, from: &TestNamespace) -> PacketFlood {
        node.nft(PROBE_TABLE);
        node.exec(&["sysctl", "-qw", "net.netfilter.nf_conntrack_checksum=0"]);
        let stop = Arc::new(AtomicBool::new(false));
        let (sockets, stopped) = (raw(from), stop.clone());
        let sender = std::thread::spawn(move || send(&sockets, &stopped));
        PacketFlood { stop, sender: Some(sender) }
    }

    /// Stops sending and waits until every admitted packet is counted, for at most two seconds.
    pub async fn ends(mut self, node: &TestNamespace) -> FloodCounters {
        self.halt();
        for _ in 0..100 {
            let now = counted(node);
            if now.open_in == now.open_out {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        counted(node)
    }

    fn halt(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(sender) = self.sender.take() {
            sender.join().unwrap();
        }
    }
}

impl Drop for PacketFlood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Waits until `more` packets to the closed port have been sent.
pub async fn flows(node: &TestNamespace, more: u64) {
    let before = counted(node).closed_in;
    eventually("packets are sent", || counted(node).closed_in >= before + more).await;
}

pub fn counted(node: &TestNamespace) -> FloodCounters {
    let text = node.exec(&["nft", "-j", "list", "counters", "table", "inet", "probe"]);
    let listing: Value = serde_json::from_str(&text).unwrap();
    let of = |name: &str| {
        let mut counters = listing["nftables"].as_array().unwrap().iter().map(|object| &object["counter"]);
        counters.find(|counter| counter["name"] == name).unwrap()["packets"].as_u64().unwrap()
    };
    FloodCounters {
        open_in: of("open_in"),
        open_out: of("open_out"),
        closed_in: of("closed_in"),
        closed_out: of("closed_out"),
    }
}

fn send(sockets: &RawSockets, stop: &AtomicBool) {
    let pairs = [("10.65.0.2", "10.65.0.3"), ("fd80:65::2", "fd80:65::3")];
    let mut source_port = 0u16;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..20 {
            source_port = source_port.wrapping_add(1).max(1024);
            for (source, destination) in pairs {
                for destination_port in [OPEN_PORT, CLOSED_PORT] {
                    let packet = Packet {
                        source: source.parse().unwrap(),
                        destination: destination.parse().unwrap(),
                        protocol: Packet::UDP,
                        source_port,
                        destination_port,
                        icmp: None,
                    };
                    // Fails until the pod has an interface.
                    let _ = sockets.send(&packet, &packets::bytes(&packet, source_port));
                }
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}
