//! Measures reflection of one client's routes to the other clients, until the last client has the last route.

use super::config::{Neighbour, Role, Setup};
use super::daemon::{Daemon, Kind};
use super::feed::Routes;
use super::place::{Place, peer};
use super::report::{Effort, ROUNDS, Report, Start, in_turn};
use super::session::{LONG_HOLD, Peer};
use crate::namespace::Result;
use std::sync::Arc;

/// Numbers of routes and clients.
const SIZES: [(usize, usize); 3] = [(10_000, 5), (10_000, 50), (100_000, 50)];
const FEEDER: usize = 1;

pub fn measure() -> Result<()> {
    let mut report = Report::default();
    let mut first = None;
    for (routes, clients) in SIZES {
        let feed = Arc::new(Routes::from_the_start(routes).announced_by(peer(FEEDER)));
        let once = |kind| {
            let feed = feed.clone();
            Place::measure(move |place| async move { reflect(kind, routes, clients, feed, &place).await })
        };
        let taken = in_turn(&Kind::ALL, ROUNDS, once, |effort: &Effort| effort.time)?;
        report.effort(&format!("{routes} routes to {clients} clients"), &taken, &mut first);
    }
    report.print("Routes of one client reflected to others, until the last client has the last route");
    Ok(())
}

async fn reflect(
    kind: Kind,
    routes: usize,
    clients: usize,
    feed: Arc<Vec<u8>>,
    place: &Place,
) -> Result<Option<Effort>> {
    let numbers = FEEDER..=FEEDER + clients;
    let neighbours = numbers.map(|number| Neighbour { address: peer(number), role: Role::Client });
    let setup = Setup { peers: neighbours.collect(), ..Setup::default() };
    let daemon = Daemon::start(kind, &setup, place).await?;
    let mut peers = Vec::new();
    for neighbour in &setup.peers {
        peers.push(Peer::connect(neighbour.address, LONG_HOLD).await?);
    }
    let feeder = peers.remove(0);
    daemon.rest().await?;
    let start = Start::now(&daemon)?;
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
