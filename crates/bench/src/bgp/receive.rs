//! Measures the time until the routes of one peer are in the speaker's table.
//!
//! A marker, sent last and the only exported route, shows that all routes before it have been processed.

use super::config::{BenchNeighbour, NeighbourRole, SpeakerSetup};
use super::daemon::{SpeakerKind, SpeakerProcess};
use super::feed::{GeneratedRoutes, marker};
use super::place::{BgpHosts, peer};
use super::report::{REPETITIONS, SpeakerReport, WorkCost, WorkStart, cells, count, in_turn};
use super::session::{BenchPeer, LONG_HOLD};
use crate::namespace::BenchResult;
use std::sync::Arc;
use std::time::Duration;

const ROUTE_COUNTS: [usize; 3] = [10_000, 100_000, 1_000_000];
const FEEDER: usize = 1;
const OBSERVER: usize = 2;
/// Time for the speaker to free memory that it needed only temporarily.
const SETTLE_TIME: Duration = Duration::from_secs(1);

struct ReceiveFigures {
    effort: WorkCost,
    bytes_per_route: f64,
    threads: usize,
}

pub fn measure() -> BenchResult<()> {
    let mut report = SpeakerReport::default();
    let mut first = None;
    for routes in ROUTE_COUNTS {
        let feed = [GeneratedRoutes::from_the_start(routes).announced_by(peer(FEEDER)), marker(peer(FEEDER))]
            .concat();
        let feed = Arc::new(feed);
        let once = |kind| {
            let feed = feed.clone();
            BgpHosts::measure(move |place| async move { take_in(kind, routes, &feed, &place).await })
        };
        let taken =
            in_turn(&SpeakerKind::ALL, REPETITIONS, once, |taken: &ReceiveFigures| taken.effort.time)?;
        let efforts: Vec<_> = taken.iter().map(|taken| taken.as_ref().map(|taken| taken.effort)).collect();
        report.effort(&format!("{routes} routes"), &efforts, &mut first);
        report.line("- memory a route", &cells(&taken, |taken| taken.bytes_per_route), |value| {
            format!("{value:.0} B")
        });
        if routes == ROUTE_COUNTS[ROUTE_COUNTS.len() - 1] {
            report.line("- threads", &cells(&taken, |taken| taken.threads as f64), count);
        }
    }
    report.print("Routes taken in from one peer, ten to a set of attributes, until the last is in the table");
    Ok(())
}

async fn take_in(
    kind: SpeakerKind,
    routes: usize,
    feed: &[u8],
    place: &BgpHosts,
) -> BenchResult<Option<ReceiveFigures>> {
    let neighbours =
        [FEEDER, OBSERVER].map(|n| BenchNeighbour { address: peer(n), role: NeighbourRole::Observer });
    let setup = SpeakerSetup { peers: neighbours.to_vec(), ..SpeakerSetup::default() };
    let daemon = SpeakerProcess::start(kind, &setup, place).await?;
    let observer = BenchPeer::connect(peer(OBSERVER), LONG_HOLD).await?;
    let feeder = BenchPeer::connect(peer(FEEDER), LONG_HOLD).await?;
    daemon.rest().await?;
    let memory = daemon.resident()?;
    let start = WorkStart::now(&daemon)?;
    let sent = tokio::time::timeout_at(start.deadline().into(), feeder.send(feed)).await;
    match sent {
        Ok(sent) => sent?,
        Err(_) => return Ok(None),
    }
    if !observer.announced(1, start.deadline()).await {
        return Ok(None);
    }
    let effort = start.effort(&daemon)?;
    tokio::time::sleep(SETTLE_TIME).await;
    let grown = daemon.resident()?.saturating_sub(memory);
    let bytes_per_route = grown as f64 * 1024.0 / routes as f64;
    Ok(Some(ReceiveFigures { effort, bytes_per_route, threads: daemon.threads()? }))
}
