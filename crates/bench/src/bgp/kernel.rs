//! Measures the time until the routes of one peer are in the kernel. For Tortie it runs the complete node daemon with
//! its datastore.

use super::config::{BenchNeighbour, NeighbourRole, SpeakerSetup};
use super::daemon::{SpeakerKind, SpeakerProcess};
use super::feed::GeneratedRoutes;
use super::place::{BgpHosts, peer};
use super::report::{MEASUREMENT_TIMEOUT, REPETITIONS, SpeakerReport, WorkCost, WorkStart, in_turn};
use super::session::{BenchPeer, LONG_HOLD};
use crate::namespace::{self, BenchResult, check};
use std::fs;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const ROUTE_COUNTS: [usize; 3] = [1_000, 10_000, 100_000];
const FEEDER: usize = 1;
/// GoBGP alone does not program the kernel.
const KERNEL_SPEAKERS: [SpeakerKind; 3] = [SpeakerKind::Tortie, SpeakerKind::Bird, SpeakerKind::Frr];

pub fn measure() -> BenchResult<()> {
    let mut report = SpeakerReport::default();
    let mut first = None;
    for routes in ROUTE_COUNTS {
        let feed = Arc::new(GeneratedRoutes::from_the_start(routes).announced_by(peer(FEEDER)));
        let once = |kind| {
            let feed = feed.clone();
            BgpHosts::measure(move |place| async move { install(kind, routes, &feed, &place).await })
        };
        let taken = in_turn(&KERNEL_SPEAKERS, REPETITIONS, once, |effort: &WorkCost| effort.time)?;
        report.effort(&format!("{routes} routes"), &taken, &mut first);
    }
    report.print(
        "Routes from one peer until the last is in the kernel (ours: the whole node; FRR: with zebra)",
    );
    Ok(())
}

async fn install(
    kind: SpeakerKind,
    routes: usize,
    feed: &[u8],
    place: &BgpHosts,
) -> BenchResult<Option<WorkCost>> {
    let feeder = BenchNeighbour { address: peer(FEEDER), role: NeighbourRole::Client };
    let daemon = match kind {
        SpeakerKind::Tortie => SpeakerProcess::node(place, feeder.address).await?,
        _ => {
            SpeakerProcess::start(
                kind,
                &SpeakerSetup { peers: vec![feeder], kernel: true, own: false },
                place,
            )
            .await?
        }
    };
    let feeder = BenchPeer::connect(feeder.address, LONG_HOLD).await?;
    daemon.rest().await?;
    let (place, go) = (place.clone(), Arc::new(Barrier::new(2)));
    let gone = go.clone();
    let watch = std::thread::spawn(move || full(&place, routes, &gone));
    go.wait();
    let start = WorkStart::now(&daemon)?;
    let sent = tokio::time::timeout_at(start.deadline().into(), feeder.send(feed)).await;
    let end = watch.join().map_err(|_| "the watch ended badly")??;
    match (sent, end) {
        (Ok(sent), Some(end)) => {
            sent?;
            Ok(Some(start.effort_until(end, &daemon)?))
        }
        _ => Ok(None),
    }
}

/// Returns the time when the main table of the speaker's host has gained `routes` routes. Reading the count is slow
/// with many routes, so it takes at most a tenth of the time.
fn full(place: &BgpHosts, routes: usize, start: &Barrier) -> BenchResult<Option<Instant>> {
    let before = namespace::enter(&place.0.path(0)).and_then(|()| main_table());
    start.wait();
    let (enough, deadline) = (before? + routes, Instant::now() + MEASUREMENT_TIMEOUT);
    loop {
        check()?;
        let asked = Instant::now();
        let there = main_table()?;
        let now = Instant::now();
        if there >= enough {
            return Ok(Some(now));
        }
        if now > deadline {
            return Ok(None);
        }
        std::thread::sleep(((now - asked) * 9).max(Duration::from_millis(1)));
    }
}

fn main_table() -> BenchResult<usize> {
    let text = fs::read_to_string("/proc/thread-self/net/fib_triestat")?;
    let lines = text.lines().skip_while(|line| !line.starts_with("Main:"));
    let prefixes = lines.filter_map(|line| line.trim().strip_prefix("Prefixes:")).next();
    Ok(prefixes.ok_or("the kernel does not count its routes")?.trim().parse()?)
}
