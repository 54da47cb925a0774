//! Measures reflection of one client's routes to the other clients, until the last client has the last route.

use super::config::{BenchNeighbour, NeighbourRole, SpeakerSetup};
use super::daemon::{SpeakerKind, SpeakerProcess};
use super::feed::GeneratedRoutes;
use super::place::{BgpHosts, peer};
use super::report::{REPETITIONS, SpeakerReport, WorkCost, WorkStart, in_turn};
use super::session::{BenchPeer, LONG_HOLD};
use crate::namespace::BenchResult;
use std::sync::Arc;

/// Numbers of routes and clients.
const REFLECTION_SIZES: [(usize, usize); 3] = [(10_000, 5), (10_000, 50), (100_000, 50)];
const FEEDER: usize = 1;

pub fn measure() -> BenchResult<()> {
    let mut report = SpeakerReport::default();
    let mut first = None;
    for (routes, clients) in REFLECTION_SIZES {
        let feed = Arc::new(GeneratedRoutes::from_the_start(routes).announced_by(peer(FEEDER)));
        let once = |kind| {
            let feed = feed.clone();
            BgpHosts::measure(move |place| async move { reflect(kind, routes, clients, feed, &place).await })
        };
        let taken = in_turn(&SpeakerKind::ALL, REPETITIONS, once, |effort: &WorkCost| effort.time)?;
        report.effort(&format!("{routes} routes to {clients} clients"), &taken, &mut first);
    }
    report.print("Routes of one client reflected to others, until the last client has the last route");
    Ok(())
}

async fn reflect(
    kind: SpeakerKind,
    routes: usize,
    clients: usize,
    feed: Arc<Vec<u8>>,
    place: &BgpHosts,
) -> BenchResult<Option<WorkCost>> {
    let numbers = FEEDER..=FEEDER + clients;
    let neighbours =
        numbers.map(|number| BenchNeighbour { address: peer(number), role: NeighbourRole::Client });
    let setup = SpeakerSetup { peers: neighbours.collect(), ..SpeakerSetup::default() };
    let daemon = SpeakerProcess::start(kind, &setup, place).await?;
    let mut peers = Vec::new();
    for neighbour in &setup.peers {
        peers.push(BenchPeer::connect(neighbour.address, LONG_HOLD).await?);
    }
    let feeder = peers.remove(0);
    daemon.rest().await?;
    let start = WorkStart::now(&daemon)?;
    let sender = tokio::spawn(async move { feeder.send(&feed).await.map(|()| feeder) });
    for client in &peers {
        if !client.announced(routes, start.deadline()).await {
            sender.abort();
            return Ok(None);
        }
    }
    let effort = start.effort(&daemon)?;
    let _feeder = sender.await??;
    Ok(Some(effort))
}
