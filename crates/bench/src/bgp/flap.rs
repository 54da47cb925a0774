//! Measures a session flap: many peers have each other's routes, and one of them disconnects and reconnects.

use super::config::{BenchNeighbour, NeighbourRole, SpeakerSetup};
use super::daemon::{SpeakerKind, SpeakerProcess};
use super::feed::GeneratedRoutes;
use super::place::{BgpHosts, peer};
use super::report::{MEASUREMENT_TIMEOUT, SpeakerReport, WorkCost, WorkStart, cells, in_turn, seconds};
use super::session::{BenchPeer, LONG_HOLD};
use crate::namespace::BenchResult;
use std::time::{Duration, Instant};

const PEER_COUNTS: [usize; 3] = [2, 20, 200];
const ROUTES_PER_PEER: usize = 500;
/// Number of flaps; the best time counts.
const FLAP_COUNT: usize = 2;

struct FlapTimes {
    /// Until all peers have all routes.
    full: WorkCost,
    /// From the end of the session until all other peers have received the withdrawals.
    gone: Duration,
    /// From the first announcement of the new session until all other peers have received the last route.
    back: Duration,
}

impl FlapTimes {
    fn converged(&self) -> Duration {
        self.gone + self.back
    }
}

pub fn measure() -> BenchResult<()> {
    let mut report = SpeakerReport::default();
    let (mut first, mut first_full) = (None, None);
    for peers in PEER_COUNTS {
        let once = |kind| BgpHosts::measure(move |place| async move { flap(kind, peers, &place).await });
        let taken = in_turn(&SpeakerKind::ALL, 1, once, FlapTimes::converged)?;
        let efforts: Vec<_> = taken.iter().map(|taken| taken.as_ref().map(|taken| taken.full)).collect();
        report.effort(&format!("{peers} peers: all know all"), &efforts, &mut first_full);
        let flap = cells(&taken, |taken| taken.converged().as_secs_f64());
        report.line(&format!("{peers} peers: one flap"), &flap, seconds);
        report.line("- withdrawn", &cells(&taken, |taken| taken.gone.as_secs_f64()), seconds);
        report.line("- announced", &cells(&taken, |taken| taken.back.as_secs_f64()), seconds);
        report.growth("- growth", &flap, first.get_or_insert_with(|| flap.clone()));
    }
    report.print(&format!(
        "Clients with {ROUTES_PER_PEER} routes each; one goes and comes back (without the time that a speaker lets pass between)"
    ));
    Ok(())
}

fn routes(number: usize) -> Vec<u8> {
    let routes = GeneratedRoutes { first: number * ROUTES_PER_PEER, count: ROUTES_PER_PEER, bits: 24 };
    routes.announced_by(peer(number))
}

async fn flap(kind: SpeakerKind, count: usize, place: &BgpHosts) -> BenchResult<Option<FlapTimes>> {
    let neighbours =
        (1..=count).map(|number| BenchNeighbour { address: peer(number), role: NeighbourRole::Client });
    let setup = SpeakerSetup { peers: neighbours.collect(), ..SpeakerSetup::default() };
    let daemon = SpeakerProcess::start(kind, &setup, place).await?;
    let mut others = Vec::new();
    for neighbour in &setup.peers {
        others.push(BenchPeer::connect(neighbour.address, LONG_HOLD).await?);
    }
    let feeds: Vec<Vec<u8>> = (1..=count).map(routes).collect();
    daemon.rest().await?;
    let start = WorkStart::now(&daemon)?;
    for (peer, feed) in others.iter().zip(&feeds) {
        peer.send(feed).await?;
    }
    let known = (count - 1) * ROUTES_PER_PEER;
    for peer in &others {
        if !peer.announced(known, start.deadline()).await {
            return Ok(None);
        }
    }
    let full = start.effort(&daemon)?;
    let (mut restless, feed) = (others.remove(0), routes(1));
    let mut best: Option<FlapTimes> = None;
    for _ in 0..FLAP_COUNT {
        daemon.rest().await?;
        // Some speakers repeat announcements, so only messages from now on count.
        let before: Vec<_> = others.iter().map(BenchPeer::heard).collect();
        let start = Instant::now();
        drop(restless);
        for (peer, (_, withdrawn)) in others.iter().zip(&before) {
            if !peer.withdrawn(withdrawn + ROUTES_PER_PEER, start + MEASUREMENT_TIMEOUT).await {
                return Ok(None);
            }
        }
        let gone = start.elapsed();
        restless = BenchPeer::connect(peer(1), LONG_HOLD).await?;
        daemon.rest().await?;
        let before: Vec<_> = others.iter().map(BenchPeer::heard).collect();
        let start = Instant::now();
        restless.send(&feed).await?;
        for (peer, (announced, _)) in others.iter().zip(&before) {
            if !peer.announced(announced + ROUTES_PER_PEER, start + MEASUREMENT_TIMEOUT).await {
                return Ok(None);
            }
        }
        let taken = FlapTimes { full, gone, back: start.elapsed() };
        if best.as_ref().is_none_or(|best| taken.converged() < best.converged()) {
            best = Some(taken);
        }
    }
    Ok(best)
}
