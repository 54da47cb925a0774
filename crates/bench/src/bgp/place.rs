//! Network of a measurement: one host for the speaker, one for all peers, a veth pair between them.

use crate::namespace::{self, BenchResult, NamespaceGroup, check};
use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;

pub const BENCH_ASN: u32 = 64512;
pub const SPEAKER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);

/// Returns the address of a peer, counted from 1. All of them are local to the peers' host.
pub fn peer(number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 99, 0, 0).to_bits() + number as u32)
}

/// The two hosts. Every measurement creates new ones.
#[derive(Clone)]
pub struct BgpHosts(pub Arc<NamespaceGroup>);

impl BgpHosts {
    /// Creates the hosts and runs a measurement in the namespace of the peers' host.
    pub fn measure<T: Send + 'static, F: Future<Output = BenchResult<T>>>(
        work: impl FnOnce(BgpHosts) -> F + Send + 'static,
    ) -> BenchResult<T> {
        check()?;
        let place = BgpHosts(Arc::new(NamespaceGroup::new(2)?));
        let wire = format!("link add eth0 type veth peer name eth0 netns {}", place.0.name(1));
        let speaker = [
            "link set lo up",
            &wire,
            &format!("addr add {SPEAKER_ADDRESS}/15 dev eth0"),
            "link set eth0 up",
            "route add default via 10.98.0.2",
        ];
        let peers = [
            "link set lo up",
            "addr add 10.98.0.2/15 dev eth0",
            "link set eth0 up",
            "route add local 10.99.0.0/16 dev lo",
        ];
        namespace::ip(Some(place.0.name(0)), &speaker[..3])?;
        namespace::ip(Some(place.0.name(1)), peers)?;
        namespace::ip(Some(place.0.name(0)), &speaker[3..])?;
        // Threads and processes inherit the namespace of the thread that starts them.
        let measurement = std::thread::spawn(move || {
            namespace::enter(&place.0.path(1))?;
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(work(place))
        });
        measurement.join().map_err(|_| "the measurement ended badly")?
    }

    /// Returns the name of the speaker's host.
    pub fn host(&self) -> &str {
        self.0.name(0)
    }
}
